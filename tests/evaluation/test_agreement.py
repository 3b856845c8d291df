"""The judge's sign against the user's own verdict."""

import pytest

from openclaw_rl.evaluation.agreement import judge_agreement


def test_agreement_counted_by_hand() -> None:
    verdicts = {"a": 1, "b": -1, "c": -1, "d": 1, "e": -1, "unjudged": 1}
    scores = {"a": 0.4, "b": -1.0, "c": 0.2, "d": 0.0, "e": None, "not the user's": 1.0}
    agreement = judge_agreement(verdicts, scores)
    assert (agreement.judged, agreement.agreed, agreement.opposed, agreement.silent) == (5, 2, 1, 2)
    assert agreement.rate == pytest.approx(0.4)


def test_nothing_judged_is_no_rate() -> None:
    assert judge_agreement({"a": 1}, {}).rate is None
