"""Accepted retries: a second try that the user accepted is a demonstration for the first prompt.

The user asks (T1), corrects the answer, and accepts the next one (T2). T2 answered a prompt that holds the
correction; its response is what T1 should have said *without* it, so it is also trained, by likelihood, under T1's
prompt. After several corrections in a row the demonstration is for the first prompt of the row.

When it is known: T2 is judged one exchange after T1, and T1's own sample may be trained by then. So the demonstration
rides on T2's sample. Each response is thus trained by ratio for its own prompt once, and demonstrates another
prompt at most once, in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.types import Exchange, Judgement, RetryDemonstration, Turn, TurnState


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySearch:
    """What the turns before an accepted one say. `undecided`: one of them is with the judge; ask again later."""

    demonstration: RetryDemonstration | None = None
    undecided: bool = False


def find_retry(accepted: Turn, judgement: Judgement, lookup: Callable[[str], Exchange | None]) -> RetrySearch:
    """Whether `accepted`, a turn judged by `judgement`, is an accepted retry, and of which prompt.

    `lookup` gives the exchange of a turn id. It is walked from parent to parent for as long as each was corrected
    and the turn after it answers that correction (a regenerated sibling's branch does not count).
    """
    if judgement.score is None or judgement.score <= 0:
        return RetrySearch()
    first: Turn | None = None
    current = accepted
    while (parent := _parent_of(current, lookup)) is not None and _answers_correction(parent, current):
        if parent.judgement is None and parent.turn.state is TurnState.JUDGING:
            return RetrySearch(undecided=True)
        if not was_corrected(parent):
            break
        first = current = parent.turn
    if first is None or not first.tokens.prompt_ids:  # an upstream did not tell them
        return RetrySearch()
    return RetrySearch(
        demonstration=RetryDemonstration(
            turn_id=accepted.turn_id,
            response_ids=accepted.tokens.response_ids,
            prompt_turn_id=first.turn_id,
            prompt_ids=first.tokens.prompt_ids,
        )
    )


def was_corrected(exchange: Exchange) -> bool:
    """Whether the user, in words, turned this answer down and said what to do better.

    A bad score alone is not enough: "no" and a new question asks for something else. Nor is a tool's error: what
    comes after it is the next thing to do, not a second try at the same.
    """
    judgement, next_state = exchange.judgement, exchange.turn.next_state
    if judgement is None or judgement.score is None or judgement.score >= 0 or judgement.hint is None:
        return False
    return bool(next_state) and all(message.get("role") == "user" for message in next_state or ())


def _answers_correction(parent: Exchange, turn: Turn) -> bool:
    """Whether `turn` answers what followed `parent`, at the first attempt or when that was tried again."""
    return parent.next_turn_id is not None and parent.next_turn_id in {turn.turn_id, turn.request.retry_of}


def _parent_of(turn: Turn, lookup: Callable[[str], Exchange | None]) -> Exchange | None:
    parent_id = turn.request.parent_turn_id
    return None if parent_id is None else lookup(parent_id)
