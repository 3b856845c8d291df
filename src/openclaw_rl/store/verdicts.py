"""Which of a turn's judgements counts: a person's beats a judge's, and a judge's hint may stand beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, and_, or_, select

from openclaw_rl.store.schema import judgements, turns
from openclaw_rl.types import HUMAN, Judgement, JudgementOutcome


def decided() -> ColumnElement[bool]:
    """Whether a turn in `judging` has all the judgements it needs.

    A judge's since it came there; or a person's, and a judge's (of any time, for its hint) if there is a next state.
    """
    of_turn = select(judgements.c.judgement_id).where(judgements.c.turn_id == turns.c.turn_id)
    by_judge, by_person = of_turn.where(judgements.c.kind != HUMAN), of_turn.where(judgements.c.kind == HUMAN)
    fresh = by_judge.where(judgements.c.created_at >= turns.c.state_since)
    return or_(fresh.exists(), and_(by_person.exists(), or_(turns.c.next_turn_id.is_(None), by_judge.exists())))


def verdict_of(found: Sequence[Judgement]) -> Judgement:
    """The judgement that counts among those of one turn, the oldest first.

    The latest of a person, else the latest of all. A person who did not like an answer, and said no more, leaves the
    hint to the judge.
    """
    human = [one for one in found if one.kind == HUMAN]
    judged = [one for one in found if one.kind != HUMAN]
    if not human:
        return judged[-1]
    verdict = human[-1]
    if verdict.hint is None and judged and verdict.score is not None and verdict.score <= 0:
        return replace(verdict, hint=judged[-1].hint, alternatives=judged[-1].alternatives)
    return verdict


def human_judgement(turn_id: str, score: float, comment: str | None) -> Judgement:
    """A person's verdict. A comment on a bad answer says what should have been done: it is the hint."""
    said = comment.strip() if comment else ""
    return Judgement(
        turn_id=turn_id,
        kind=HUMAN,
        outcome=JudgementOutcome.SCORED,
        score=score,
        hint=said if said and score < 0 else None,
        prompt_version=HUMAN,
        latency_s=0.0,
        details={"comment": said} if said else {},
        created_at=time.time(),
    )
