"""Poisoned batches over a real store and a tiny policy: whatever comes in, what serves is sound, and why is said."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from openclaw_rl.config import Config
from openclaw_rl.rollout.classify import exclusion_of
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.serving.gateway.reward import parse_reward
from openclaw_rl.store import Store
from openclaw_rl.store.codec import pack_logprobs
from openclaw_rl.supervision.status import collect, render
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.cycle import TrainingLoop
from openclaw_rl.training.gate import RULES
from openclaw_rl.training.learned import WEIGHTS_FILE
from openclaw_rl.training.scorer import Mode
from openclaw_rl.types import ExclusionReason, SampleState, TokenRecord, UnsoundSample, VersionState
from tests.builders import Conversation, make_judgement
from tests.supervision.test_units import prepare_state
from tests.training.support import SAME, into_store, make_sample, teacher_prompt, tiny_trainer
from tests.training.test_cycle import fill, make_config, make_loop, work_off

POISON = (math.nan, math.inf, -math.inf)
REASONS = {rule.reason for rule in RULES}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def damage(tmp_path: Path, table: str, column: str, turn_id: str, value: Any) -> None:
    """Write a value into the record that no part of this program would."""
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        changed = connection.execute(f"UPDATE {table} SET {column} = ? WHERE turn_id = ?", (value, turn_id)).rowcount
    connection.close()
    assert changed == 1


def sound(loop: TrainingLoop, store: Store, config: Config) -> None:
    """What is in service has finite weights, is the trainer's, and its readings keep every bound of the gate."""
    version = store.versions.serving()
    loop._turn_to("")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in loop._trainer.state().weights.values())
    if version.path is None:
        return
    served = load_file(Path(version.path) / WEIGHTS_FILE)
    assert all(torch.equal(served[name], tensor) for name, tensor in loop._trainer.state().weights.items())
    (step,) = [step for step in store.samples.steps() if step.version == version.version]
    assert step.metrics["kl_after"] <= config.training.gate.max_kl_to_base
    assert step.metrics["kl_to_last"] <= config.training.gate.max_kl_to_last
    assert step.metrics["entropy_after"] >= config.training.gate.min_entropy


def status_of(tmp_path: Path) -> str:
    prepare_state(tmp_path, "http://127.0.0.1:1")
    return render(collect(tmp_path))


@pytest.mark.parametrize("value", POISON)
def test_a_turn_whose_log_probability_is_no_number_never_becomes_a_sample(store: Store, value: float) -> None:
    tokens = TokenRecord(prompt_ids=(1, 2), response_ids=(3, 4), logprobs=(-0.5, value), versions=(0, 0))
    Conversation(store).turn("t1", tokens=tokens)
    recorded = store.turns.get("t1")
    assert recorded is not None
    assert exclusion_of(recorded, policy_name="policy") is ExclusionReason.NONFINITE_LOGPROBS
    sample = make_sample(tiny_trainer(), 1)
    with pytest.raises(UnsoundSample, match="nonfinite_logprobs"):
        type(sample)(**{name: getattr(sample, name) for name in sample.__dataclass_fields__} | {"tokens": tokens})


@pytest.mark.parametrize("value", POISON)
def test_a_log_probability_that_is_no_number_costs_its_own_sample_only(
    tmp_path: Path, store: Store, value: float
) -> None:
    fill(store, 4)
    damage(tmp_path, "turns", "logprobs", "t1", pack_logprobs([-1.0, value, -1.0, -1.0]))
    config = make_config(tmp_path)
    loop = make_loop(config, store)
    work_off(loop)
    assert [step.sample_ids for step in store.samples.steps()] == [("t0",), ("t2", "t3")]
    counts = store.status.counts()
    assert counts.samples_by_state == {SampleState.TRAINED: 3, SampleState.REJECTED: 1}
    assert counts.counters["samples_rejected_nonfinite_logprobs"] == counts.counters["samples_unusable"] == 1
    assert "steps_refused" not in counts.counters
    assert store.versions.serving().version == 2
    sound(loop, store, config)
    assert "rejected  samples: nonfinite_logprobs 1" in status_of(tmp_path)


@pytest.mark.parametrize("reward", [1e9, -1e9, math.inf])
def test_an_absurd_reward_costs_its_own_sample_only(tmp_path: Path, store: Store, reward: float) -> None:
    fill(store, 2)
    damage(tmp_path, "samples", "reward", "t0", reward)
    config = make_config(tmp_path)
    loop = make_loop(config, store)
    work_off(loop)
    assert [step.sample_ids for step in store.samples.steps()] == [("t1",)]
    assert store.status.counts().counters["samples_rejected_reward_out_of_range"] == 1
    assert store.samples.steps()[0].metrics["mean_reward"] == 1.0
    sound(loop, store, config)
    assert "rejected  samples: reward_out_of_range 1" in status_of(tmp_path)


@pytest.mark.parametrize("reward", [1e9, -1e9, math.inf, math.nan])
def test_an_absurd_reward_has_no_way_in(reward: float) -> None:
    """Nothing is clipped: a number out of range says that its sender means another scale."""
    with pytest.raises(ValueError, match="a score lies between -1 and 1"):
        make_judgement(score=reward)
    with pytest.raises(UnsoundSample, match="a reward lies between -1 and 1"):
        make_sample(tiny_trainer(), 0, reward=reward)
    if math.isfinite(reward):
        with pytest.raises(GatewayError) as refused:
            parse_reward(json.dumps({"score": reward}).encode())
        assert (refused.value.status, refused.value.param) == (400, "score")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_loss_that_is_no_number_is_a_refused_step_however_small_the_batch(
    tmp_path: Path, store: Store, batch: int
) -> None:
    (tmp_path / "mine.py").write_text(
        "calls = []\n"
        "def compute_loss(policy_logprobs, reference_logprobs, rewards, advantages, config):\n"
        "    calls.append(1)\n"
        "    factor = float('nan') if len(calls) == 2 else 1.0\n"
        "    return -(policy_logprobs.mean() * factor)\n"
    )
    fill(store, 3 * batch)
    path = f"{tmp_path / 'mine.py'}:compute_loss"
    config = make_config(tmp_path, batch=batch, custom_loss_function_path=path, loss={"opd_top_k": 0})
    loop = make_loop(config, store)
    work_off(loop)
    counts = store.status.counts()
    assert counts.counters["steps_refused"] == 1
    assert "samples_unusable" not in counts.counters
    assert counts.counters["samples_rejected_loss_not_finite"] == batch
    assert [step.step for step in store.samples.steps()] == [1, 2]
    sound(loop, store, config)


def test_twenty_steps_of_nothing_but_blame_stay_within_the_bounds(tmp_path: Path, store: Store) -> None:
    """Without a baseline, at a rate that tears the tiny policy from its base; answers are drawn from what serves."""
    bounds = {"max_kl_to_base": 0.4, "max_kl_to_last": 0.2, "probes": 0}
    config = make_config(tmp_path, lr=3e-2, gate=bounds, loss={"baseline": "none", "kl_coef": 0.0})
    loop = make_loop(config, store)
    loop.resume()
    drawn_by = loop._trainer
    for number in range(20):
        for place in range(2):
            into_store(store, make_sample(drawn_by, 2 * number + place, reward=-1.0))
        assert loop.cycle()
        sound(loop, store, config)
        assert kl_to_base(loop) <= 0.4 + 1e-4
    states = [version.state for version in store.versions.all()]
    reasons = {version.reason for version in store.versions.all() if version.state is VersionState.REJECTED}
    assert len(states) == 21
    assert reasons
    assert reasons <= REASONS
    counts = store.status.counts()
    refused = states.count(VersionState.REJECTED)
    assert counts.counters["steps_refused"] == refused
    assert counts.samples_by_state[SampleState.REJECTED] == 2 * refused
    assert f"rejected  samples: {', '.join(sorted(f'{r} {n}' for r, n in tally(store).items()))}" in status_of(
        tmp_path
    )


def tally(store: Store) -> dict[str, int]:
    prefix = "samples_rejected_"
    counters = store.status.counts().counters
    return {name.removeprefix(prefix): number for name, number in counters.items() if name.startswith(prefix)}


def kl_to_base(loop: TrainingLoop) -> float:
    """Of the weights in service, on the answers that the gate read last: by hand, not by the gate."""
    made = [step for step in loop._store.samples.steps() if step.version == loop._basis]
    if not made:
        return 0.0
    found = []
    for turn_id in made[0].sample_ids:
        turn = loop._store.turns.get(turn_id)
        assert turn is not None
        ids = TokenSequence(prompt_ids=turn.tokens.prompt_ids, response_ids=turn.tokens.response_ids, start=0)
        own, base = (
            loop._trainer.scorer.score(ids, m, full=True).distribution for m in (Mode.TEACHER, Mode.REFERENCE)
        )
        assert own is not None
        assert base is not None
        found.append((own.exp() * (own - base)).sum(-1))
    return float(torch.cat(found).mean())


@pytest.mark.parametrize("hint", ["\ufffd\x00" * 20, "zqxj " * 12, SAME], ids=["no text", "no words", "no change"])
def test_a_hint_of_garbage_moves_nothing_out_of_bounds(tmp_path: Path, store: Store, hint: str) -> None:
    trainer = tiny_trainer()
    for number in range(6):
        into_store(store, make_sample(trainer, number, reward=None, hint=hint))
    gate = {"probes": 3, "max_kl_to_base": 0.3, "max_nats_below_told_base": 0.5}
    config = make_config(tmp_path, lr=3e-2, gate=gate)
    loop = make_loop(config, store, prompt=teacher_prompt)
    work_off(loop)
    versions = store.versions.all()[1:]
    assert len(versions) == 3
    for version in versions:
        assert version.state is not VersionState.REJECTED or version.reason in REASONS
    sound(loop, store, config)


def test_a_hint_that_nobody_can_read_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    into_store(store, make_sample(tiny_trainer(), 0, reward=None, hint="x" * 10_000))
    work_off(make_loop(make_config(tmp_path, batch=1), store, prompt=teacher_prompt))
    counts = store.status.counts()
    assert counts.samples_by_state == {SampleState.REJECTED: 1}
    assert counts.counters["samples_rejected_hint_too_long"] == counts.counters["samples_unusable"] == 1
    assert store.versions.serving().version == 0
