"""When the gate asks the base to answer anew: a model that answers as it is told, and whose questions are counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.gate import Readings
from openclaw_rl.training.gatekeeper import Gatekeeper
from openclaw_rl.training.scorer import Generated, Mode
from openclaw_rl.types import Sample
from tests.training.support import make_sample, teacher_prompt, tiny_trainer

CONFIG = GateConfig(probes=1, max_nats_below_told_base=0.8, max_nats_below_base=1.6)


class ToldScorer:
    """The base finds its own answers as likely as `base` says, and those of the new weights as `under_base` says."""

    def __init__(self) -> None:
        self.base, self.under_base = -1.0, -1.0
        self.tokens = {Mode.TEACHER: 8, Mode.REFERENCE: 8}
        self.base_asked: list[tuple[int, ...]] = []

    def generate(self, prompts: Sequence[Sequence[int]], mode: Mode, *, max_tokens: int) -> list[Generated]:
        if mode is Mode.REFERENCE:
            self.base_asked += [tuple(prompt) for prompt in prompts]
        ids = tuple(range(1, self.tokens[mode] + 1))
        return [Generated(ids=ids, logprobs=(self.base,) * len(ids)) for _ in prompts]

    def logprobs(self, sequences: Sequence[TokenSequence], mode: Mode, **_: Any) -> list[torch.Tensor]:
        assert mode is Mode.REFERENCE
        return [torch.full((len(sequence.response_ids),), self.under_base) for sequence in sequences]


def keeper_of(scorer: ToldScorer, context_length: int = 256) -> Gatekeeper:
    return Gatekeeper(
        scorer=cast(Any, scorer),
        told_prompt=teacher_prompt,
        config=CONFIG,
        context_length=context_length,
        max_tokens=256,
    )


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [make_sample(tiny_trainer(), 0)]


def below(keeper: Gatekeeper, samples: list[Sample], told: str) -> float | None:
    """How far below the base the reading says that the new weights are."""
    readings = keeper._in_their_own_words(Readings(loss=0.0, weights_finite=True), samples, told)
    return readings.nats_below_told_base if told else readings.nats_below_base


def test_where_the_hints_do_not_fit_the_base_is_asked_without_them(samples: list[Sample]) -> None:
    """The prompt has 5 tokens and an answer 32: 39 have room for a hint of two letters, not of three."""
    scorer = ToldScorer()
    scorer.under_base = -1.3
    keeper = keeper_of(scorer, context_length=39)
    sound = Readings(loss=0.0, weights_finite=True)
    told = keeper._in_their_own_words(sound, samples, "hm")
    assert told.nats_below_told_base == pytest.approx(0.3)
    assert told.nats_below_base is None
    untold = keeper._in_their_own_words(sound, samples, "hmm")
    assert untold.nats_below_told_base is None
    assert untold.nats_below_base == pytest.approx(0.3)
    assert scorer.base_asked[-1] == samples[0].tokens.prompt_ids
    assert untold.repetition == 0.0
    assert told.metrics()["gate_probes_skipped"] == untold.metrics()["gate_probes_skipped"] == 0.0


def test_a_template_that_refuses_the_hints_is_asked_without_them(samples: list[Sample]) -> None:
    def refuse(_sample: Sample) -> tuple[int, ...]:
        raise InvalidEngineRequest("no system message here", param="messages", code="invalid_messages")

    keeper = keeper_of(ToldScorer())
    keeper._told_prompt = refuse
    readings = keeper._in_their_own_words(Readings(loss=0.0, weights_finite=True), samples, "hm")
    assert readings.nats_below_base == pytest.approx(0.0)


def test_where_no_prompt_fits_nothing_is_asked_and_it_is_said(
    samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    scorer = ToldScorer()
    with caplog.at_level(logging.WARNING):
        readings = keeper_of(scorer, context_length=36)._in_their_own_words(
            Readings(loss=0.0, weights_finite=True), samples, "hm"
        )
    assert scorer.base_asked == []
    assert readings.metrics() == {"gate_probes_skipped": 1.0}
    assert "language and repetition are not read" in caplog.text


@pytest.mark.parametrize("told", ["hm", ""])
def test_the_base_answers_at_every_fourth_step_while_it_is_well(samples: list[Sample], told: str) -> None:
    scorer = ToldScorer()
    keeper = keeper_of(scorer)
    asked = []
    for _ in range(9):
        assert below(keeper, samples, told) == pytest.approx(0.0)
        asked.append(len(scorer.base_asked))
    assert asked == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_nothing_is_refused_by_what_the_base_said_of_other_hints(samples: list[Sample]) -> None:
    """The wish changes to one that the base itself is less sure of: by the old reading the step would be refused."""
    scorer = ToldScorer()
    keeper = keeper_of(scorer)
    assert below(keeper, samples, "hm") == pytest.approx(0.0)
    scorer.base, scorer.under_base = -1.9, -2.0
    assert below(keeper, samples, "be brief") == pytest.approx(0.1)  # and not 1.0
    assert scorer.base_asked[-1] == teacher_prompt_of(samples[0], "be brief")
    assert len(scorer.base_asked) == 2


def teacher_prompt_of(sample: Sample, hint: str) -> tuple[int, ...]:
    return sample.tokens.prompt_ids + tuple(ord(letter) % 61 for letter in hint)


def test_an_old_reading_is_trusted_up_to_half_the_bound(samples: list[Sample]) -> None:
    scorer = ToldScorer()
    keeper = keeper_of(scorer)
    below(keeper, samples, "hm")
    scorer.base = -0.5
    scorer.under_base = -1.39
    assert below(keeper, samples, "hm") == pytest.approx(0.39)
    scorer.under_base = -1.41
    assert below(keeper, samples, "hm") == pytest.approx(0.91)
    assert len(scorer.base_asked) == 2
    scorer.under_base = -0.6
    counted = []
    for _ in range(4):  # from then on it is the fourth step again
        below(keeper, samples, "hm")
        counted.append(len(scorer.base_asked))
    assert counted == [2, 2, 2, 3]


def test_a_restored_gatekeeper_asks_when_the_one_before_it_would_have(samples: list[Sample]) -> None:
    scorer, later = ToldScorer(), ToldScorer()
    one, other = keeper_of(scorer), keeper_of(later)
    for step in range(7):
        scorer.base = later.base = -1.0 - step / 100
        other.restore(one.state())
        before = len(scorer.base_asked)
        assert below(other, samples, "hm") == below(one, samples, "hm")
        assert other.state() == one.state()
        assert len(later.base_asked) == len(scorer.base_asked) >= before


def test_answers_far_shorter_than_the_bases_are_warned_of(
    samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = tiny_trainer(gate={"probes": 1, "max_repetition": 1.0})
    scorer = ToldScorer()
    scorer.tokens = {Mode.TEACHER: 2, Mode.REFERENCE: 20}
    words = keeper_of(scorer)._in_their_own_words(Readings(loss=0.0, weights_finite=True), samples, "hm")
    assert (words.mean_tokens, words.base_tokens) == (2.0, 20.0)

    class Short(Gatekeeper):
        """Reads what it is given."""

        def _in_their_own_words(self, *_: Any) -> Readings:
            return words

    trainer._gatekeeper = Short(
        scorer=trainer.scorer, told_prompt=teacher_prompt, config=CONFIG, context_length=256, max_tokens=256
    )
    with caplog.at_level(logging.WARNING):
        trainer.step(samples)
    assert "2.0 tokens on average, those of the base 20.0" in caplog.text
