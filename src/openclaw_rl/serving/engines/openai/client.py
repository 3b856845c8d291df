"""The adapter to any OpenAI-compatible upstream.

Nothing is assumed of the upstream beyond chat completions. Token ids and log-probabilities are asked for, and taken
where they come; what it refuses is left out from then on (`wire.eased`). Versions are loaded where it has vLLM's
`load_lora_adapter`, under names that no other deployment on the same upstream has.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx

from openclaw_rl import fast_json
from openclaw_rl.config import Config
from openclaw_rl.config_base import LOOPBACK
from openclaw_rl.serving.engines.openai import wire
from openclaw_rl.serving.engines.openai.failures import UpstreamKeyRefused, failure_of
from openclaw_rl.serving.engines.openai.features import HOPED_FOR, Features
from openclaw_rl.serving.engines.openai.files import check_files
from openclaw_rl.serving.engines.openai.reading import AnswerReader
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineUnavailable,
    InvalidEngineRequest,
    ScoreRequest,
    ScoreResult,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.serving.engines.vllm.api import NOBODYS_ADAPTER
from openclaw_rl.types import BASE_VERSION, Message, PolicyVersion, SamplingParams

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
QUICK_S = 10.0
LOOK_AGAIN_S = 10.0
"""An upstream that may be far away, and count requests, is not asked each second how it is."""
MOST_KEPT = 32
DOUBTED = 3
"""So many answers in a row without ids, or without log-probabilities, and the upstream counts as one that has none.
A proxy may send a single one another way."""
_MAY_BE_EASED = frozenset({400, 422})
_CLOSED_MEANWHILE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_NO_LIST = frozenset({404, 405})
"""What an upstream without a list of models answers; it is there all the same."""


class OpenAIEngine:
    """Implements `Engine` for the gateway, the judge and the trainer; for one event loop."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str | None = None,
        raw_logprobs: bool = True,
        context_length: int = 2048,
        max_versions: int = 4,
        request_timeout_s: float = 600.0,
        load_timeout_s: float = 120.0,
    ) -> None:
        """`url` ends where `/chat/completions` begins. `context_length`: what is said where the upstream does not.

        `max_versions`: how many adapters are left there of those that were loaded here.
        """
        self.url = url
        self._model = model
        self._raw_logprobs = raw_logprobs
        self._context_length = context_length
        self._max_versions = max_versions
        self._load_timeout_s = load_timeout_s
        self._wording = wire.Wording()
        self._features = HOPED_FOR
        self._without = {"token_ids": 0, "logprobs": 0}  # answers in a row
        self._told: dict[str, bool] = {}
        self._names: dict[int, str] = {BASE_VERSION: model}  # the one used longest ago first
        self._users: Counter[int] = Counter()
        self._listed: frozenset[str] | None = None
        self._look_due = 0.0
        self._client = httpx.AsyncClient(
            verify=httpx.URL(url).scheme == "https",  # reading certificates takes a while, and http needs none
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(request_timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=MOST_KEPT),
            trust_env=httpx.URL(url).host not in LOOPBACK,  # a proxy is for what is elsewhere
        )

    @classmethod
    def from_config(cls, config: Config, url: str) -> OpenAIEngine:
        """The upstream at `url`, one of `engine.urls`."""
        engine = config.engine
        if engine.upstream_model is None:
            raise ValueError("engine.kind = openai needs engine.upstream_model")
        return cls(
            url,
            model=engine.upstream_model,
            api_key=None if engine.api_key is None else engine.api_key.get_secret_value(),
            raw_logprobs=engine.upstream_logprobs == "raw",
            context_length=engine.context_length,
            max_versions=engine.max_versions,
            request_timeout_s=config.serving.request_timeout_s,
            load_timeout_s=engine.load_timeout_s,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What was found so far; before anything was asked, all that it may have."""
        return self._features.capabilities

    @property
    def features(self) -> Features:
        """What was found so far."""
        return self._features

    @property
    def told(self) -> Mapping[str, bool]:
        """What answers have told, as `LearnsFromAnswers` has it."""
        return dict(self._told)

    # --- chatting ------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator closes the connection upstream. The deadline is between two chunks.

        Raises:
            EngineError: and its subclasses, as `failures` has it.
        """
        model = self._names.get(request.version)
        if model is None:
            raise UnknownVersion(f"policy version {request.version} is not loaded upstream", param="model")
        self._names[request.version] = self._names.pop(request.version)
        self._users[request.version] += 1
        try:
            with self._told_of_faults():
                wording: wire.Wording | None = self._wording
                while wording is not None:
                    context = self._features.context_length
                    body = wire.request_body(request, model=model, wording=wording, context=context)
                    async with self._stream(fast_json.dumps(body)) as response:
                        if response.status_code == 200:
                            self._wording = wording
                            async for event in self._read(response, request):
                                yield event
                            return
                        wording = self._eased(wording, response.status_code, await response.aread())
                        if wording is None:
                            raise self._failure(response, model=model, version=request.version)
        finally:
            self._users[request.version] -= 1

    @contextlib.asynccontextmanager
    async def _stream(self, body: bytes) -> AsyncIterator[httpx.Response]:
        headers = {"content-type": "application/json"}
        request = self._client.build_request("POST", "chat/completions", content=body, headers=headers)
        response = await self._send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _read(self, response: httpx.Response, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        reader = AnswerReader(version=request.version, with_logprobs=self._exact(request.sampling))
        if response.headers.get("content-type", "").startswith("application/json"):  # it does not stream
            for event in reader.add(wire.parse_chunk(await response.aread())):
                yield event
        else:
            splitter = wire.EventSplitter()
            async for data in response.aiter_bytes():
                for line in splitter.feed(data):
                    if line != b"[DONE]":
                        for event in reader.add(wire.parse_chunk(line)):
                            yield event
        for event in reader.end():
            yield event
        self._note(reader)

    def _exact(self, sampling: SamplingParams) -> bool:
        """Whether the log-probabilities are those of the distribution that was drawn from."""
        return sampling.temperature == 1.0 or not self._raw_logprobs

    def _note(self, reader: AnswerReader) -> None:
        """Learn from an answer; one without a token says nothing. What was refused by name is not there."""
        if not reader.said_something:
            return
        found: dict[str, bool] = {}
        for name, told in (("token_ids", reader.has_ids), ("logprobs", reader.has_logprobs)):
            self._without[name] = 0 if told else self._without[name] + 1
            lacking = self._without[name] >= DOUBTED or not getattr(self._wording, name)
            found[name] = told or (getattr(self._features, name) and not lacking)
            if told or lacking:
                self._told[name] = told
        self._features = replace(self._features, **found)

    def _eased(self, wording: wire.Wording, status: int, body: bytes) -> wire.Wording | None:
        if status not in _MAY_BE_EASED:
            return None
        return wire.eased(wording, body.decode("utf-8", errors="replace"))

    def _failure(self, response: httpx.Response, *, model: str, version: int) -> EngineError:
        error = failure_of(
            response.status_code, response.headers, response.content, model=model, version=version, now=time.time()
        )
        if isinstance(error, EngineUnavailable | UnknownVersion):
            self._look_due = 0.0
        return error

    # --- versions ------------------------------------------------------------------------------------------

    async def load_version(self, version: PolicyVersion) -> None:
        """Have the upstream load an adapter; it must see the same files.

        Raises:
            InvalidEngineRequest: it loads none, or not this one; or the files are not what was written.
            UnreadableVersion: it does not see the files.
        """
        if version.version == BASE_VERSION:
            return
        name = upstream_name(version)
        if name not in await self._list():
            await asyncio.to_thread(check_files, version)
            body = {"lora_name": name, "lora_path": version.path}
            response = await self._post("load_lora_adapter", body, self._load_timeout_s)
            if response.status_code in _NO_LIST:
                raise _not_found(response, version)
            if response.status_code != 200 and "already" not in response.text:
                raise self._failure(response, model=name, version=BASE_VERSION)
        self._names[version.version] = name
        self._listed = (self._listed or frozenset()) | {name}

    async def unload_version(self, version: int) -> None:
        """Have the upstream let go of an adapter; what becomes of answers under way is for the upstream to say."""
        name = self._names.pop(version, None) if version != BASE_VERSION else None
        if name is not None:
            await self._post("unload_lora_adapter", {"lora_name": name}, QUICK_S)
            self._listed = None if self._listed is None else self._listed - {name}

    async def _let_go(self) -> None:
        """Unload what was used longest ago, beyond `max_versions`; never one that answers, nor the one used last.

        Only who asks for health does this: the gateway, which knows what is used.
        """
        kept = [version for version in self._names if version != BASE_VERSION]
        unused = [version for version in kept[:-1] if not self._users[version]]
        for version in unused[: max(0, len(kept) - self._max_versions)]:
            if self._users[version]:  # since the one before it began to be unloaded
                continue
            try:
                await self.unload_version(version)
            except EngineError as error:
                logger.warning("the upstream may keep policy version %d (%s)", version, error.code)

    # --- how it is -----------------------------------------------------------------------------------------

    async def health(self) -> EngineHealth:
        """Whether it answers, and which versions it lists; asked anew each LOOK_AGAIN_S, and after a failure.

        Raises:
            EngineError: it does not answer.
        """
        if time.monotonic() >= self._look_due:
            with contextlib.suppress(UpstreamKeyRefused):  # it is there; who asks is told what to set
                await self._list()
        await self._let_go()
        listed = self._listed
        loaded = [n for n, name in self._names.items() if n == BASE_VERSION or listed is None or name in listed]
        return EngineHealth(
            ready=True,
            instance_id="upstream",  # it does not say when it was restarted; what it lost is not in its list
            loaded_versions=tuple(sorted(loaded)),
            active_requests=self._users.total(),
            queued_requests=0,
            context_length=self._features.context_length or self._context_length,
        )

    async def _list(self) -> frozenset[str]:
        """The names of the upstream's models; none where it has no list."""
        with self._told_of_faults():
            response = await self._send(self._client.build_request("GET", "models", timeout=QUICK_S))
        if response.status_code in _NO_LIST:
            self._listed = None
        elif response.status_code != 200:
            raise self._failure(response, model=self._model, version=BASE_VERSION)
        else:
            lengths = _models_of(response)
            self._listed = frozenset(lengths)
            length = lengths.get(self._model) or self._features.context_length
            self._features = replace(self._features, context_length=length)
        self._look_due = time.monotonic() + LOOK_AGAIN_S
        return self._listed or frozenset()

    async def probe(self) -> Features:
        """Find out what the upstream has, by an answer of one token; returns it.

        Raises:
            EngineError: it cannot be reached, or refuses; the message says what to set.
        """
        await self._list()
        self._without = dict.fromkeys(self._without, DOUBTED - 1)  # this one answer decides
        asked = ChatRequest(
            request_id="probe",
            messages=({"role": "user", "content": "Hi"},),
            sampling=SamplingParams(max_tokens=1),
            version=BASE_VERSION,
        )
        async for _ in self.chat(asked):
            pass
        # Who loads adapters looks for this one in vain, and says so; a vLLM without --enable-lora fails otherwise.
        loads = await self._post("load_lora_adapter", NOBODYS_ADAPTER, QUICK_S)
        knows = loads.status_code in {*_MAY_BE_EASED, *_NO_LIST} and _speaks_of_adapters(loads)
        self._features = replace(self._features, lora_versions=knows)
        return self._features

    # --- what an upstream has not --------------------------------------------------------------------------

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """An upstream renders only what it answers.

        Raises:
            InvalidEngineRequest: always.
        """
        raise InvalidEngineRequest("an upstream (engine.kind = openai) renders nothing for us")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """An upstream scores no given tokens.

        Raises:
            InvalidEngineRequest: always.
        """
        raise InvalidEngineRequest("an upstream (engine.kind = openai) scores no given tokens")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> httpx.Response:
        with self._told_of_faults():
            return await self._send(self._client.build_request("POST", path, json=body, timeout=timeout_s))

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Ask; and once more where the connection went before a word came back.

        A server may close a kept connection in the moment that a request is put on it. Whatever is asked here may be
        asked again: an answer costs, a version that is there already stays there.
        """
        try:
            return await self._client.send(request, stream=stream)
        except _CLOSED_MEANWHILE:
            return await self._client.send(request, stream=stream)

    @contextlib.contextmanager
    def _told_of_faults(self) -> Iterator[None]:
        """Faults of the connection as the engine protocol has them."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            self._look_due = 0.0
            raise EngineUnavailable("the upstream cannot be reached") from error
        except httpx.TimeoutException as error:
            self._look_due = 0.0
            raise EngineError("the upstream took too long") from error
        except httpx.TransportError as error:
            self._look_due = 0.0
            raise EngineUnavailable("the connection to the upstream was lost") from error
        except httpx.HTTPError as error:
            raise EngineError(f"the upstream's answer cannot be read ({type(error).__name__})") from error


def upstream_name(version: PolicyVersion) -> str:
    """The adapter's name upstream: the version's, and a mark of where it comes from, for others may count too."""
    mark = hashlib.sha256(f"{version.path}\0{version.created_at!r}".encode()).hexdigest()[:8]
    return f"{version.name}-{mark}"


def _speaks_of_adapters(response: httpx.Response) -> bool:
    """Whether a refusal is of an adapter, and not of the route, whose name it may repeat."""
    return "lora" in response.text.lower().replace("load_lora_adapter", "")


def _not_found(response: httpx.Response, version: PolicyVersion) -> EngineError:
    if not _speaks_of_adapters(response):
        return InvalidEngineRequest("the upstream loads no versions (it has no load_lora_adapter)")
    said = wire.parse_error(response.content).message
    return UnreadableVersion(f"the upstream does not find {version.path}; it must see the same files ({said})")


def _models_of(response: httpx.Response) -> dict[str, int | None]:
    """The models of a list, each with its context length where that is said."""
    try:
        entries = response.json()["data"]
        return {str(entry["id"]): entry.get("max_model_len") for entry in entries}
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise EngineError("the upstream's list of models cannot be read; does engine.urls end with /v1?") from error
