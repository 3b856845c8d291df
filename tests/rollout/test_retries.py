from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.rollout.retries import find_retry
from openclaw_rl.types import Exchange, Judgement, RetryDemonstration, TokenRecord, Turn, TurnState
from tests.builders import make_judgement, make_request, make_turn, tool, user


def _turn(turn_id: str, parent: str | None, prompt: int, response: int, **values: Any) -> Turn:
    tokens = TokenRecord(prompt_ids=(prompt,), response_ids=(response,), logprobs=(-1.0,), versions=(0,))
    new = (user("Too long: one sentence."),) if parent else ()
    request = make_request(turn_id, parent_turn_id=parent, new_messages=new)
    return make_turn(request=request, tokens=tokens, **values)


def _tried(
    turn: Turn, next_turn_id: str | None, judgement: Judgement | None, state: TurnState = TurnState.SAMPLED
) -> Exchange:
    said = (user("Too long: one sentence."),)
    turn = make_turn(request=turn.request, tokens=turn.tokens, state=state, next_state=said)
    return Exchange(turn=turn, next_turn_id=next_turn_id, judgement=judgement)


FIRST, SECOND, THIRD = _turn("t1", None, 10, 11), _turn("t2", "t1", 20, 21), _turn("t3", "t2", 30, 31)
YES = 1.0


def _corrected(turn_id: str) -> Judgement:
    return make_judgement(turn_id, score=-1.0, hint="One sentence.")


def test_the_accepted_answer_demonstrates_the_prompt_without_the_correction() -> None:
    tried = {"t1": _tried(FIRST, "t2", _corrected("t1"))}
    search = find_retry(SECOND, make_judgement("t2", YES), tried.get)
    assert not search.undecided
    assert search.demonstration == RetryDemonstration(
        turn_id="t2", response_ids=(21,), prompt_turn_id="t1", prompt_ids=(10,)
    )


def test_after_two_corrections_it_demonstrates_the_first_prompt() -> None:
    tried = {"t1": _tried(FIRST, "t2", _corrected("t1")), "t2": _tried(SECOND, "t3", _corrected("t2"))}
    search = find_retry(THIRD, make_judgement("t3", YES), tried.get)
    assert search.demonstration == RetryDemonstration(
        turn_id="t3", response_ids=(31,), prompt_turn_id="t1", prompt_ids=(10,)
    )


def test_the_row_of_corrections_ends_at_an_accepted_answer() -> None:
    tried = {
        "t1": _tried(FIRST, "t2", make_judgement("t1", YES)),
        "t2": _tried(SECOND, "t3", _corrected("t2")),
    }
    search = find_retry(THIRD, make_judgement("t3", YES), tried.get)
    assert search.demonstration is not None
    assert search.demonstration.prompt_turn_id == "t2"


@pytest.mark.parametrize("score", [-1.0, 0.0])
def test_an_answer_that_was_not_accepted_is_none(score: float) -> None:
    tried = {"t1": _tried(FIRST, "t2", _corrected("t1"))}
    assert find_retry(SECOND, make_judgement("t2", score), tried.get).demonstration is None


@pytest.mark.parametrize(
    "before",
    [
        make_judgement("t1", YES, hint="One sentence."),
        make_judgement("t1", 0.0, hint="One sentence."),
        make_judgement("t1", -1.0),
        None,
    ],
    ids=["accepted", "neutral", "turned down without saying how", "never judged"],
)
def test_without_a_correction_before_it_is_none(before: Judgement | None) -> None:
    state = TurnState.SAMPLED if before else TurnState.AWAITING_NEXT_STATE
    search = find_retry(SECOND, make_judgement("t2", YES), {"t1": _tried(FIRST, "t2", before, state)}.get)
    assert (search.demonstration, search.undecided) == (None, False)


def test_the_feedback_must_have_come_with_this_very_answer() -> None:
    tried = {"t1": _tried(FIRST, "another branch", _corrected("t1"))}
    assert find_retry(SECOND, make_judgement("t2", YES), tried.get).demonstration is None


def test_a_tools_error_is_no_correction() -> None:
    turn = make_turn(request=FIRST.request, tokens=FIRST.tokens, next_state=(tool("error: no such file"),))
    tried = {"t1": Exchange(turn=turn, next_turn_id="t2", judgement=_corrected("t1"))}
    assert find_retry(SECOND, make_judgement("t2", YES), tried.get).demonstration is None


def test_a_first_try_that_is_with_the_judge_leaves_it_undecided() -> None:
    tried = {"t1": _tried(FIRST, "t2", None, TurnState.JUDGING)}
    search = find_retry(SECOND, make_judgement("t2", YES), tried.get)
    assert search.undecided
    assert search.demonstration is None


def test_a_turn_that_opened_its_conversation_is_none() -> None:
    nobody: dict[str, Exchange] = {}
    assert find_retry(FIRST, make_judgement("t1", YES), nobody.get).demonstration is None
