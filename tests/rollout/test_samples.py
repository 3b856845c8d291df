from __future__ import annotations

import dataclasses
import itertools

import pytest

from openclaw_rl.rollout.samples import build_sample
from openclaw_rl.types import ExclusionReason, JudgementOutcome, Method, RetryDemonstration, Sample
from tests.builders import make_judgement, make_turn

SCORED, TIE, FEW, FAILED = (
    JudgementOutcome.SCORED,
    JudgementOutcome.TIE,
    JudgementOutcome.TOO_FEW_VALID,
    JudgementOutcome.FAILED,
)
HINT = "Keep it short."

Expected = tuple[float | None, str | None] | str
"""(reward, hint) of the sample, or the reason why there is none."""


def row(binary_rl: Expected, opd: Expected, combine: Expected) -> dict[Method, Expected]:
    return {Method.BINARY_RL: binary_rl, Method.OPD: opd, Method.COMBINE: combine}


# (outcome, score, hint): what each method makes of it.
TABLE: dict[tuple[JudgementOutcome, float | None, str | None], dict[Method, Expected]] = {
    (SCORED, 1.0, HINT): row((1.0, None), (None, HINT), (1.0, HINT)),
    (SCORED, -1.0, HINT): row((-1.0, None), (None, HINT), (-1.0, HINT)),
    (SCORED, 0.0, HINT): row("no_signal", (None, HINT), (None, HINT)),
    (SCORED, 1.0, None): row((1.0, None), "no_signal", (1.0, None)),
    (SCORED, -1.0, None): row((-1.0, None), "no_signal", (-1.0, None)),
    (SCORED, 0.0, None): row("no_signal", "no_signal", "no_signal"),
    (TIE, None, HINT): row("judge_tie", (None, HINT), (None, HINT)),
    (TIE, None, None): row("judge_tie", "judge_tie", "judge_tie"),
    (FEW, None, HINT): row("too_few_valid_votes", (None, HINT), (None, HINT)),
    (FEW, None, None): row("too_few_valid_votes", "too_few_valid_votes", "too_few_valid_votes"),
    (FAILED, None, HINT): row("judge_failed", (None, HINT), (None, HINT)),
    (FAILED, None, None): row("judge_failed", "judge_failed", "judge_failed"),
}


def test_the_table_is_complete() -> None:
    scores = [(SCORED, score) for score in (1.0, -1.0, 0.0)] + [(o, None) for o in (TIE, FEW, FAILED)]
    assert set(TABLE) == {(*pair, hint) for pair, hint in itertools.product(scores, (HINT, None))}
    assert all(set(methods) == set(Method) for methods in TABLE.values())


@pytest.mark.parametrize(("judged", "method"), list(itertools.product(TABLE, Method)))
def test_dispatch(judged: tuple[JudgementOutcome, float | None, str | None], method: Method) -> None:
    outcome, score, hint = judged
    expected = TABLE[judged][method]
    turn = make_turn()
    made = build_sample(turn, make_judgement(score=score, hint=hint, outcome=outcome), method, now=5.0)
    if isinstance(expected, str):
        assert made is ExclusionReason(expected)
        return
    assert isinstance(made, Sample)
    assert (made.reward, made.hint) == expected
    assert (made.turn_id, made.tokens, made.messages) == (turn.turn_id, turn.tokens, turn.request.messages)
    assert (made.created_at, made.retry) == (5.0, None)


@pytest.mark.parametrize("method", Method)
def test_every_candidate_goes_with_the_sample(method: Method) -> None:
    judgement = dataclasses.replace(make_judgement(score=-1.0, hint=HINT), alternatives=("Be brief.", "Shorter."))
    made = build_sample(make_turn(), judgement, method, now=0.0)
    assert isinstance(made, Sample)
    assert made.hints == (() if method is Method.BINARY_RL else (HINT, "Be brief.", "Shorter."))


def test_a_score_between_keeps_its_size() -> None:
    made = build_sample(make_turn(), make_judgement(score=-0.25), Method.BINARY_RL, now=0.0)
    assert isinstance(made, Sample)
    assert made.reward == -0.25


@pytest.mark.parametrize("method", Method)
def test_an_accepted_retry_is_a_signal_by_itself(method: Method) -> None:
    retry = RetryDemonstration(turn_id="t1", response_ids=(7, 8), prompt_turn_id="t0", prompt_ids=(1,))
    made = build_sample(make_turn(), make_judgement(score=0.0), method, retry=retry, now=0.0)
    assert isinstance(made, Sample)
    assert (made.reward, made.hint, made.retry) == (None, None, retry)


def test_a_judgement_of_another_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="t2"):
        build_sample(make_turn("t1"), make_judgement("t2"), Method.COMBINE, now=0.0)
