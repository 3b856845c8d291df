"""Writes what the gateway serves into the store, on one thread, in the order in which it was asked to.

The client comes first: where the store fails, the turn is served all the same, counted as not recorded, and the
log says so. A caller that is cancelled does not take its write with it: what was queued is written.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.config import RolloutConfig
from openclaw_rl.rollout.attempts import classify_attempt, signals_shown
from openclaw_rl.rollout.client_rules import ClientRules, session_hint
from openclaw_rl.rollout.lineage import NO_LINEAGE, ContextHasher, Lineage, context_hashes, resolve, stem_hash
from openclaw_rl.serving.gateway.versions import STORE_ERRORS
from openclaw_rl.serving.gateway.writer import Writer
from openclaw_rl.store import Store
from openclaw_rl.store.feedback import Rated
from openclaw_rl.store.rows import Fingerprint
from openclaw_rl.types import Judgement, Message, Request, SignalKind, Turn, TurnType

logger = logging.getLogger(__name__)

# A carrier that refuses its values, or a value that has no stored form, must not break the answer either.
RECORD_ERRORS = (*STORE_ERRORS, ValueError, TypeError, OverflowError)


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

    def __init__(self, store: Store, config: RolloutConfig | None = None) -> None:
        self._store = store
        self._config = config or RolloutConfig()
        self._rules = ClientRules(self._config)
        self._writer = Writer(store)
        self.turns_not_recorded = 0

    async def open(self, arrival: Arrival) -> Opened | None:
        """Find where a request belongs and record it; None where the store failed."""
        try:
            return await self._writer.run(lambda: self._open(arrival))
        except RECORD_ERRORS as error:
            self._not_recorded(arrival.turn_id, error)
            return None

    async def turn(self, turn: Turn, opened: Opened) -> bool:
        """Record an answer; once this returns True it is committed."""
        try:
            await self._writer.run(
                lambda: self._store.turns.record_turn(turn, context_hash=opened.hasher.extended(turn.answer))
            )
        except RECORD_ERRORS as error:
            self._not_recorded(turn.turn_id, error)
            return False
        return True

    async def failure(self, turn_id: str, *, status: str, error: str) -> None:
        """Record that a request got no answer; `status` is failed or cancelled, `error` a code, never content."""
        try:
            await self._writer.run(lambda: self._store.turns.record_failure(turn_id, status=status, error=error))
        except RECORD_ERRORS as problem:
            logger.error("the failure of %s was not recorded (%s)", turn_id, type(problem).__name__)

    async def end_session(self, key_id: str, name: str) -> bool:
        """End the session that this key's client calls `name`; False where it has none.

        Raises:
            SQLAlchemyError, sqlite3.Error, OSError: if the store failed.
        """

        def end() -> bool:
            session_id = self._store.sessions.find(key_id, name)
            return session_id is not None and self._store.sessions.end(key_id, session_id, "ended_by_client")

        return await self._writer.run(end)

    async def feedback(self, judgement: Judgement, *, key_id: str | None) -> Rated | None:
        """Keep a person's judgement of a turn of this key (None: of any); None where there is no such turn.

        Raises:
            SQLAlchemyError, sqlite3.Error, OSError: if the store failed.
        """
        return await self._writer.run(lambda: self._store.feedback.record(judgement, key_id=key_id))

    async def close(self) -> None:
        """Write what is queued, then stop."""
        await self._writer.close()

    def _open(self, arrival: Arrival) -> Opened:
        """The steps from a request to its place in the record."""
        named = arrival.client_session_id
        session_id = None if named is None else self._store.sessions.find(arrival.key_id, named)
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
            created_at=arrival.created_at,
        )
        main = request.turn_type is TurnType.MAIN
        self._store.turns.record_request(
            request, client_session_id=named, fingerprint=fingerprint, signals=place.signals if main else ()
        )
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
            candidates = self._store.turns.find_parents(arrival.key_id, asked)
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
            earlier = self._store.lineage.same_body(arrival.key_id, body, since=since)
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

    def _not_recorded(self, turn_id: str, error: Exception) -> None:
        self.turns_not_recorded += 1
        logger.error("turn %s was served but not recorded (%s)", turn_id, type(error).__name__)
