"""What people and environments say about answers outside the conversation, and what it puts before a judge again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select, update

from openclaw_rl.judging.signals import BY_SIGNALS
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.rows import judgement_values
from openclaw_rl.store.schema import judgements, requests, samples, sessions, signals, turns
from openclaw_rl.store.transitions import OPEN_REASONS, move_turn, withdraw_sample
from openclaw_rl.store.verdicts import GIVEN
from openclaw_rl.types import HUMAN, Judgement, SampleState, SignalKind, TurnState, TurnType

NO_JUDGES = (*GIVEN, BY_SIGNALS)
"""Kinds of judgements that no judge made by reading a next state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """The turn that was rated: its state, and whether its sample was claimed or trained already (too late).

    `never`: the turn can become no sample at all, whatever is said of it. `repeated`: the same was said before by the
    same source, so that nothing was recorded.
    """

    turn_id: str
    state: TurnState
    too_late: bool
    never: bool = False
    repeated: bool = False

    @property
    def recorded_only(self) -> bool:
        """Whether nothing comes of it but that it is in the record."""
        return self.too_late or self.never


class SeveralUsers(LookupError):
    """Sessions of several users are called so, and nobody said whose is meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeAgreement:
    """Of the turns that a person and a judge have judged: where they have one sign (+, 0, -), and where the opposite.

    `unscored` are those on which the judge came to no score: they agree with nobody.
    """

    compared: int
    agreed: int
    opposed: int
    unscored: int

    @property
    def rate(self) -> float | None:
        """The share of agreement, None where there is nothing to compare."""
        return self.agreed / self.compared if self.compared else None


def agreement_of(by_person: Mapping[str, float], by_judge: Mapping[str, float | None]) -> JudgeAgreement:
    """Compare scores by turn; turns that only one of the two has judged do not count."""
    pairs = [(by_person[turn_id], by_judge[turn_id]) for turn_id in by_person.keys() & by_judge.keys()]
    signs = [(sign_of(person), None if judge is None else sign_of(judge)) for person, judge in pairs]
    return JudgeAgreement(
        compared=len(signs),
        agreed=sum(person == judge for person, judge in signs),
        opposed=sum(judge is not None and person * judge < 0 for person, judge in signs),
        unscored=sum(judge is None for _, judge in signs),
    )


class FeedbackStore:
    """Given judgements and signals. The rollout loop acts on them; recording them moves nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, judgement: Judgement, *, key_id: str | None) -> Rated | None:
        """Keep a given judgement of a turn of this key (None: of any key); None where there is no such turn.

        Whoever says the same again, not knowing whether it was heard, changes nothing.
        """
        with self._database.write() as connection:
            owned = select(turns.c.state, turns.c.reason, samples.c.state.label("sample")).outerjoin(
                samples, samples.c.turn_id == turns.c.turn_id
            )
            owned = owned.where(turns.c.turn_id == judgement.turn_id)
            if key_id is not None:
                owned = owned.where(turns.c.key_id == key_id)
            row = connection.execute(owned).first()
            if row is None:
                return None
            repeated = _said_before(connection, judgement)
            if not repeated:
                connection.execute(judgements.insert().values(judgement_values(judgement)))
                count(connection, "feedback" if judgement.kind == HUMAN else f"feedback_{judgement.kind}")
            return Rated(
                turn_id=judgement.turn_id,
                state=TurnState(row.state),
                too_late=row.sample is not None and row.sample != SampleState.READY.value,
                never=row.state == TurnState.EXCLUDED.value and row.reason not in OPEN_REASONS,
                repeated=repeated,
            )

    def turn_in(
        self, session: str, turn_id: str | None, *, key_id: str | None, owner: str | None = None, apart: bool = False
    ) -> str | None:
        """A turn of the session that this key's client calls so (None: of any key), or that has it as our id.

        With `owner`, a session of that user's only. `apart`: users have sessions of their own (`policies.per`), and
        nobody is to be rewarded for what another of them was answered.

        The one named, or the last main turn; None where there is none.

        Raises:
            SeveralUsers: neither user nor turn is named, and several users call a session so.
        """
        named = (sessions.c.client_session_id == session) | (sessions.c.session_id == session)
        query = (
            select(turns.c.turn_id)
            .join(sessions, sessions.c.session_id == turns.c.session_id)
            .join(requests, requests.c.turn_id == turns.c.turn_id)
            .where(named, turns.c.turn_id == turn_id if turn_id else requests.c.turn_type == TurnType.MAIN.value)
            .order_by(turns.c.served_at.desc())
        )
        if key_id is not None:
            query = query.where(turns.c.key_id == key_id)
        if owner is not None:
            query = query.where(sessions.c.owner == owner)
        with self._database.read() as connection:
            if apart and owner is None and not turn_id:
                whose = query.with_only_columns(sessions.c.owner).order_by(None).distinct().limit(2)
                if len(connection.execute(whose).all()) > 1:
                    raise SeveralUsers(session)
            return connection.execute(query.limit(1)).scalar()

    def take(self, *, limit: int = 256) -> int:
        """Put turns with new given judgements before the judge (again); how many.

        A turn is looked at once for each piece of feedback. Nothing moves where the answer could never be trained, or
        where its sample is claimed or trained.
        """
        latest = (
            select(judgements.c.turn_id, func.max(judgements.c.judgement_id).label("newest"))
            .where(judgements.c.kind.in_(GIVEN))
            .group_by(judgements.c.turn_id)
            .subquery()
        )
        query = (
            select(turns.c.turn_id, turns.c.state, turns.c.reason, latest.c.newest)
            .join(latest, latest.c.turn_id == turns.c.turn_id)
            .where(latest.c.newest > func.coalesce(turns.c.feedback_seen, 0), turns.c.state != TurnState.SERVED.value)
            .limit(limit)
        )
        with self._database.read() as connection:  # asked often, seldom true: spare the gateway a write lock
            if connection.execute(query.limit(1)).first() is None:
                return 0
        with self._database.write() as connection:
            rows = connection.execute(query).all()
            for row in rows:
                seen = update(turns).where(turns.c.turn_id == row.turn_id).values(feedback_seen=row.newest)
                connection.execute(seen)
                undecided = row.state == TurnState.AWAITING_NEXT_STATE.value or row.reason in OPEN_REASONS
                if undecided or (row.state == TurnState.SAMPLED.value and withdraw_sample(connection, row.turn_id)):
                    move_turn(connection, row.turn_id, TurnState.JUDGING, judge_lease_until=None, judge_attempts=0)
            return len(rows)

    def take_signals(self, kinds: Sequence[SignalKind], *, limit: int = 256) -> int:
        """Put turns before the judge that have no next state but one of these signals; how many."""
        silent = (turns.c.state == TurnState.AWAITING_NEXT_STATE.value) | (turns.c.reason == "no_next_state")
        shown = signals.select().where(
            signals.c.turn_id == turns.c.turn_id, signals.c.kind.in_([kind.value for kind in kinds])
        )
        query = select(turns.c.turn_id).where(silent, turns.c.next_turn_id.is_(None), shown.exists()).limit(limit)
        with self._database.write() as connection:
            found = list(connection.execute(query).scalars())
            for turn_id in found:
                move_turn(connection, turn_id, TurnState.JUDGING, judge_lease_until=None, judge_attempts=0)
            return len(found)

    def agreement(self) -> JudgeAgreement:
        """How often the latest judgement of a judge has the sign of the latest one of a person, turn by turn."""
        query = select(judgements.c.turn_id, judgements.c.kind, judgements.c.score).order_by(
            judgements.c.judgement_id
        )
        rated = select(judgements.c.turn_id).where(judgements.c.kind == HUMAN)
        by_person: dict[str, float] = {}
        by_judge: dict[str, float | None] = {}
        with self._database.read() as connection:
            for row in connection.execute(query.where(judgements.c.turn_id.in_(rated))):
                if row.kind == HUMAN:
                    by_person[row.turn_id] = row.score
                elif row.kind not in NO_JUDGES:
                    by_judge[row.turn_id] = row.score
        return agreement_of(by_person, by_judge)

    def keep_one(self, *, limit: int = 64) -> list[str]:
        """The last turn with a score of 0 of each ended session in which nothing became a sample.

        Sessions that still have turns on their way are left alone.
        """
        under_way = [TurnState.SERVED, TurnState.AWAITING_NEXT_STATE, TurnState.JUDGING, TurnState.SAMPLED]
        other = turns.alias()
        busy = select(other.c.turn_id).where(
            other.c.session_id == turns.c.session_id, other.c.state.in_([state.value for state in under_way])
        )
        query = (
            select(turns.c.turn_id, turns.c.session_id)
            .join(sessions, sessions.c.session_id == turns.c.session_id)
            .where(sessions.c.ended_at.is_not(None), turns.c.reason == "no_signal", _scored_zero(), ~busy.exists())
            .where(~turns.c.reconstructed)  # a reward is nothing for it
            .order_by(turns.c.served_at)
            .limit(limit)
        )
        with self._database.read() as connection:
            last = {row.session_id: row.turn_id for row in connection.execute(query)}
        return list(last.values())


def sign_of(score: float) -> int:
    """1, 0 or -1."""
    return (score > 0) - (score < 0)


def _said_before(connection: Connection, judgement: Judgement) -> bool:
    """Whether the latest judgement of this kind and source says the same."""
    query = select(judgements.c.score, judgements.c.hint, judgements.c.details).where(
        judgements.c.turn_id == judgement.turn_id, judgements.c.kind == judgement.kind
    )
    source = judgement.details.get("source")
    rows = connection.execute(query.order_by(judgements.c.judgement_id.desc()))
    latest = next((row for row in rows if row.details.get("source") == source), None)
    return latest is not None and tuple(latest) == (judgement.score, judgement.hint, dict(judgement.details))


def _scored_zero() -> ColumnElement[bool]:
    zero = select(judgements.c.judgement_id).where(judgements.c.turn_id == turns.c.turn_id, judgements.c.score == 0.0)
    return zero.exists()
