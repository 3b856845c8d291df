"""An engine in the test's own process: it says what the test tells it to, word by word, and notes what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    Finished,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.types import FinishReason, Message, PolicyVersion


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer: `text` word by word, then `tool_calls`; `error` after the text instead of an end."""

    text: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    error: EngineError | None = None
    first_error: EngineError | None = None
    pause_s: float = 0.0
    extra_completion_tokens: int = 0
    finish_reason: FinishReason | None = None


def echo(request: ChatRequest) -> Said:
    """The last message again."""
    return Said(text=f"You said: {request.messages[-1]['content']}")


def call(index: int, name: str, arguments: str, call_id: str = "call0a1") -> list[dict[str, Any]]:
    """A tool call as an engine streams it: its name, then its arguments in two pieces."""
    half = len(arguments) // 2
    first = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments[:half]}}
    return [{"index": index, **first}, {"index": index, "function": {"arguments": arguments[half:]}}]


@dataclass
class FakeEngine:
    """Implements the `Engine` protocol."""

    say: Callable[[ChatRequest], Said] = echo
    capabilities: EngineCapabilities = field(
        default_factory=lambda: EngineCapabilities(
            token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True
        )
    )
    asked: list[ChatRequest] = field(default_factory=list)
    closed_early: int = 0
    loads: list[int] = field(default_factory=list)
    down: bool = False
    instance: int = 0
    loaded: set[int] = field(default_factory=set)
    refuse_load: bool = False

    def restart(self) -> None:
        """A new process: nothing is loaded."""
        self.instance += 1
        self.loaded.clear()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Say it."""
        if self.down:
            raise EngineUnavailable("nobody there")
        if request.version and request.version not in self.loaded:
            raise UnknownVersion("not loaded", param="model")
        self.asked.append(request)
        said = self.say(request)
        if said.first_error is not None:
            raise said.first_error
        complete = False
        try:
            yield PromptRead(prompt_ids=(1, 2, 3))
            count = 0
            for event in _events(said, request.version):
                await asyncio.sleep(said.pause_s)
                count += len(event.ids)
                yield event
            complete = True
            if said.error is not None:
                raise said.error
            reason = said.finish_reason or (FinishReason.TOOL_CALLS if said.tool_calls else FinishReason.STOP)
            counted = count + said.extra_completion_tokens
            yield Finished(finish_reason=reason, prompt_tokens=3, completion_tokens=counted)
        finally:
            self.closed_early += not complete

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Not asked for by the gateway."""
        raise EngineError("not asked for by the gateway")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Not asked for by the gateway."""
        raise EngineError("not asked for by the gateway")

    async def load_version(self, version: PolicyVersion) -> None:
        """Load it."""
        if self.refuse_load:
            raise EngineError("broken adapter")
        self.loads.append(version.version)
        self.loaded.add(version.version)

    async def unload_version(self, version: int) -> None:
        """Let go of it."""
        self.loaded.discard(version)

    async def health(self) -> EngineHealth:
        """How it is."""
        if self.down:
            raise EngineUnavailable("nobody there")
        return EngineHealth(
            ready=True,
            instance_id=f"instance{self.instance}",
            loaded_versions=(0, *sorted(self.loaded)),
            active_requests=0,
            queued_requests=0,
            context_length=2048,
        )

    async def close(self) -> None:
        """Nothing to let go of."""


def _events(said: Said, version: int) -> Sequence[TokensDrawn]:
    words = [word + " " for word in said.text.split(" ")] if said.text else []
    if words:
        words[-1] = words[-1][:-1]
    spoken = [_drawn(10 + index, version, text=word) for index, word in enumerate(words)]
    called = [_drawn(500 + index, version, tool_calls=(delta,)) for index, delta in enumerate(said.tool_calls)]
    return [*spoken, *called]


def _drawn(token: int, version: int, **what: Any) -> TokensDrawn:
    return TokensDrawn(ids=(token,), logprobs=(-token / 100,), versions=(version,), **what)
