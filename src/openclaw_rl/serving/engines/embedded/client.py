"""The adapter to the embedded engine's process, over HTTP on loopback. The scripted engine speaks the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded import wire
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
_CAPABILITIES = EngineCapabilities(token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True)


class EmbeddedEngine:
    """Implements `Engine` for the gateway, the judge and the trainer."""

    def __init__(
        self,
        base_url: str,
        *,
        request_timeout_s: float = 600.0,
        load_timeout_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._request_timeout = httpx.Timeout(request_timeout_s, connect=_CONNECT_S)
        self._load_timeout = httpx.Timeout(load_timeout_s, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.AsyncClient(
            base_url=base_url,
            timeout=httpx.Timeout(_QUICK_S, connect=_CONNECT_S),
            limits=limits,
            transport=transport,
            trust_env=False,
        )

    @classmethod
    def from_config(cls, config: Config) -> EmbeddedEngine:
        """The engine of this deployment; `engine.port` must be a real port by now."""
        return cls(
            base_url(config.engine.host, config.engine.port),
            request_timeout_s=config.serving.request_timeout_s,
            load_timeout_s=config.engine.load_timeout_s,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """All of them."""
        return _CAPABILITIES

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator closes the connection, which cancels. The deadline is between two events.

        Raises:
            EngineError: and its subclasses, as the engine says; EngineUnavailable when it cannot be reached.
        """
        body = wire.chat_request_to_json(request)
        finished = False
        try:
            async with self._http.stream("POST", "/chat", json=body, timeout=self._request_timeout) as response:
                await _check(response)
                async for line in response.aiter_lines():
                    event = wire.event_from_json(_parse(line))
                    finished = isinstance(event, Finished)
                    yield event
        except httpx.HTTPError as error:
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
        body = await self._post("/score", wire.score_request_to_json(request), self._request_timeout)
        return ScoreResult(logprobs=tuple(body["logprobs"]))

    async def load_version(self, version: PolicyVersion) -> None:
        """Load a version; returns when requests may ask for it."""
        await self._post("/versions/load", {"version": version.version, "path": version.path}, self._load_timeout)

    async def unload_version(self, version: int) -> None:
        """Unload a version as soon as no request uses it; returns at once."""
        await self._post("/versions/unload", {"version": version})

    async def health(self) -> EngineHealth:
        """Whether it is ready, and what it has loaded.

        Raises:
            EngineUnavailable: it cannot be reached.
        """
        try:
            response = await self._http.get("/health")
            await _check(response)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        return wire.health_from_json(_parse(response.text))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _post(self, path: str, body: Mapping[str, Any], timeout: httpx.Timeout | None = None) -> dict[str, Any]:
        try:
            response = await self._http.post(path, json=body, timeout=timeout or self._http.timeout)
            await _check(response)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        return _parse(response.text)


async def _check(response: httpx.Response) -> None:
    if response.status_code != httpx.codes.OK:
        await response.aread()
        raise wire.error_from_json(_parse(response.text))


def _parse(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise EngineError("the engine answered with something that is not JSON") from error
    if not isinstance(body, dict):
        raise EngineError("the engine answered with JSON that is no object")
    return body


def _unreachable(error: httpx.HTTPError) -> EngineError:
    """Never reached, or refused: worth another try. Lost in the middle of an answer, or too late: not the same."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return EngineUnavailable("the engine cannot be reached")
    if isinstance(error, httpx.TimeoutException):
        return EngineError("the engine took too long")
    return EngineUnavailable(f"the connection to the engine was lost ({type(error).__name__})")
