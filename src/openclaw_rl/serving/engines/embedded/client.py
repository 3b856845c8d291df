"""The adapter to the engine's process, over HTTP on loopback: the embedded one, and all that speak the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from openclaw_rl import fast_json
from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded import wire
from openclaw_rl.serving.engines.embedded.connections import ConnectFailed, ConnectionLost, Connections, Exchange
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    Finished,
    ScoreRequest,
    ScoreResult,
)
from openclaw_rl.supervision.ports import base_url
from openclaw_rl.types import Message, PolicyVersion

_CONNECT_S = 5.0
_QUICK_S = 10.0
_HTTP_ERRORS = (ConnectFailed, ConnectionLost, TimeoutError)
_CAPABILITIES = EngineCapabilities(
    token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True, full_weights=True
)


class EmbeddedEngine:
    """Implements `Engine` for the gateway, the judge and the trainer; for one event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        request_timeout_s: float = 600.0,
        load_timeout_s: float = 120.0,
        capabilities: EngineCapabilities = _CAPABILITIES,
    ) -> None:
        """`capabilities`: those of whatever the process speaks for."""
        address = urlsplit(base_url)
        if address.scheme != "http" or address.hostname is None or address.port is None:
            raise ValueError(f"an engine is at http://HOST:PORT, not {base_url}")
        self._capabilities = capabilities
        self._request_timeout_s = request_timeout_s
        self._load_timeout_s = load_timeout_s
        self._connections = Connections(address.hostname, address.port, connect_timeout_s=_CONNECT_S)

    @classmethod
    def from_config(
        cls, config: Config, url: str | None = None, *, capabilities: EngineCapabilities = _CAPABILITIES
    ) -> EmbeddedEngine:
        """The engine of this deployment, or its replica at `url`; `engine.port` must be a real port by now."""
        return cls(
            url or base_url(config.engine.host, config.engine.port),
            request_timeout_s=config.serving.request_timeout_s,
            load_timeout_s=config.engine.load_timeout_s,
            capabilities=capabilities,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the engine behind the process can do."""
        return self._capabilities

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator closes the connection, which cancels. The deadline is between two events.

        Raises:
            EngineError: and its subclasses, as the engine says; EngineUnavailable when it cannot be reached.
        """
        body = fast_json.dumps(wire.chat_request_to_json(request))
        finished = False
        try:
            async with self._connections.exchange("POST", "/chat", body, timeout_s=self._request_timeout_s) as answer:
                await _check(answer)
                async for lines in _lines(answer):
                    for event in wire.events_from_lines(lines):
                        finished = isinstance(event, Finished)
                        yield event
        except _HTTP_ERRORS as error:
            raise _unreachable(error) from error
        if not finished:
            raise EngineError("the engine ended the answer without finishing it")

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that the engine would see."""
        body = {"messages": messages, "tools": tools, "generation_prompt": generation_prompt}
        return tuple((await self._post("/render", body))["ids"])

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of given tokens."""
        body = await self._post("/score", wire.score_request_to_json(request), self._request_timeout_s)
        return ScoreResult(logprobs=tuple(body["logprobs"]))

    async def load_version(self, version: PolicyVersion) -> None:
        """Load a version; returns when requests may ask for it."""
        await self._post("/versions/load", {"version": version.version, "path": version.path}, self._load_timeout_s)

    async def unload_version(self, version: int) -> None:
        """Unload a version as soon as no request uses it; returns at once."""
        await self._post("/versions/unload", {"version": version})

    async def health(self) -> EngineHealth:
        """Whether it is ready, and what it has loaded.

        Raises:
            EngineUnavailable: it cannot be reached.
        """
        return wire.health_from_json(await self._ask("GET", "/health", b"", _QUICK_S))

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    async def _post(self, path: str, body: Mapping[str, Any], timeout_s: float = _QUICK_S) -> dict[str, Any]:
        return await self._ask("POST", path, fast_json.dumps(body), timeout_s)

    async def _ask(self, method: str, path: str, body: bytes, timeout_s: float) -> dict[str, Any]:
        try:
            async with self._connections.exchange(method, path, body, timeout_s=timeout_s) as answer:
                await _check(answer)
                return wire.parse_object(await answer.read_all())
        except _HTTP_ERRORS as error:
            raise _unreachable(error) from error


async def _lines(answer: Exchange) -> AsyncIterator[list[bytes]]:
    """The lines of an NDJSON body: each time those that have become whole."""
    rest = b""
    while data := await answer.read():
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _check(answer: Exchange) -> None:
    if answer.status != HTTPStatus.OK:
        raise wire.error_from_json(wire.parse_object(await answer.read_all()))


def _unreachable(error: Exception) -> EngineError:
    """Never reached, or refused: worth another try. Lost in the middle of an answer, or too late: not the same."""
    if isinstance(error, ConnectFailed):
        return EngineUnavailable("the engine cannot be reached")
    if isinstance(error, TimeoutError):
        return EngineError("the engine took too long")
    return EngineUnavailable("the connection to the engine was lost")
