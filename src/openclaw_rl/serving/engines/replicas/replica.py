"""One of several engines: whether it is there, what it has loaded, and the answers that it is giving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    Engine,
    EngineError,
    EngineUnavailable,
    ScoreRequest,
    ScoreResult,
)
from openclaw_rl.types import PolicyVersion

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""How long it may take to say how it is."""
SERVERS_LOOK_S = 8.0
"""The same for a vLLM or SGLang, which is asked in turn: SGLang's scheduler answers between two steps."""
FAILURES_UNTIL_LOST = 2
"""One look may fail because the machine was busy. An engine that cannot be connected to is lost at once."""


class ReplicaHung(EngineUnavailable):
    """It is there, and has not answered when it was looked at: its answers are given up."""


class Replica:
    """An engine among others. Touched by one event loop only."""

    def __init__(self, url: str, engine: Engine, *, look_s: float = LOOK_S) -> None:
        self._look_s = look_s
        self.url = url
        self.engine = engine
        self.up = False
        self.looked_at = False
        self.problem = "not looked at yet"
        self.draining = False
        self.returned = False
        """It was away, or is new here, and has not got the version in service since."""
        self.loaded: frozenset[int] = frozenset()
        self.active = 0
        self.queued = 0
        self.context_length = 0
        self._instance: str | None = None
        self._failures = 0
        self._waits: set[asyncio.Timeout] = set()
        self._noted: set[int] = set()  # loaded since the look that is under way began: its answer may lack them

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may go there."""
        return self.up and not self.draining

    @property
    def doubtful(self) -> bool:
        """Whether it said nothing when it was last looked at; once is not enough to take it out."""
        return self._failures > 0

    @property
    def state(self) -> str:
        """For people."""
        if self.draining:
            return "draining" if self.up else f"draining; away: {self.problem}"
        return ("catching up" if self.returned else "ready") if self.up else f"away: {self.problem}"

    # --- looking -------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Find out how it is."""
        self._noted.clear()
        try:
            async with asyncio.timeout(self._look_s):
                health = await self.engine.health()
        except TimeoutError:
            self._missed("it does not answer", hung=True)
        except EngineUnavailable as error:
            self.lose(str(error))
        except EngineError as error:
            self._missed(str(error), hung=False)
        else:
            self._failures = 0
            if health.instance_id != self._instance:
                self._noted.clear()  # of which of the two that was is not known
            if not self.up or health.instance_id != self._instance:
                self.returned = True
            self._instance = health.instance_id
            self.up = health.ready
            self.problem = "" if health.ready else "it is loading the model"
            self.loaded = frozenset(health.loaded_versions) | self._noted  # the base only where it is there
            self.queued = health.queued_requests
            self.context_length = health.context_length
        self.looked_at = True

    def _missed(self, problem: str, *, hung: bool) -> None:
        self._failures += 1
        if self._failures < FAILURES_UNTIL_LOST:
            return
        self.lose(problem)
        for wait in self._waits if hung else ():
            wait.reschedule(asyncio.get_running_loop().time())

    def lose(self, problem: str) -> None:
        """Take it out until a look finds it well."""
        if self.up:
            logger.warning("the engine at %s is taken out: %s", self.url, problem)
        self.up = False
        self.problem = problem

    # --- asking --------------------------------------------------------------------------------------------

    async def answer(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Its events; what it was at is given up when it hangs.

        Raises:
            ReplicaHung: it was found to hang meanwhile.
            EngineError: as the engine says.
        """
        self.active += 1
        events = self.engine.chat(request)
        try:
            while (event := await self._next(events)) is not None:
                yield event
        finally:
            self.active -= 1
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _next(self, events: AsyncIterator[ChatEvent]) -> ChatEvent | None:
        async with self._given_up_when_hung():
            return await anext(events, None)

    @contextlib.asynccontextmanager
    async def _given_up_when_hung(self) -> AsyncIterator[None]:
        """What is waited for here can be ended from outside (`_missed`), and what waits elsewhere is not touched."""
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError as error:
            raise ReplicaHung("the engine hung") from error

    async def load(self, version: PolicyVersion) -> None:
        """Have it load a version; given up when it hangs.

        Raises:
            ReplicaHung: it was found to hang meanwhile.
            EngineError: as the engine says; one that cannot be reached is taken out.
        """
        try:
            async with self._given_up_when_hung():
                await self.engine.load_version(version)
        except EngineUnavailable as error:
            self.lose(str(error))
            raise
        self.loaded |= {version.version}
        self._noted.add(version.version)

    def forget(self, version: int) -> None:
        """It has that version no longer."""
        self.loaded -= {version}
        self._noted.discard(version)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score given tokens.

        Raises:
            EngineError: as the engine says; one that cannot be reached is taken out.
        """
        try:
            return await self.engine.score(request)
        except EngineUnavailable as error:
            self.lose(str(error))
            raise
