"""Writes what the gateway serves into the store, on one thread, in the order in which it was asked to.

The client comes first: where the store fails, the turn is served all the same (or, with `rollout.on_store_failure =
"refuse"`, not begun), counted by reason, and the log says so; nobody waits for a record that is down (`guard`). A
caller that is cancelled does not take its write with it: what was queued is written.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from openclaw_rl.config import RolloutConfig
from openclaw_rl.rollout.attempts import classify_attempt, signals_shown
from openclaw_rl.rollout.client_rules import ClientRules, session_hint
from openclaw_rl.rollout.lineage import NO_LINEAGE, ContextHasher, Lineage, context_hashes, resolve, stem_hash
from openclaw_rl.serving.gateway.guard import StoreDown, StoreGuard
from openclaw_rl.serving.gateway.reward import Reward
from openclaw_rl.store import Store
from openclaw_rl.store.feedback import Rated
from openclaw_rl.store.outage import NOT_RECORDED, REFUSED, STORE_ERRORS, outage_of
from openclaw_rl.store.rows import Fingerprint
from openclaw_rl.store.verdicts import environment_judgement
from openclaw_rl.types import Judgement, Message, Request, SignalKind, Turn, TurnState, TurnType

logger = logging.getLogger(__name__)

# A carrier that refuses its values, or a value that has no stored form, must not break the answer either.
RECORD_ERRORS = (StoreDown, *STORE_ERRORS, ValueError, TypeError, OverflowError)
GAVE_UP = ("failed", "not_recorded")
"""How a request ends in the record whose answer was given and could not be written."""


def new_id() -> str:
    """An id that nobody can guess: 32 letters and digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A request as it arrived, before it is known where it belongs. `turn_type` None: the client did not say."""

    turn_id: str
    key_id: str
    client_session_id: str | None
    turn_type: TurnType | None
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    session_done: bool
    model: str
    retry_count: int = 0
    idempotency_key: str | None = None
    prompt_cache_key: str | None = None
    owner: str = ""
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A request that is in the record; `hasher` holds its messages, so that the answer is hashed on top."""

    request: Request
    hasher: ContextHasher


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a request stands among those before it."""

    session_id: str
    retry_of: str | None
    sibling_of: str | None
    signals: tuple[tuple[SignalKind, str], ...]


class Recorder:
    """The gateway's only writer."""

    def __init__(
        self,
        store: Store,
        config: RolloutConfig | None = None,
        *,
        untrainable: Callable[[Turn], bool] = lambda _turn: False,
    ) -> None:
        """`untrainable`: whether the rollout loop will exclude a turn for good, at which it has not looked yet."""
        self._store = store
        self._untrainable = untrainable
        self._config = config or RolloutConfig()
        self._rules = ClientRules(self._config)
        # Requests that may be in the record without an end there: they leave only after the commit of their end, for
        # what ran in a transaction may yet be undone.
        self._open_rows: set[str] = set()
        self._ends: dict[str, tuple[str, str]] = {}  # how those ended whose end could not be written
        self._predecessor_done = True
        self.guard = StoreGuard(store, self._recover)

    @property
    def refuses(self) -> bool:
        """Whether what cannot be recorded is not to be served."""
        return self._config.on_store_failure == "refuse"

    @property
    def turns_not_recorded(self) -> int:
        """How many turns were served since the start and are not in the record."""
        return sum(number for name, number in self.guard.lost.items() if name.startswith(NOT_RECORDED))

    async def start(self) -> None:
        """Fail what a killed gateway left open: at once, or before anything is recorded once the record is back."""
        self._predecessor_done = False
        await self.guard.probe()

    async def open(self, arrival: Arrival) -> Opened | None:
        """Find where a request belongs and record it; None where the store failed."""
        turn_id = arrival.turn_id
        try:
            return await self.guard.run(lambda: self._open(arrival), partial(self._opened_late, turn_id))
        except RECORD_ERRORS as error:
            if not (isinstance(error, StoreDown) and error.undecided):
                self._open_rows.discard(turn_id)
            self._lose(REFUSED if self.refuses else NOT_RECORDED, turn_id, error)
            return None

    async def turn(self, turn: Turn, opened: Opened) -> bool:
        """Record an answer; once this returns True it is committed."""
        try:
            await self.guard.run(lambda: self._turn(turn, opened), partial(self._turn_late, turn.turn_id))
        except RECORD_ERRORS as error:
            if not (isinstance(error, StoreDown) and error.undecided):
                self._turn_lost(turn.turn_id, error)
            return False
        self._open_rows.discard(turn.turn_id)
        return True

    async def failure(self, turn_id: str, *, status: str, error: str) -> None:
        """Record that a request got no answer; `status` is failed or cancelled, `error` a code, never content."""
        end = (status, error)
        try:
            await self.guard.run(lambda: self._end(turn_id, end))
        except RECORD_ERRORS as problem:
            self._end_later(turn_id, end)
            logger.error("the failure of %s was not recorded (%s)", turn_id, reason_of(problem))
        else:
            self._open_rows.discard(turn_id)

    async def end_session(self, key_id: str, name: str, owner: str = "") -> bool:
        """End the session that this owner's client calls `name`; False where it has none.

        Raises:
            StoreDown, SQLAlchemyError, sqlite3.Error, OSError: if the store failed.
        """

        def end() -> bool:
            session_id = self._store.sessions.find(key_id, name, owner)
            return session_id is not None and self._store.sessions.end(key_id, session_id, "ended_by_client")

        return await self.guard.run(end)

    async def feedback(self, judgement: Judgement, *, key_id: str | None) -> Rated | None:
        """Keep a person's judgement of a turn of this key (None: of any); None where there is no such turn.

        Raises:
            StoreDown, SQLAlchemyError, sqlite3.Error, OSError: if the store failed.
        """
        return await self.guard.run(lambda: self._rated(judgement, key_id))

    async def reward(
        self, reward: Reward, *, session: str, key_id: str | None, owner: str | None = None, apart: bool = False
    ) -> Rated | None:
        """Keep an environment's reward in a session of this key (None: of any); None where there is no such turn.

        With `owner`, in a session of that user's only. `apart`: users have sessions of their own.

        Raises:
            SeveralUsers: it is not said whose session, and there are several of that name.
            StoreDown, SQLAlchemyError, sqlite3.Error, OSError: if the store failed.
        """

        def record() -> Rated | None:
            turn_id = self._store.feedback.turn_in(session, reward.turn_id, key_id=key_id, owner=owner, apart=apart)
            if turn_id is None:
                return None
            judgement = environment_judgement(turn_id, reward.score, source=reward.source, raw=reward.raw)
            return self._rated(judgement, key_id)

        return await self.guard.run(record)

    async def close(self) -> None:
        """Write what is queued, then stop."""
        if self.guard.problem is not None or self.guard.unsaved:
            await self.guard.probe()
        await self.guard.close()

    # --- on the guard's thread -------------------------------------------------------------------------------

    def _rated(self, judgement: Judgement, key_id: str | None) -> Rated | None:
        rated = self._store.feedback.record(judgement, key_id=key_id)
        if rated is None or rated.state is not TurnState.SERVED:
            return rated
        turn = self._store.turns.get(rated.turn_id)  # the rollout loop has not looked at it yet
        return replace(rated, never=turn is not None and self._untrainable(turn))

    def _recover(self) -> None:
        """Bring the record up to date, once it can be written again."""
        if not self._predecessor_done:
            failed = self._store.turns.fail_open(error="gateway_killed")
            self._predecessor_done = True
            if failed:
                logger.warning("%d requests were open when the gateway before this one ended; they failed", failed)
        for turn_id, end in list(self._ends.items()):
            self._end(turn_id, end)
            self._open_rows.discard(turn_id)
            self._ends.pop(turn_id, None)

    def _end(self, turn_id: str, end: tuple[str, str]) -> None:
        status, error = end
        self._store.turns.record_failure(turn_id, status=status, error=error)

    def _end_later(self, turn_id: str, end: tuple[str, str]) -> None:
        if turn_id in self._open_rows:
            self._ends[turn_id] = end

    def _opened_late(self, turn_id: str, error: Exception | None) -> None:
        if error is None:  # its answer went, or goes, without a record
            self._end_later(turn_id, GAVE_UP)

    def _turn(self, turn: Turn, opened: Opened) -> None:
        self._store.turns.record_turn(turn, context_hash=opened.hasher.extended(turn.answer))

    def _turn_late(self, turn_id: str, error: Exception | None) -> None:
        if error is None:
            self._open_rows.discard(turn_id)
            logger.warning("turn %s was recorded after its answer had ended", turn_id)
        else:
            self._turn_lost(turn_id, error)

    def _turn_lost(self, turn_id: str, error: Exception) -> None:
        self._lose(NOT_RECORDED, turn_id, error)
        self._end_later(turn_id, GAVE_UP)

    def _lose(self, counter: str, turn_id: str, error: Exception) -> None:
        reason = reason_of(error)
        self.guard.lose(f"{counter}{reason}")
        what = (
            "was refused, because it could not be recorded" if counter == REFUSED else "was served but not recorded"
        )
        logger.error("turn %s %s (%s)", turn_id, what, reason)

    def _open(self, arrival: Arrival) -> Opened:
        """The steps from a request to its place in the record."""
        named = arrival.client_session_id
        session_id = None if named is None else self._store.sessions.find(arrival.key_id, named, arrival.owner)
        hasher = ContextHasher()
        plain = self._rules.plain(arrival.messages)
        prefixes = context_hashes(plain, hasher)
        fingerprint = Fingerprint(
            body_hash=hasher.hexdigest(),
            stem_hash=stem_hash(plain, prefixes),
            session_hint=session_hint(arrival.messages, arrival.prompt_cache_key),
            idempotency_key=arrival.idempotency_key,
        )
        new_session = named is not None and session_id is None
        lineage = NO_LINEAGE if new_session else self._lineage(arrival, plain, prefixes, session_id, fingerprint)
        place = self._place(arrival, lineage, session_id, fingerprint, new_session=new_session)
        side_rule = self._rules.side_rule(plain) if arrival.turn_type is None else None
        request = Request(
            turn_id=arrival.turn_id,
            session_id=place.session_id,
            key_id=arrival.key_id,
            parent_turn_id=lineage.parent_turn_id,
            turn_type=arrival.turn_type or (TurnType.MAIN if side_rule is None else TurnType.SIDE),
            messages=arrival.messages,
            tools=arrival.tools,
            new_messages=lineage.new_messages if lineage.parent_turn_id else (),
            session_done=arrival.session_done,
            model=arrival.model,
            ambiguous=lineage.ambiguous,
            retry_of=place.retry_of,
            sibling_of=place.sibling_of,
            side_rule=side_rule,
            owner=arrival.owner,
            created_at=arrival.created_at,
        )
        main = request.turn_type is TurnType.MAIN
        self._store.turns.record_request(
            request, client_session_id=named, fingerprint=fingerprint, signals=place.signals if main else ()
        )
        self._open_rows.add(arrival.turn_id)
        return Opened(request=request, hasher=hasher)

    def _lineage(
        self,
        arrival: Arrival,
        plain: Sequence[Message | None],
        prefixes: Sequence[tuple[int, str]],
        session_id: str | None,
        fingerprint: Fingerprint,
    ) -> Lineage:
        """Where the messages belong. The last answer among them decides nearly always, so it is asked for first."""
        digests = [digest for _, digest in reversed(prefixes)]
        for asked in filter(None, (digests[:1], digests[1:])):
            candidates = self._store.turns.find_parents(arrival.key_id, asked, arrival.owner)
            found = resolve(plain, prefixes, candidates, session_id=session_id, session_hint=fingerprint.session_hint)
            if found is not NO_LINEAGE:
                return found
        return NO_LINEAGE

    def _place(
        self,
        arrival: Arrival,
        lineage: Lineage,
        session_id: str | None,
        fingerprint: Fingerprint,
        *,
        new_session: bool,
    ) -> Place:
        """Which session a request belongs to, what it repeats, and what that shows."""
        known = session_id or lineage.session_id
        body, stem = fingerprint.body_hash or "", fingerprint.stem_hash or ""
        since = arrival.created_at - self._config.idle_timeout_s  # an older attempt is of a session that is over
        same_stem = [] if known is None else self._store.lineage.same_stem(known, stem)
        earlier = [one for one in same_stem if one.body_hash == body and one.created_at >= since]
        if known is None and not new_session:
            earlier = self._store.lineage.same_body(arrival.key_id, body, since=since, owner=arrival.owner)
        attempt = classify_attempt(
            earlier,
            retry_count=arrival.retry_count,
            idempotency_key=arrival.idempotency_key,
            session_known=known is not None,
        )
        return Place(
            session_id=known or attempt.session_id or new_id(),
            retry_of=attempt.retry_of,
            sibling_of=attempt.sibling_of,
            signals=tuple(signals_shown(attempt, earlier, same_stem, body)),
        )


def reason_of(error: Exception) -> str:
    """Why something is not in the record, in a word for counters and the log."""
    outage = error.outage if isinstance(error, StoreDown) else outage_of(error)
    return type(error).__name__ if outage is None else outage.value
