"""The gate: each bound by itself, and real steps that must never serve."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from pydantic import ValidationError

from openclaw_rl.config import Config
from openclaw_rl.config_gate import GateConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.gate import RULES, Readings, Rule, far_shorter, repetition, verdict
from openclaw_rl.training.gatekeeper import KnownAnswer
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.trainer import StepOutcome
from tests.training.support import SAME, make_sample, tiny_trainer

SOUND = Readings(
    loss=0.1,
    weights_finite=True,
    kl_to_base=0.5,
    kl_to_last=0.1,
    entropy=1.5,
    nats_below_told_base=0.2,
    repetition=0.1,
    mean_tokens=12.0,
    probe_drop=0.3,
    evaluation=0.8,
)
CONFIG = GateConfig(evaluation_path="x:y", min_evaluation=0.5)


def test_sound_weights_pass_and_what_was_not_read_refuses_nothing() -> None:
    assert verdict(SOUND, CONFIG) is None
    assert verdict(Readings(loss=0.0, weights_finite=True), CONFIG) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": math.nan}, "loss_not_finite"),
        ({"weights_finite": False}, "weights_not_finite"),
        ({"kl_to_base": 10.1}, "kl_to_base"),
        ({"kl_to_last": 3.1}, "kl_to_last"),
        ({"entropy": 0.001}, "entropy"),
        ({"nats_below_told_base": 0.71}, "language"),
        ({"repetition": 0.61}, "repetition"),
        ({"nats_below_base": 1.51}, "untold_language"),
        ({"probe_drop": 2.1}, "probe_answers"),
        ({"evaluation": 0.49}, "evaluation"),
    ],
)
def test_each_bound_has_a_reason_of_its_own(change: dict[str, float], reason: str) -> None:
    assert verdict(dataclasses.replace(SOUND, **change), CONFIG) == reason  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason)
def test_a_reading_that_is_no_number_refuses(rule: Rule) -> None:
    fields = (
        "kl_to_base", "kl_to_last", "entropy", "nats_below_told_base", "nats_below_base", "repetition", "probe_drop",
        "evaluation",
    )  # fmt: skip
    broken = dataclasses.replace(SOUND, **dict.fromkeys(fields, math.nan))  # type: ignore[arg-type]
    assert rule.broken_by(broken, CONFIG)


@pytest.mark.parametrize(
    ("of_base", "reason"), [(None, "entropy"), (0.5, "entropy"), (0.01, "entropy"), (0.009, None)]
)
def test_low_entropy_is_no_reason_where_the_bases_is_low_too(of_base: float | None, reason: str | None) -> None:
    assert verdict(dataclasses.replace(SOUND, entropy=0.001, entropy_of_base=of_base), CONFIG) == reason


def test_a_short_answer_is_no_reason_and_is_warned_of() -> None:
    assert verdict(dataclasses.replace(SOUND, mean_tokens=1.0, base_tokens=30.0), CONFIG) is None
    assert far_shorter(1.0, 30.0) == "its probe answers have 1.0 tokens on average, those of the base 30.0"
    assert far_shorter(7.4, 30.0) is not None
    assert far_shorter(7.5, 30.0) is None
    assert far_shorter(None, 30.0) is None
    assert far_shorter(1.0, None) is None


def test_repetition_by_hand() -> None:
    assert repetition([[1, 2, 3, 4, 5]]) == 0.0
    assert repetition([[7] * 8]) == pytest.approx(4 / 5)  # five 4-grams, one of them new
    assert repetition([[7] * 8, [1, 2, 3, 4, 5, 6, 7, 8]]) == pytest.approx(4 / 10)
    assert repetition([[1, 2], []]) == 0.0


def test_an_evaluation_needs_a_bound_and_a_bound_an_evaluation() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        GateConfig(min_evaluation=0.5)
    with pytest.raises(ValidationError, match="belong together"):
        GateConfig(evaluation_path="x:y")


# --- readings of a real (tiny) model -----------------------------------------------------------------------


def test_before_any_change_policy_and_base_are_told_apart_by_nothing() -> None:
    """A step with a learning rate of (almost) 0: all distances are 0."""
    trainer = tiny_trainer(lr=1e-30, gate={})
    known = [KnownAnswer(prompt_ids=(3, 4, 5), response_ids=(6, 7))]
    outcome = trainer.step([make_sample(trainer, 0, hint=SAME)], hints=(SAME,), known=known)
    assert outcome.refused is None
    for name in ("kl_after", "kl_to_last", "probe_drop", "nats_below_told_base"):
        assert outcome.metrics[name] == pytest.approx(0.0, abs=1e-5)
    assert 0 < outcome.metrics["probe_tokens"] <= 32
    assert outcome.metrics["probe_base_tokens"] == outcome.metrics["probe_tokens"]
    assert outcome.metrics["entropy_after"] > 0.1
    assert outcome.metrics["entropy_of_base"] == pytest.approx(outcome.metrics["entropy_after"], abs=1e-5)


@pytest.mark.parametrize("tokens", [1, 40, 256])
@pytest.mark.parametrize("mode", [Mode.REFERENCE, Mode.TEACHER])
def test_known_answers_are_read_in_passes_and_read_the_same(tokens: int, mode: Mode) -> None:
    """Some share a prompt, one is longer than a piece of the head, and all are more than a pass may hold."""
    trainer = tiny_trainer(shaken=True, max_tokens_per_micro_batch=tokens)
    known = [
        KnownAnswer(prompt_ids=(3, 4, 5), response_ids=(6, 7)),
        KnownAnswer(prompt_ids=(3, 4, 5), response_ids=(8,)),
        KnownAnswer(prompt_ids=(9,) * 30, response_ids=tuple(range(1, 55)) * 2),
        KnownAnswer(prompt_ids=(1,), response_ids=(2, 3, 4)),
    ]
    whole = [
        trainer.scorer.score(TokenSequence(prompt_ids=k.prompt_ids, response_ids=k.response_ids, start=0), mode)
        for k in known
    ]
    passes = []
    read = trainer._gatekeeper._mean_logprob(known, mode, lambda: passes.append(1))
    assert read == pytest.approx(float(torch.stack([one.logprobs.mean() for one in whole]).mean()), abs=1e-5)
    assert len(passes) >= {1: 3, 40: 2, 256: 1}[tokens]


def test_probe_answers_that_leave_no_room_for_a_prompt_are_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"training\.gate\.probe_tokens = 256 .* max_position_embeddings = 256"):
        tiny_trainer(gate={"probe_tokens": 256})
    tiny_trainer(gate={"probe_tokens": 255})
    tiny_trainer(gate={"probe_tokens": 256, "probes": 0})
    with pytest.raises(ValidationError, match=r"training\.gate\.probe_tokens = 64 .* engine\.context_length = 64"):
        Config.model_validate({"engine": {"context_length": 64}, "training": {"gate": {"probe_tokens": 64}}})


def test_a_batch_of_accepted_retries_alone_is_read_on_them() -> None:
    """The first step begins with the base, so that its distance to the base is that to the weights before it."""

    def stepped(**gate: float) -> StepOutcome:
        trainer = tiny_trainer({"w_retry": 1.0}, lr=0.05, gate={"probes": 0, **gate})
        samples = [make_sample(trainer, number, reward=None, retry=(3, 9, number)) for number in range(2)]
        return trainer.step(samples)

    read = stepped().metrics
    assert read["kl_after"] > 1e-4
    assert read["kl_to_last"] == pytest.approx(read["kl_after"], rel=1e-3)
    assert read["entropy_after"] != pytest.approx(read["entropy_of_base"], abs=1e-4)
    for bound, reason in (("max_kl_to_base", "kl_to_base"), ("max_kl_to_last", "kl_to_last")):
        assert stepped(**{bound: read["kl_after"] / 2}).refused == reason
        assert stepped(**{bound: read["kl_after"] * 2}).refused is None


def test_the_log_probabilities_of_what_is_generated_are_those_of_the_scorer() -> None:
    trainer = tiny_trainer(shaken=True)
    prompts = [(3, 4, 5, 6), (7, 8)]
    for mode in (Mode.TEACHER, Mode.REFERENCE):
        for prompt, made in zip(prompts, trainer.scorer.generate(prompts, mode, max_tokens=6), strict=True):
            sequence = TokenSequence(prompt_ids=prompt, response_ids=made.ids, start=0)
            scored = trainer.scorer.score(sequence, mode)
            torch.testing.assert_close(torch.tensor(made.logprobs), scored.logprobs, rtol=0, atol=1e-4)
            assert len(made.ids) <= 6


@pytest.mark.parametrize("hints", [(), ("hm",)])
def test_a_restored_trainer_is_judged_as_one_that_went_on(hints: tuple[str, ...]) -> None:
    """How the base speaks is read at every fourth step only: what was read has to survive."""
    gate = {"max_repetition": 1.0, "max_nats_below_told_base": 50.0, "max_nats_below_base": 50.0}
    samples = [make_sample(tiny_trainer(), number, hint="hm", prompt=4 + number) for number in range(3)]
    one, other = (tiny_trainer(gate=gate) for _ in range(2))
    assert one.step(samples[:1], hints=hints).refused is None
    other.restore(one.state())
    went_on, restored = (trainer.step(samples[1:], hints=hints).metrics for trainer in (one, other))
    assert went_on == restored
    assert ("nats_below_told_base" in restored, "nats_below_base" in restored) == (bool(hints), not hints)
    forgetful = tiny_trainer(gate=gate)
    forgetful.restore(dataclasses.replace(other.state(), gate={}))
    assert forgetful.state().gate == {}


def test_a_policy_that_says_one_thing_over_and_over_is_refused() -> None:
    """Trained by force on one repeated token, until the gate speaks."""
    trainer = tiny_trainer(lr=0.3, gate={"max_kl_to_base": 50.0, "max_kl_to_last": 50.0, "min_entropy": 0.0})
    reasons = []
    for number in range(30):
        sample = make_sample(trainer, number, hint="hm", reward=1.0)
        stuck = dataclasses.replace(sample.tokens, response_ids=(9,) * len(sample.tokens.response_ids))
        outcome = trainer.step([dataclasses.replace(sample, tokens=stuck)], hints=("hm",))
        reasons.append(outcome.refused)
        if outcome.refused:
            break
    assert reasons[-1] in {"language", "repetition"}
