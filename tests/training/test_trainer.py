from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample
from tests.training.support import (
    SAME,
    demonstration,
    logprobs_of,
    make_sample,
    mixed_samples,
    teacher_prompt,
    tiny_trainer,
    with_logprobs,
)

NO_KL = {"kl_coef": 0.0, "baseline": "none"}


def gradients(trainer: Trainer, samples: list[Sample]) -> dict[str, torch.Tensor]:
    """The gradient of a step, left in the parameters by a step whose clipping does not bite."""
    outcome = trainer.step(samples)
    assert outcome.refused is None
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    gap = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return math.sqrt(gap / sum(float(value.square().sum()) for value in one.values()))


@pytest.mark.parametrize("top_k", [0, 4])
def test_a_teacher_without_a_hint_is_the_student(top_k: int) -> None:
    """The OPD advantage is 0, so a step on it alone has no loss and (1e-5) no gradient."""
    trainer = tiny_trainer({**NO_KL, "opd_top_k": top_k}, shaken=True, method=Method.OPD)
    samples = [make_sample(trainer, i, reward=None, hint=SAME) for i in range(3)]
    outcome = trainer.step(samples)
    assert outcome.metrics["loss"] == pytest.approx(0.0, abs=1e-5)
    assert outcome.metrics["grad_norm"] == pytest.approx(0.0, abs=1e-5)
    assert outcome.metrics["opd_share"] == 1.0


def test_a_fresh_adapter_has_no_kl_and_agrees_with_its_own_record() -> None:
    trainer = tiny_trainer({"baseline": "none"})
    outcome = trainer.step([make_sample(trainer, i) for i in range(3)])
    assert outcome.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert outcome.metrics["logprob_gap"] == pytest.approx(0.0, abs=1e-5)
    assert outcome.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert outcome.metrics["kl_after"] > 1e-4
    assert outcome.metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_reward_moves_the_logprob_its_way(reward: float) -> None:
    trainer = tiny_trainer(NO_KL, shaken=True)
    sample = make_sample(trainer, 1, reward=reward)
    before = logprobs_of(trainer, sample)
    trainer.step([sample])
    change = float((logprobs_of(trainer, sample) - before).sum())
    assert change * reward > 0.01


@pytest.mark.parametrize("top_k", [0, 4])
def test_distillation_moves_the_student_towards_the_hinted_teacher(top_k: int) -> None:
    trainer = tiny_trainer({**NO_KL, "opd_top_k": top_k, "opd_clip": 5.0}, method=Method.OPD, lr=2e-3)
    sample = make_sample(trainer, 2, reward=None, hint="hm")

    def distance() -> float:
        ids = sample.tokens.response_ids
        own = TokenSequence(prompt_ids=sample.tokens.prompt_ids, response_ids=ids, start=0)
        if not distance_to:
            hinted = TokenSequence(prompt_ids=teacher_prompt(sample), response_ids=ids, start=0)
            distance_to.append(trainer.scorer.score(hinted, Mode.REFERENCE, full=True).distribution)
        student = trainer.scorer.score(own, Mode.TEACHER, full=True).distribution
        teacher = distance_to[0]
        assert student is not None
        assert teacher is not None
        if top_k == 0:  # the sampled token alone: its own log-probability goes the teacher's way
            chosen = torch.tensor(ids).unsqueeze(-1)
            return float((student.gather(-1, chosen) - teacher.gather(-1, chosen)).abs().sum())
        return float((student.exp() * (student - teacher)).sum())

    distance_to: list[torch.Tensor | None] = []
    before = distance()
    trainer.step([sample])
    assert distance() < before


def test_a_retry_raises_the_likelihood_of_the_demonstration() -> None:
    trainer = tiny_trainer({**NO_KL, "w_retry": 1.0}, shaken=True)
    sample = make_sample(trainer, 1, reward=None, retry=(3, 9, 27))
    shown = make_sample(trainer, 9, prompt=3, response=3)
    retry = demonstration(1, (3, 9, 27))
    tokens = dataclasses.replace(shown.tokens, prompt_ids=retry.prompt_ids, response_ids=retry.response_ids)
    shown = dataclasses.replace(shown, tokens=tokens)
    before = logprobs_of(trainer, shown)
    outcome = trainer.step([sample])
    assert outcome.metrics["loss_retry"] == pytest.approx(-float(before.mean()), rel=1e-5)
    assert float((logprobs_of(trainer, shown) - before).sum()) > 0.01
    assert outcome.metrics["effective_tokens"] == 0.0


def test_the_whole_loss_by_hand() -> None:
    """One token, combine: -w_rl·r·ρ, a distillation of 0 from an equal teacher, and KL 0 for a fresh adapter.

    The record says 0.1 nats less than the policy, so ρ = e^0.1.
    """
    trainer = tiny_trainer({"baseline": "none", "w_rl": 2.0})
    sample = make_sample(trainer, 1, reward=-0.5, hint=SAME, response=1)
    sample = with_logprobs(sample, [sample.logprobs[0] - 0.1])
    metrics = trainer.step([sample]).metrics
    assert metrics["loss_policy"] == pytest.approx(2.0 * 0.5 * math.exp(0.1), rel=1e-4)
    assert metrics["loss_opd"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["loss"] == pytest.approx(metrics["loss_policy"], abs=1e-5)
    assert metrics["logprob_gap"] == pytest.approx(0.1, rel=1e-3)


def test_masked_samples_change_nothing_and_sit_in_no_denominator() -> None:
    """Under binary_rl a sample with a hint only has no signal."""
    one, other = (tiny_trainer(shaken=True, method=Method.BINARY_RL) for _ in range(2))
    signal = [make_sample(one, 0), make_sample(one, 1, reward=-1.0, response=7)]
    without = gradients(one, signal)
    with_masked = gradients(other, [*signal, make_sample(other, 2, reward=None, hint="hm", response=9)])
    assert relative_difference(without, with_masked) < 1e-6


@pytest.mark.parametrize("reduction", ["tokens", "samples"])
@pytest.mark.parametrize("top_k", [0, 4])
def test_micro_batches_do_not_change_the_gradient(reduction: str, top_k: int) -> None:
    loss = {"reduction": reduction, "opd_top_k": top_k, "w_retry": 0.3}
    found = []
    for budget in (8, 4096):
        trainer = tiny_trainer(loss, shaken=True, max_tokens_per_micro_batch=budget, max_grad_norm=1e9)
        found.append(gradients(trainer, mixed_samples(trainer)))
    assert relative_difference(*found) < 1e-5


def test_more_passes_meet_the_clip() -> None:
    """With a large rate the later passes find ratios beyond the clip."""
    trainer = tiny_trainer(NO_KL, shaken=True, epochs_per_batch=4, lr=5e-2)
    metrics = trainer.step([make_sample(trainer, i, hint="hm") for i in range(3)]).metrics
    assert metrics["clip_fraction"] > 0.0
    assert metrics["ratio_max"] > 1.28


def test_a_number_that_is_none_is_refused_and_leaves_no_trace() -> None:
    trainer = tiny_trainer(shaken=True)
    samples = mixed_samples(trainer)
    trainer.step(samples)
    before = trainer.state()
    with torch.no_grad():
        next(p for p in trainer.model.parameters() if p.requires_grad)[0, 0] = math.nan
    broken = trainer.step(samples)
    assert broken.refused == "loss_not_finite"
    trainer.restore(before)
    assert trainer.step(samples).refused is None
    assert trainer.step_number == 2


def test_the_gate_refuses_what_is_absurdly_far_from_the_base() -> None:
    trainer = tiny_trainer(shaken=True, gate={"max_kl_to_base": 1e-6})
    before = trainer.state()
    outcome = trainer.step(mixed_samples(trainer))
    assert (outcome.refused, outcome.weights_changed) == ("kl_to_base", True)
    assert trainer.step_number == before.step + 1


def test_what_the_model_cannot_read_is_named() -> None:
    trainer = tiny_trainer()
    assert trainer.usable.obstacle(make_sample(trainer, 1)) is None
    assert trainer.usable.obstacle(make_sample(trainer, 1, hint="hm")) is None
    assert trainer.usable.obstacle(make_sample(trainer, 1, prompt=250, response=6)) is None
    assert trainer.usable.obstacle(make_sample(trainer, 1, prompt=250, response=7)) == "too_long"
    assert trainer.usable.obstacle(make_sample(trainer, 1, prompt=250, response=6, hint="hm")) is None
    assert (
        trainer.usable.obstacle(make_sample(trainer, 1, prompt=250, response=6, reward=None, hint="hm"))
        == "hint_too_long"
    )
    assert trainer.usable.obstacle(make_sample(trainer, 1, retry=(3, 61))) == "unknown_token"


def test_the_baseline_moves_with_rewards_only() -> None:
    trainer = tiny_trainer({"baseline_decay": 0.5})
    trainer.step([make_sample(trainer, 0, reward=1.0), make_sample(trainer, 1, reward=-1.0)])
    assert trainer.averages == {"": pytest.approx(0.0)}
    outcome = trainer.step([make_sample(trainer, 2, reward=1.0)])
    assert outcome.metrics["baseline"] == pytest.approx(0.0)
    assert trainer.averages == {"": pytest.approx(0.5)}
    assert trainer.step([make_sample(trainer, 3, reward=None, hint="hm")]).refused is None
    assert trainer.averages == {"": pytest.approx(0.5)}


def test_a_quarter_of_a_batch_takes_a_quarter_of_a_step() -> None:
    """Adam's first step is the learning rate times the gradient's sign, so the two differ by that factor exactly."""
    moves = []
    for full_batch in (1, 4):
        trainer = tiny_trainer(NO_KL, shaken=True, full_batch=full_batch)
        before = trainer.state().weights
        outcome = trainer.step([make_sample(trainer, 1)])
        after = trainer.state().weights
        moves.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
        assert outcome.metrics["lr"] == pytest.approx(1e-2 / full_batch)
    torch.testing.assert_close(moves[1], moves[0] / 4, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("epochs", [1, 3])
def test_without_a_hint_nothing_is_distilled_whatever_the_engine_recorded(epochs: int) -> None:
    """Teacher and student come from one scorer: an engine that rounds otherwise, or old weights, teach nothing."""
    trainer = tiny_trainer({**NO_KL, "opd_top_k": 0}, shaken=True, method=Method.OPD, epochs_per_batch=epochs)
    sample = make_sample(trainer, 1, reward=None, hint=SAME)
    drifted = with_logprobs(sample, [logprob - 0.4 for logprob in sample.logprobs])
    metrics = trainer.step([drifted]).metrics
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["logprob_gap"] == pytest.approx(0.4, rel=1e-3)


def test_what_is_said_of_the_weights_before_the_step_is_of_the_first_pass() -> None:
    """Losses, KL and entropy are what one pass finds; ratios and the clip are of all passes."""
    loss = {"entropy_coef": 0.1, "tis_cap": 2.0}
    once, often = (tiny_trainer(loss, shaken=True, epochs_per_batch=n, lr=5e-2) for n in (1, 4))
    first, all_passes = (trainer.step(mixed_samples(trainer)).metrics for trainer in (once, often))
    same = {"loss", "loss_policy", "loss_opd", "loss_kl", "loss_entropy", "kl", "entropy", "mismatch_weight"}
    assert same <= first.keys()
    assert {name: all_passes[name] for name in same} == {name: first[name] for name in same}
    assert all_passes["ratio_max"] > first["ratio_max"]
    assert all_passes["clip_fraction"] > 0.0


def test_gradients_that_somebody_switched_off_are_on_in_a_step() -> None:
    """A line that many evaluations begin with; it holds for the whole process."""
    trainer, other = tiny_trainer(), tiny_trainer()
    samples = [make_sample(trainer, i) for i in range(2)]
    with torch.set_grad_enabled(False):
        outcome = trainer.step(samples)
    assert outcome.refused is None
    assert outcome.metrics["grad_norm"] == other.step(samples).metrics["grad_norm"] > 0
