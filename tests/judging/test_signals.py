"""Signals as an addition to a score: none by default, bounded, and never a score where there is none."""

from __future__ import annotations

import pytest

from openclaw_rl.config import SignalWeights
from openclaw_rl.judging.signals import by_signals_alone, weighed
from openclaw_rl.types import JudgementOutcome, Signal, SignalKind, Turn
from tests.builders import make_judgement, make_turn

WEIGHTS = SignalWeights(regenerated=-0.5, edited=-0.25)


def turn(*kinds: SignalKind) -> Turn:
    return make_turn(signals=tuple(Signal(kind=kind, by_turn_id="t2", created_at=1.0) for kind in kinds))


BOTH = turn(SignalKind.REGENERATED, SignalKind.EDITED, SignalKind.REGENERATED)


def test_without_signals_nothing_changes() -> None:
    judgement = make_judgement(score=1.0)
    assert weighed(judgement, turn(), WEIGHTS) is judgement


def test_by_default_signals_are_named_and_weigh_nothing() -> None:
    judgement = weighed(make_judgement(score=1.0, hint="x"), BOTH, SignalWeights())
    assert (judgement.score, judgement.hint) == (1.0, "x")
    assert judgement.details == {"signals": ["edited", "regenerated"]}


@pytest.mark.parametrize(("score", "result"), [(1.0, 0.25), (0.0, -0.75), (-1.0, -1.0)])
def test_each_kind_adds_its_weight_once(score: float, result: float) -> None:
    assert weighed(make_judgement(score=score), BOTH, WEIGHTS).score == result


@pytest.mark.parametrize("outcome", [JudgementOutcome.TIE, JudgementOutcome.FAILED])
def test_no_score_stays_none(outcome: JudgementOutcome) -> None:
    assert weighed(make_judgement(outcome=outcome), BOTH, WEIGHTS).score is None


def test_signals_alone() -> None:
    judgement = by_signals_alone(BOTH, WEIGHTS)
    assert (judgement.score, judgement.kind, judgement.hint) == (-0.75, "signals", None)
    assert by_signals_alone(BOTH, SignalWeights(regenerated=-1.0, edited=-1.0)).score == -1.0
