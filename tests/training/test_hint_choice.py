from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.hint_choice import NOT_RENDERED, TOO_LONG, HintChooser, overlap, top_ids
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.teacher import LiveTeacher
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import Method, Sample
from tests.training.support import SAME, make_sample, teacher_prompt, tiny_config, tiny_model, tiny_trainer


def nothing() -> None:
    """No progress is wanted."""


class CountingTeacher(LiveTeacher):
    """Counts what it is asked to read."""

    reads = 0

    def read(
        self, sequences: Sequence[TokenSequence], *, length: int, max_tokens: int, progress: Callable[[], None]
    ) -> torch.Tensor:
        self.reads += 1
        return super().read(sequences, length=length, max_tokens=max_tokens, progress=progress)


def chooser(trainer: Trainer, *, top_k: int = 4, prompt: Any = teacher_prompt, limit: int = 256) -> HintChooser:
    return HintChooser(
        prompt=prompt,
        scorer=trainer.scorer,
        teacher=CountingTeacher(trainer.scorer),
        context_length=limit,
        top_k=top_k,
        max_tokens=64,
    )


def with_hints(trainer: Trainer, number: int, *hints: str, **values: Any) -> Sample:
    sample = make_sample(trainer, number, hint=hints[0], **values)
    return dataclasses.replace(sample, alternatives=hints[1:])


def test_overlap_by_hand() -> None:
    one = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert overlap(one, one.flip(-1)) == 1.0
    assert overlap(one, torch.tensor([[4, 9, 10, 11], [9, 10, 11, 12]])) == pytest.approx(1 / 8)
    assert overlap(one, torch.tensor([[2, 1, 9, 9], [5, 6, 7, 1]])) == pytest.approx((0.5 + 0.75) / 2)


def test_the_likeliest_tokens_do_not_depend_on_how_they_are_cut() -> None:
    trainer = tiny_trainer(shaken=True)
    hidden = torch.randn(130, 32, generator=torch.Generator().manual_seed(1))
    found = top_ids(hidden, trainer.scorer.log_distribution, 3)
    whole = trainer.scorer.log_distribution(hidden, torch.full((130,), 0.7)).topk(3, dim=-1).indices
    assert torch.equal(found, whole)


def test_the_candidate_closest_to_the_student_is_taken() -> None:
    """`SAME` changes nothing, so its overlap is 1, wherever it stands."""
    trainer = tiny_trainer(shaken=True)
    samples = [
        with_hints(trainer, 1, "some other words", SAME, "hm"),
        with_hints(trainer, 2, SAME, "some other words", response=9),
    ]
    choice = chooser(trainer).choose(samples, nothing)
    assert [sample.hints for sample in choice.samples] == [(SAME,), (SAME,)]
    assert choice.hinted["t1"]["candidate"] == 1
    assert choice.hinted["t2"]["candidate"] == 0
    overlaps = choice.hinted["t1"]["overlaps"]
    assert overlaps["1"] == 1.0
    assert max(overlaps["0"], overlaps["2"]) < 1.0


def test_overlaps_are_those_of_the_whole_distributions() -> None:
    trainer = tiny_trainer(shaken=True)
    sample = with_hints(trainer, 1, "some other words", "hm", response=9)
    found = chooser(trainer, top_k=5).choose([sample], nothing).hinted["t1"]["overlaps"]

    def top(prompt: tuple[int, ...]) -> torch.Tensor:
        sequence = TokenSequence(prompt_ids=prompt, response_ids=sample.tokens.response_ids, start=0)
        ids = trainer.scorer.score(sequence, Mode.TEACHER, top_k=5).top_ids
        assert ids is not None
        return ids

    student = top(sample.tokens.prompt_ids)
    for index, hint in enumerate(sample.hints):
        other = top(teacher_prompt(dataclasses.replace(sample, hint=hint, alternatives=())))
        shared = sum(len(set(a) & set(b)) for a, b in zip(student.tolist(), other.tolist(), strict=True))
        assert found[str(index)] == pytest.approx(shared / (5 * 9), abs=1e-6)


def test_one_candidate_costs_nothing() -> None:
    trainer = tiny_trainer()
    choosing = chooser(trainer)
    samples = [make_sample(trainer, 1, hint="hm"), make_sample(trainer, 2), make_sample(trainer, 3, hint=SAME)]
    choice = choosing.choose(samples, nothing)
    assert [sample.hint for sample in choice.samples] == ["hm", None, SAME]
    assert choice.hinted == {"t1": {"candidate": 0}, "t3": {"candidate": 0}}
    teacher = choosing._teacher
    assert isinstance(teacher, CountingTeacher)
    assert teacher.reads == 0


def test_without_top_k_the_longest_is_taken() -> None:
    trainer = tiny_trainer()
    choice = chooser(trainer, top_k=0).choose([with_hints(trainer, 1, "some words", SAME)], nothing)
    assert choice.samples[0].hints == ("some words",)
    assert choice.hinted == {"t1": {"candidate": 0}}


def test_candidates_that_do_not_fit_are_out() -> None:
    """The prompt has 5 tokens and the response 4; each letter of a hint is one more."""
    trainer = tiny_trainer()
    samples = [
        with_hints(trainer, 1, "abcdef", "abc"),
        with_hints(trainer, 2, "abcdef", "abcd"),
    ]
    for top_k in (0, 4):
        choosing = chooser(trainer, top_k=top_k, limit=12)
        choice = choosing.choose(samples, nothing)
        assert [sample.hints for sample in choice.samples[:2]] == [("abc",), ()]
        assert choice.hinted == {"t1": {"candidate": 1}}
        assert choice.excluded == {"t2": TOO_LONG}
        assert [choosing.obstacle(sample) for sample in samples] == [None, TOO_LONG]


def test_a_hint_that_the_template_refuses_is_excluded_by_name() -> None:
    def prompt(sample: Sample) -> tuple[int, ...]:
        if sample.hint == "odd":
            raise InvalidEngineRequest("no", param="messages")
        return teacher_prompt(sample)

    trainer = tiny_trainer()
    choosing = chooser(trainer, prompt=prompt)
    samples = [with_hints(trainer, 1, "odd"), with_hints(trainer, 2, "odd", "hm")]
    choice = choosing.choose(samples, nothing)
    assert [sample.hints for sample in choice.samples] == [(), ("hm",)]
    assert choice.excluded == {"t1": NOT_RENDERED}
    assert choosing.obstacle(make_sample(trainer, 3)) is None


# --- in a step ---------------------------------------------------------------------------------------------


def test_a_step_records_who_read_which_hint() -> None:
    trainer = tiny_trainer(shaken=True)
    samples = [make_sample(trainer, 0), make_sample(trainer, 1, hint="hm")]
    outcome = trainer.step(samples)
    assert outcome.teacher == {"scored_by": "base", "hinted": {"t1": {"candidate": 0}}, "excluded": {}}
    assert trainer.step(samples).teacher["scored_by"] == "policy-v1"
    trainer.restore(trainer.state(), weights_version=1)  # version 2 was rejected
    assert trainer.step(samples).teacher["scored_by"] == "policy-v1"
    assert trainer.step([make_sample(trainer, 0)]).teacher == {}


def test_a_step_trains_on_the_chosen_hint() -> None:
    """Distillation under `SAME` alone has nothing to teach; so it must have been `SAME` that was read."""
    trainer = Trainer(
        config=tiny_config({"kl_coef": 0.0, "baseline": "none"}, method=Method.OPD),
        model=tiny_model(),
        base_path="tiny",
        teacher_prompt=teacher_prompt,
        overlap_top_k=4,
    )
    outcome = trainer.step([with_hints(trainer, 1, "some other words", SAME, reward=None)])
    assert outcome.teacher["hinted"]["t1"]["candidate"] == 1
    assert outcome.metrics["grad_norm"] == pytest.approx(0.0, abs=1e-5)
    trainer = tiny_trainer({"kl_coef": 0.0, "baseline": "none"}, method=Method.OPD)
    outcome = trainer.step([with_hints(trainer, 1, "some other words", SAME, reward=None)])
    assert outcome.metrics["grad_norm"] > 1e-3


def test_a_reward_is_trained_without_the_hint_that_does_not_fit() -> None:
    trainer = tiny_trainer({"baseline": "none"})
    sample = make_sample(trainer, 1, prompt=250, response=6, hint="hm")
    assert trainer.usable.obstacle(sample) is None
    outcome = trainer.step([sample])
    assert outcome.teacher == {"scored_by": "base", "hinted": {}, "excluded": {"t1": TOO_LONG}}
    assert outcome.metrics["opd_share"] == 0.0
    assert outcome.metrics["loss_policy"] == pytest.approx(-1.0, abs=1e-3)
