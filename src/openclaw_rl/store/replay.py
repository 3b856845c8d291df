"""Turns that are judged once more by another judge, or another prompt, after the fact."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import select

from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.lineage import signals_of
from openclaw_rl.store.rows import judgement_from, judgement_values, turn_from
from openclaw_rl.store.schema import judgements, turns
from openclaw_rl.store.transitions import OPEN_REASONS, move_turn, withdraw_sample
from openclaw_rl.store.turns import turn_rows
from openclaw_rl.store.verdicts import GIVEN
from openclaw_rl.types import Judgement, Turn, TurnState


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A turn that has been judged, and what the judge said last; None where only people or signals have spoken."""

    turn: Turn
    latest: Judgement | None


class ReplayStore:
    """Reads judged turns, and records new judgements of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def judged_since(self, since: float, *, limit: int | None = None) -> list[Judged]:
        """Turns with a next state, served at or after `since`, that no judge has before it now; the oldest first."""
        query = (
            turn_rows()
            .where(
                turns.c.served_at >= since,
                turns.c.next_turn_id.is_not(None),
                turns.c.state.in_([TurnState.SAMPLED.value, TurnState.EXCLUDED.value]),
                select(judgements.c.turn_id).where(judgements.c.turn_id == turns.c.turn_id).exists(),
            )
            .order_by(turns.c.served_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = list(connection.execute(query).mappings())
            ids = [row["turn_id"] for row in rows]
            shown = signals_of(connection, ids)
            said = judgements.select().where(judgements.c.turn_id.in_(ids), judgements.c.kind.not_in(GIVEN))
            latest = {
                row["turn_id"]: judgement_from(row)
                for row in connection.execute(said.order_by(judgements.c.judgement_id)).mappings()
            }
            found = [turn_from(row, shown.get(row["turn_id"], ())) for row in rows]
            return [Judged(turn=turn, latest=latest.get(turn.turn_id)) for turn in found]

    def record(self, judgement: Judgement) -> bool:
        """Keep one more judgement; True if it takes effect, False where it is recorded only.

        A sample that no trainer has claimed is withdrawn, and its turn settled anew by this judgement; so is a turn
        that was excluded for a reason that a judgement can undo. What is being trained, or was, stays as it is.
        Nothing is kept of a turn that was deleted meanwhile.
        """
        with self._database.write() as connection:
            query = select(turns.c.state, turns.c.reason).where(turns.c.turn_id == judgement.turn_id)
            row = connection.execute(query).first()
            if row is None:  # deleted with its session while it was being judged
                count(connection, "judgements_of_deleted_turns")
                return False
            again = row.reason in OPEN_REASONS or (
                row.state == TurnState.SAMPLED.value and withdraw_sample(connection, judgement.turn_id)
            )
            values = judgement_values(judgement)
            if again:
                move_turn(connection, judgement.turn_id, TurnState.JUDGING, judge_lease_until=None, judge_attempts=0)
                values["created_at"] = max(judgement.created_at, time.time())  # fresh: not before the move
            connection.execute(judgements.insert().values(values))
            count(connection, "judgements_replayed")
            return again
