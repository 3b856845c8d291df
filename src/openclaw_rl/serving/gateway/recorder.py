"""Writes what the gateway serves into the store, on one thread, in the order in which it was asked to.

The client comes first: where the store fails, the turn is served all the same, counted as not recorded, and the
log says so. A caller that is cancelled does not take its write with it: what was queued is written.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from openclaw_rl.rollout.lineage import NO_LINEAGE, ContextHasher, context_hashes, resolve
from openclaw_rl.serving.gateway.versions import STORE_ERRORS
from openclaw_rl.store import Store
from openclaw_rl.types import Message, Request, Turn, TurnType

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A carrier that refuses its values, or a value that has no stored form, must not break the answer either.
RECORD_ERRORS = (*STORE_ERRORS, ValueError, TypeError, OverflowError)


def new_id() -> str:
    """An id that nobody can guess: 32 letters and digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A request as it arrived, before it is known where it belongs."""

    turn_id: str
    key_id: str
    client_session_id: str | None
    turn_type: TurnType
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    session_done: bool
    model: str
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A request that is in the record; `hasher` holds its messages, so that the answer is hashed on top."""

    request: Request
    hasher: ContextHasher


class Recorder:
    """The gateway's only writer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self.turns_not_recorded = 0

    async def open(self, arrival: Arrival) -> Opened | None:
        """Find where a request belongs and record it; None where the store failed."""
        try:
            return await self._run(lambda: self._open(arrival))
        except RECORD_ERRORS as error:
            self._not_recorded(arrival.turn_id, error)
            return None

    async def turn(self, turn: Turn, opened: Opened) -> bool:
        """Record an answer; once this returns True it is committed."""
        try:
            await self._run(
                lambda: self._store.turns.record_turn(turn, context_hash=opened.hasher.extended(turn.answer))
            )
        except RECORD_ERRORS as error:
            self._not_recorded(turn.turn_id, error)
            return False
        return True

    async def failure(self, turn_id: str, *, status: str, error: str) -> None:
        """Record that a request got no answer; `status` is failed or cancelled, `error` a code, never content."""
        try:
            await self._run(lambda: self._store.turns.record_failure(turn_id, status=status, error=error))
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

        return await self._run(end)

    async def close(self) -> None:
        """Write what is queued, then stop."""
        await asyncio.to_thread(self._executor.shutdown, wait=True)

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, job))

    def _open(self, arrival: Arrival) -> Opened:
        named = arrival.client_session_id
        session_id = None if named is None else self._store.sessions.find(arrival.key_id, named)
        hasher = ContextHasher()
        prefixes = context_hashes(arrival.messages, hasher)
        lineage = NO_LINEAGE
        if prefixes and (named is None or session_id is not None):
            digests = [digest for _, digest in prefixes]
            candidates = self._store.turns.find_parents(arrival.key_id, digests)
            lineage = resolve(arrival.messages, prefixes, candidates, session_id=session_id)
        request = Request(
            turn_id=arrival.turn_id,
            session_id=session_id or lineage.session_id or new_id(),
            key_id=arrival.key_id,
            parent_turn_id=lineage.parent_turn_id,
            turn_type=arrival.turn_type,
            messages=arrival.messages,
            tools=arrival.tools,
            new_messages=lineage.new_messages,
            session_done=arrival.session_done,
            model=arrival.model,
            ambiguous=lineage.ambiguous,
            created_at=arrival.created_at,
        )
        self._store.turns.record_request(request, client_session_id=named)
        return Opened(request=request, hasher=hasher)

    def _not_recorded(self, turn_id: str, error: Exception) -> None:
        self.turns_not_recorded += 1
        logger.error("turn %s was served but not recorded (%s)", turn_id, type(error).__name__)
