"""Which of a turn's judgements counts: a person's, an environment's, a judge's; the judge's hint may stand beside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, and_, or_, select

from openclaw_rl.store.rollouts import unjudged
from openclaw_rl.store.schema import judgements, turns
from openclaw_rl.types import ENVIRONMENT, HUMAN, Judgement, JudgementOutcome

GIVEN = (HUMAN, ENVIRONMENT)
"""Kinds of judgements that are given to us, in their order of precedence; before those of any judge of ours."""


def decided() -> ColumnElement[bool]:
    """Whether a turn in `judging` has all the judgements it needs.

    A judge's since it came there; or a given one, and a judge's (of any time, for its hint) if there is a next state
    and a judge is asked.
    """
    of_turn = select(judgements.c.judgement_id).where(judgements.c.turn_id == turns.c.turn_id)
    by_judge, given = of_turn.where(judgements.c.kind.not_in(GIVEN)), of_turn.where(judgements.c.kind.in_(GIVEN))
    fresh = by_judge.where(judgements.c.created_at >= turns.c.state_since)
    return or_(
        fresh.exists(), and_(given.exists(), or_(turns.c.next_turn_id.is_(None), by_judge.exists(), unjudged()))
    )


def verdict_of(found: Sequence[Judgement]) -> Judgement:
    """The judgement that counts among those of one turn, the oldest first.

    The latest of a person, else the latest of the environment, else the latest of all. Whoever did not like an
    answer, and said no more, leaves the hint to the judge.
    """
    judged = [one for one in found if one.kind not in GIVEN]
    given = [one for kind in GIVEN for one in reversed(found) if one.kind == kind]
    if not given:
        return judged[-1]
    verdict = given[0]
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


def environment_judgement(turn_id: str, score: float, *, source: str, raw: float) -> Judgement:
    """A reward that an environment (`source`: which, or which of its checks) gave; `raw` is on its own scale."""
    return Judgement(
        turn_id=turn_id,
        kind=ENVIRONMENT,
        outcome=JudgementOutcome.SCORED,
        score=score,
        hint=None,
        prompt_version=ENVIRONMENT,
        latency_s=0.0,
        details={"source": source, "raw": raw},
        created_at=time.time(),
    )
