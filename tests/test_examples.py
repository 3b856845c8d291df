"""The example method, by hand, and as its recipe puts it together."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import LossConfig
from openclaw_rl.config_sources import from_toml, resolve
from openclaw_rl.extensions import load_attribute
from openclaw_rl.judging.factory import build_judge
from openclaw_rl.rollout.extension_contracts import Answer, Rollout
from openclaw_rl.rollout.extension_loading import load_generate, load_rollout
from openclaw_rl.rollout.tasks import read_tasks
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


# --- rollouts of tasks ---------------------------------------------------------------------------------------


class FakePolicy:
    """Says what it is told to, and keeps what it was asked."""

    session_id = "s"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[Any] = []

    async def chat(self, messages: Any, **_options: Any) -> Answer:
        self.asked.append(list(messages))
        return Answer(
            turn_id=f"t{len(self.asked)}",
            message={"role": "assistant", "content": self.texts.pop(0)},
            finish_reason="stop",
            version=0,
            prompt_tokens=1,
            completion_tokens=1,
        )


@pytest.mark.parametrize(
    ("texts", "reward", "ended"),
    [
        (["word " * 12], 1.0, "right_1"),
        (["word", "word " * 12], 1.0, "right_2"),
        (["word", "word " * 9], 0.5, "wrong"),
        (["word", "word " * 99], -1.0, "wrong"),
    ],
)
def test_words_are_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], reward: float, ended: str
) -> None:
    monkeypatch.chdir(ROOT)
    config = resolve(from_toml(ROOT / "examples" / "count_words" / "recipe.toml")).config
    assert config.rollout.tasks is not None
    tide = read_tasks(config.rollout.tasks)[0]
    policy = FakePolicy(*texts)
    result = asyncio.run(load_generate(config)(tide, policy))
    assert (result.reward, result.ended) == (reward, ended)
    if len(texts) == 2:
        first, answer, told = policy.asked[1]
        assert (first, answer["content"]) == (tide.messages[0], "word")
        assert "That was 1 words, not 12" in told["content"]


def finished(number: int, answers: int, reward: float | None) -> Rollout:
    turn_ids = tuple(f"t{place}" for place in range(answers))
    failure = "deadline" if reward is None else None
    return Rollout(
        number=number,
        session_id="s",
        turn_ids=turn_ids,
        reward=reward,
        ended="",
        failure=failure,
        seconds=1.0,
    )


def test_the_shortest_rollout_keeps_its_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = resolve(from_toml(ROOT / "examples" / "shorter_wins" / "recipe.toml")).config
    assert callable(load_rollout(config))
    shaped = load_attribute("examples/shorter_wins/rollout.py:shaped", option="x")
    group = [
        finished(0, 1, 1.0),
        finished(1, 3, 1.0),
        finished(2, 2, 0.5),
        finished(3, 3, -0.9),
        finished(4, 9, None),
    ]
    rewards = [one.reward for one in shaped(group)]
    assert rewards == [1.0, pytest.approx(0.6), pytest.approx(0.3), -1.0, None]
    assert shaped(group[:1]) == tuple(group[:1])


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "examples").glob("*/recipe.toml")))
def test_every_recipe_can_be_used(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(ROOT)
    config = resolve(from_toml(ROOT / "examples" / folder / "recipe.toml")).config
    assert callable(load_generate(config))
    assert callable(load_rollout(config))
