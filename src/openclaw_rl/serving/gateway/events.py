"""An engine's stream that has begun: its first event says that the engine took the request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from openclaw_rl.serving.engines.protocol import ChatEvent, PromptRead


class Events:
    """An engine's stream whose first event was already taken."""

    def __init__(self, *, first: ChatEvent, rest: AsyncIterator[ChatEvent]) -> None:
        self._first: ChatEvent | None = first
        self._rest = rest

    @property
    def prompt_ids(self) -> tuple[int, ...] | None:
        """The prompt's ids, which come first; None once they were taken, or where an engine does not tell them."""
        return self._first.prompt_ids or None if isinstance(self._first, PromptRead) else None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> ChatEvent:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await anext(self._rest)

    async def aclose(self) -> None:
        """Close the engine's stream, which cancels a generation that has not ended."""
        close = getattr(self._rest, "aclose", None)
        if close is not None:
            await close()
