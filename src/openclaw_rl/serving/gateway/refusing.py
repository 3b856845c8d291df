"""What the earlier system did while it updated its weights: turn everybody away, and cut what was being written.

Kept for comparison (`serving.on_update = "refuse"`): an engine that behaves so, around one that need not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    ScoreRequest,
    ScoreResult,
)
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.types import Message, PolicyVersion

logger = logging.getLogger(__name__)

PUBLISH = "publish"
"""The name of the trainer's spans."""
POLL_S = 0.05


class UpdateInProgress(EngineError):
    """A version is being published, and nobody is served meanwhile."""

    status = 503
    code = "weight_update"

    def __init__(self) -> None:
        super().__init__("The policy is being updated; try again shortly.")


class RefusingEngine:
    """Implements `Engine`: answers are refused, or cut, while `updating()`; everything else goes through."""

    def __init__(self, engine: Engine, updating: Callable[[], bool], *, poll_s: float = POLL_S) -> None:
        """`updating` may block for a moment: it is asked in a thread, every `poll_s`, from the first request on."""
        self._engine = engine
        self._updating = updating
        self._poll_s = poll_s
        self._paused = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @property
    def inner(self) -> Engine:
        """The engine itself."""
        return self._engine

    @property
    def capabilities(self) -> EngineCapabilities:
        """The engine's own."""
        return self._engine.capabilities

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate, unless and until an update begins.

        Raises:
            UpdateInProgress: one is going on.
            EngineError: as the engine says.
        """
        if self._watching is None:
            await self._look()
            self._watching = asyncio.create_task(self._watch())
        if self._paused.is_set():
            raise UpdateInProgress
        pausing = asyncio.create_task(self._paused.wait())
        try:
            async with aclosing(cast(Any, self._engine.chat(request))) as events:
                while True:
                    event = await _before(pausing, anext(events, None))
                    if event is None:
                        return
                    yield event
        finally:
            pausing.cancel()

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The engine's own."""
        return await self._engine.render(messages, tools, generation_prompt=generation_prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """The engine's own."""
        return await self._engine.score(request)

    async def load_version(self, version: PolicyVersion) -> None:
        """The engine's own."""
        await self._engine.load_version(version)

    async def unload_version(self, version: int) -> None:
        """The engine's own."""
        await self._engine.unload_version(version)

    async def health(self) -> EngineHealth:
        """The engine's own."""
        return await self._engine.health()

    async def close(self) -> None:
        """Stop watching, and close the engine."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._engine.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self._look()

    async def _look(self) -> None:
        try:
            updating = await asyncio.to_thread(self._updating)
        except STORE_ERRORS as error:
            logger.warning("the record cannot say whether a version is being published (%s)", type(error).__name__)
            return
        if updating:
            self._paused.set()
        else:
            self._paused.clear()


async def _before(pausing: asyncio.Task[Any], coming: Awaitable[ChatEvent | None]) -> ChatEvent | None:
    """What comes, if it comes before the pause.

    Raises:
        UpdateInProgress: the pause came first.
    """
    event = asyncio.ensure_future(coming)
    try:
        await asyncio.wait({event, pausing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not event.done():  # the generator must not be in the middle of anything when it is closed
            event.cancel()
            await asyncio.wait({event})
    if event.cancelled():
        raise UpdateInProgress
    return event.result()
