"""The example method, by hand, and as its recipe puts it together."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
import torch

from openclaw_rl.config import LossConfig
from openclaw_rl.config_sources import from_toml, resolve
from openclaw_rl.extensions import load_attribute
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.types import TurnState
from tests.builders import make_turn, user
from tests.training.support import make_sample, tiny_trainer

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "milder_no"


def test_a_no_counts_half_and_the_ratio_is_a_bounded_constant() -> None:
    compute_loss = load_attribute(f"{FOLDER / 'loss.py'}:compute_loss", option="x")
    policy = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    old = torch.tensor([-1.0, -2.0, -1.5])  # ratios 1, 1 and e, which is cut at 1.28
    advantages = torch.tensor([1.0, -1.0, 1.0])
    loss = compute_loss(policy, policy.detach() - 0.5, advantages, advantages, LossConfig(kl_coef=0.1), old)
    kl = 0.1 * (math.exp(-0.5) - 1 + 0.5)
    assert loss.tolist() == pytest.approx([1.0 + kl, -0.5 * 2.0 + kl, 1.28 * 0.5 + kl])
    (slope,) = torch.autograd.grad(loss.sum(), policy)
    pull = 0.1 * (1 - math.exp(-0.5))
    assert slope.tolist() == pytest.approx([-1.0 + pull, 0.5 + pull, -1.28 + pull])


@pytest.mark.parametrize(("words", "value"), [(0, None), (1, 1.0), (40, 1.0), (80, 0.0), (120, -1.0), (900, -1.0)])
def test_short_answers_are_good(words: int, value: float | None) -> None:
    score = load_attribute(f"{FOLDER / 'reward.py'}:score", option="x")
    assert score("[user] Hm?", "word " * words, "[user] ok") == value


def test_the_recipe_puts_both_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    config = resolve(from_toml(FOLDER / "recipe.toml")).config
    answer = {"role": "assistant", "content": "word " * 60}
    turn = make_turn(answer=answer, state=TurnState.JUDGING, next_state=(user("ok"),))
    assert asyncio.run(build_judge(config).judge(turn)).score == 0.5
    training = config.training
    trainer = tiny_trainer(
        training.loss.model_dump(),
        method=training.method,
        custom_loss_function_path=training.custom_loss_function_path,
    )
    samples = [make_sample(trainer, 0, reward=1.0), make_sample(trainer, 1, reward=-1.0)]
    before = trainer.state().weights
    assert trainer.step(samples).refused is None
    assert any(not torch.equal(before[name], now) for name, now in trainer.state().weights.items())
