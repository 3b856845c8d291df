"""What the gateway, the judge and the trainer ask of any engine, and nothing more.

An engine generates from chat messages with exact token ids and log-probabilities, scores given tokens, and loads
policy versions each under a name of its own. An adapter that cannot do something says so in `capabilities`; it
does not imitate it. Adapters raise `EngineError` (or a subclass), whose `status` is what a client should see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.types import FinishReason, Message, PolicyVersion, SamplingParams


class EngineError(Exception):
    """The engine could not do what was asked."""

    status = 502
    code = "engine_error"
    retry_after_s: float | None = None
    """When it is worth another try, where the engine says so."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached, or is still loading; worth another try."""

    status = 503
    code = "engine_unavailable"


class EngineOverloaded(EngineError):
    """The engine's queue is full; worth another try later."""

    status = 429
    code = "engine_overloaded"


class UnreadableVersion(EngineError):
    """The system does not let the engine read a version's files. They may be sound: not the version is at fault."""

    code = "version_unreadable"


class InvalidEngineRequest(EngineError):
    """The request itself is at fault; `param` names the field, as the client knows it."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class UnknownVersion(InvalidEngineRequest):
    """The version asked for is not loaded."""

    status = 404
    code = "model_not_found"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCapabilities:
    """What an engine can do; checked against the recipe at start-up."""

    token_ids: bool
    logprobs: bool
    lora_versions: bool
    score: bool
    tools: bool
    full_weights: bool = False
    """Whether a version may be a whole model (`policy_files.weights_of`), not only an adapter."""
    base_beside: bool = True
    """Whether the base can still be asked while a whole model is in service. Not where models replace each other."""
    render: bool = True
    """Whether it sees what we render (`rendering`), and tells us; an upstream renders in its own way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """Generate one answer. `version` is the policy version to answer with, 0 the base."""

    request_id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: SamplingParams
    version: int
    session_id: str = ""
    """Of several replicas one gets all of a session, whose prefix is in its cache. Empty: any of them."""
    pinned: bool = False
    """The client named this version: no other may answer. Otherwise a replica that has not got it yet may answer with
    the one before (`serving.on_publish = "rolling"`), and says so in `PromptRead.version`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRead:
    """First event: the prompt's token ids as the engine sees them; empty where an upstream does not tell them."""

    prompt_ids: tuple[int, ...]
    version: int | None = None
    """The version that answers, where it is not the one asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensDrawn:
    """Tokens drawn since the last event, aligned, with the text that they completed (may be empty).

    `tool_calls` are OpenAI-style deltas, each with `index`. Text may be withheld (a stop string, a tool call);
    ids never are: the concatenation over all events is exactly what was sampled. `kept` goes with truncated sampling
    (`TokenRecord.kept`); None where nothing was cut, or where the engine does not tell.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    text: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    kept: tuple[tuple[int, ...] | None, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Last event: why it ended, and the engine's own count of tokens, None where it gives none."""

    finish_reason: FinishReason
    prompt_tokens: int | None
    completion_tokens: int | None


ChatEvent = PromptRead | TokensDrawn | Finished


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """Log-probabilities of given tokens. `ids` [T]; those from `start` on are scored (start >= 1)."""

    ids: tuple[int, ...]
    start: int
    version: int
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult:
    """`logprobs` [T - start], nats: logprobs[i] = log p(ids[start + i] | ids[: start + i])."""

    logprobs: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineHealth:
    """`instance_id` changes when the engine process was restarted, and its versions are gone with it."""

    ready: bool
    instance_id: str
    loaded_versions: tuple[int, ...]
    active_requests: int
    queued_requests: int
    context_length: int


class Engine(Protocol):
    """An engine adapter. All methods have deadlines of their own; none blocks the event loop."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do."""
        ...

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator cancels the generation."""
        ...

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that the engine would see for these messages."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score given tokens; the forward pass of generation, without drawing."""
        ...

    async def load_version(self, version: PolicyVersion) -> None:
        """Load a version under its own name; loading one that is loaded is a no-op."""
        ...

    async def unload_version(self, version: int) -> None:
        """Unload a version once no request uses it; unloading an absent one is a no-op."""
        ...

    async def health(self) -> EngineHealth:
        """Whether it is ready, and what it has loaded."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
