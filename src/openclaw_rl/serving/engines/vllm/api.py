"""vLLM's HTTP: asked, and its errors told as ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from openclaw_rl import fast_json
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.embedded.connections import ConnectFailed, ConnectionLost, Connections, Exchange
from openclaw_rl.serving.engines.protocol import EngineError, EngineUnavailable, UnknownVersion
from openclaw_rl.serving.engines.vllm import wire

_CONNECT_S = 5.0
QUICK_S = 10.0
_SLOW_S = 120.0
"""For what it says of its machine too: it runs programs to find that out."""
RPC = "/collective_rpc"
_HTTP_ERRORS = (ConnectFailed, ConnectionLost, TimeoutError)
_START_TIME = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)


def connections_to(url: str) -> Connections:
    """Connections to a server at `http://HOST:PORT`, or at `unix:///PATH`.

    Raises:
        ConfigError: `url` is neither.
    """
    address = urlsplit(url)
    if address.scheme == "unix" and address.path:
        return Connections("localhost", 80, connect_timeout_s=_CONNECT_S, unix=address.path)
    if address.scheme != "http" or address.hostname is None or address.path not in {"", "/"}:
        raise ConfigError(f"engine.urls: a vLLM is at http://HOST:PORT, not {url}")
    return Connections(address.hostname, address.port or 80, connect_timeout_s=_CONNECT_S)


LOAD_LORA = "/v1/load_lora_adapter"
NOBODYS_ADAPTER = {"lora_name": "openclaw-rl-asks", "lora_path": "/openclaw-rl/no/such/adapter"}


class VllmTookTooLong(EngineError):
    """It has not answered in time, and may still do what it was asked for."""


class VllmApi:
    """One vLLM server; for one event loop. Every method raises `EngineError` and its subclasses."""

    def __init__(self, url: str, *, request_timeout_s: float, load_timeout_s: float) -> None:
        """`request_timeout_s` is between two events of an answer."""
        self._http = connections_to(url)
        self._request_timeout_s = request_timeout_s
        self._load_timeout_s = load_timeout_s

    async def generate(self, body: Mapping[str, Any]) -> AsyncGenerator[wire.Json | None, None]:
        """The events of one answer; None first, once vLLM has accepted the request. Closing it aborts."""
        try:
            async with self._exchange("POST", wire.GENERATE, body, self._request_timeout_s) as answer:
                await _check(answer)
                yield None
                async for event in wire.server_sent(_pieces(answer)):
                    yield event
        except _HTTP_ERRORS as error:
            raise unreachable(error) from error

    async def ask_whole(self, body: Mapping[str, Any]) -> wire.Json:
        """The answer to a request that is not streamed."""
        return await self._ask("POST", wire.GENERATE, body, self._request_timeout_s)

    async def knows_adapters(self) -> bool:
        """Whether it loads adapters, found out by one that nobody has. The route alone says nothing: it is there too
        in a vLLM that was started without them, and fails.
        """
        if await self.status_of("GET", LOAD_LORA) != HTTPStatus.METHOD_NOT_ALLOWED:  # it takes POST
            return False
        return await self.status_of("POST", LOAD_LORA, NOBODYS_ADAPTER) == HTTPStatus.NOT_FOUND

    async def load_lora(self, name: str, path: Path) -> None:
        """Load an adapter under a new name; `path` is absolute."""
        body = {"lora_name": name, "lora_path": str(path)}
        await self._ask("POST", LOAD_LORA, body, self._load_timeout_s)

    async def unload_lora(self, name: str) -> None:
        """Forget an adapter's name, if it is there; requests that have it go on."""
        with contextlib.suppress(UnknownVersion):
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, QUICK_S)

    async def models(self) -> list[wire.Json]:
        """The cards of the base model and of all adapters."""
        body = await self._ask("GET", "/v1/models", None, QUICK_S)
        return [card for card in body.get("data") or () if isinstance(card, dict)]

    async def healthy(self) -> None:
        """Return if its engine lives; raise otherwise."""
        await self._ask("GET", "/health", None, QUICK_S)

    async def started_at(self) -> str | None:
        """When its process started, as it says in its metrics; None where it does not."""
        try:
            async with self._exchange("GET", "/metrics", None, QUICK_S) as answer:
                found = _START_TIME.search(await answer.read_all())
        except _HTTP_ERRORS as error:
            raise unreachable(error) from error
        return found.group(1).decode() if found else None

    async def configuration(self) -> wire.Json:
        """Its configuration, as its routes for developers say; empty where they do not."""
        config = (await self._ask("GET", "/server_info?config_format=json", None, _SLOW_S)).get("vllm_config")
        return config if isinstance(config, dict) else {}

    # --- whole models ------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Draw no more tokens; requests stay where they are."""
        await self._ask("POST", "/pause?mode=keep&clear_cache=false", {}, self._load_timeout_s)

    async def resume(self) -> None:
        """Go on."""
        await self._ask("POST", "/resume", {}, QUICK_S)

    async def reload_weights(self, path: Path) -> None:
        """Read the weights of a Transformers directory (an absolute path) into the model in place."""
        body = {"method": "openclaw_reload", "kwargs": {"path": str(path)}}
        await self._ask("POST", RPC, body, self._load_timeout_s)

    async def heal_cache(self) -> None:
        """Put zeros in the place of what is not finite in the KV cache."""
        await self._ask("POST", RPC, {"method": "openclaw_heal_cache"}, self._load_timeout_s)

    async def label_weights(self, label: str) -> None:
        """What vLLM calls the weights that draw from now on."""
        await self._ask("POST", "/update_weight_version", {"new_version": label}, QUICK_S)

    async def weights_label(self) -> str:
        """What vLLM calls the weights that draw now."""
        return str((await self._ask("GET", "/weight_info", None, QUICK_S)).get("weight_version"))

    async def status_of(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> int:
        """The bare status of a route, to find out whether it is there."""
        try:
            async with self._exchange(method, path, body, QUICK_S) as answer:
                await answer.read_all()
                return answer.status
        except _HTTP_ERRORS as error:
            raise unreachable(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- beneath -----------------------------------------------------------------------------------------------

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Exchange:
        data = b"" if body is None else fast_json.dumps(dict(body))
        return self._http.exchange(method, quote(path, safe="/?=&"), data, timeout_s=timeout_s)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> wire.Json:
        """The JSON object of an answer; empty where the answer is none."""
        try:
            async with self._exchange(method, path, body, timeout_s) as answer:
                await _check(answer)
                return _object(await answer.read_all())
        except _HTTP_ERRORS as error:
            raise unreachable(error) from error


async def _pieces(answer: Exchange) -> AsyncIterator[bytes]:
    while piece := await answer.read():
        yield piece


async def _check(answer: Exchange) -> None:
    if answer.status != HTTPStatus.OK:
        raise wire.error_of(answer.status, _object(await answer.read_all()))


def _object(data: bytes) -> wire.Json:
    try:
        body = fast_json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def unreachable(error: Exception) -> EngineError:
    """Never reached, refused, or lost: worth another try. Too late: not."""
    if isinstance(error, TimeoutError):
        return VllmTookTooLong("vLLM took too long")
    return EngineUnavailable("vLLM cannot be reached" if isinstance(error, ConnectFailed) else "vLLM was lost")
