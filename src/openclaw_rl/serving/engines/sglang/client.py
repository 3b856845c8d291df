"""The adapter to SGLang, over its own HTTP. Rendering and text are ours, tokens and log-probabilities its own."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from openclaw_rl import fast_json
from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.connections import ConnectFailed, ConnectionLost, Connections, Exchange
from openclaw_rl.serving.engines.model_text import ModelText, load_model_text
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang import wire
from openclaw_rl.serving.engines.sglang.capabilities import CAPABILITIES
from openclaw_rl.serving.engines.sglang.replies import Reply
from openclaw_rl.serving.engines.sglang.versions import SglangVersions
from openclaw_rl.types import Message, PolicyVersion

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0
_QUICK_S = 10.0
_HTTP_ERRORS = (ConnectFailed, ConnectionLost, TimeoutError)


class SglangEngine:
    """Implements `Engine` on one SGLang server; for one event loop.

    There is one for each server, in the process that speaks for it: it counts who uses which version, and lets go of
    versions beyond the last few.
    """

    def __init__(
        self,
        url: str,
        *,
        model: ModelSource,
        context_length: int,
        max_requests: int,
        max_versions: int,
        request_timeout_s: float = 600.0,
        load_timeout_s: float = 120.0,
        key: str | None = None,
    ) -> None:
        """`model`: the base, which the server must have loaded, too. More than `max_requests` at once are refused.
        `key`: what the server asks for (its `--api-key`)."""
        address = urlsplit(url)
        if address.scheme != "http" or address.hostname is None or address.port is None:
            raise ValueError(f"SGLang is at http://HOST:PORT, not {url}")
        self._connections = Connections(address.hostname, address.port, connect_timeout_s=_CONNECT_S, key=key)
        self._model = model
        self._context = context_length
        self._request_timeout_s = request_timeout_s
        self._versions = SglangVersions(
            self._ask, base=model, limit=max_versions, timeout_s=load_timeout_s, quick_s=_QUICK_S
        )
        self._aborting: set[asyncio.Task[None]] = set()
        self._max_requests = max_requests
        self._requests = 0
        self._loads = (0, 0)

    @classmethod
    def from_config(cls, config: Config, url: str, *, key: str | None = None) -> SglangEngine:
        """SGLang at `url`, as this deployment uses it. `key`: of one that is started here; else it is configured."""
        if key is None and config.engine.api_key is not None:
            key = config.engine.api_key.get_secret_value()
        return cls(
            url,
            model=ModelSource(config),
            context_length=config.engine.context_length,
            max_requests=queue_length(config),
            max_versions=config.engine.max_versions,
            request_timeout_s=config.serving.request_timeout_s,
            load_timeout_s=config.engine.load_timeout_s,
            key=key,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """All of them; see the documentation for temperatures at which it does not score."""
        return CAPABILITIES

    async def prepare(self) -> None:
        """Read the model's text side, so that the first request does not wait for it."""
        await self._model.get()

    # --- answering -----------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Generate; closing the iterator ends the generation. The deadline is between two pieces of the answer.

        Raises:
            UnknownVersion: the version is not loaded, or about to be unloaded.
            InvalidEngineRequest: the messages cannot be rendered, or are too long.
            EngineError: and its subclasses, as the server says; EngineUnavailable when it cannot be reached.
        """
        model = await self._model.get()
        prompt = await asyncio.to_thread(model.renderer.render, request.messages, request.tools)
        served = await self._versions.serving(request.version, pinned=request.pinned)
        seen = served.seen
        limits = wire.Limits(context_length=min(self._context, seen.context_length), kept_tokens=seen.kept_tokens)
        _check_room(prompt, limits.context_length)
        rid = uuid.uuid4().hex
        body = wire.generate_body(
            prompt,
            request.sampling,
            rid=rid,
            limits=limits,
            end_tokens=sorted(model.end_tokens),
            vocabulary=model.vocabulary,
            adapter=served.adapter,
            salt=served.salt,
        )
        reply = Reply(
            AnswerText(model.tokenizer, stop=request.sampling.stop, has_tools=bool(request.tools)),
            version=served.version,
            weights=served.seen.weights,
            adapted=served.adapter is not None,
            known=self._versions.known,
            doubted=self._versions.doubted,
            end_tokens=model.end_tokens,
            truncated=request.sampling.truncated,
        )
        read = PromptRead(prompt_ids=prompt, version=None if served.version == request.version else served.version)
        with self._counted(), self._versions.using(served.version), self._aborted_unless_done(rid, reply):
            async with aclosing(self._stream(read, body, reply, model.vocabulary)) as events:
                async for event in events:
                    yield event

    async def _stream(
        self, read: PromptRead, body: Mapping[str, Any], reply: Reply, vocabulary: int
    ) -> AsyncGenerator[ChatEvent, None]:
        """The events of one answer; the first once the server has taken the request, which may wait there."""
        timeout_s = self._request_timeout_s
        try:
            async with self._connections.exchange(
                "POST", "/generate", fast_json.dumps(body), timeout_s=timeout_s
            ) as answer:
                await _check(answer)
                yield read
                async for piece in _pieces(answer):
                    for event in reply.take(wire.chunk_of(piece, reply.seen, vocabulary)):
                        yield event
                    if reply.done and not reply.server_done:
                        return
                if reply.done:
                    return
        except _HTTP_ERRORS as error:
            raise _unreachable(error) from error
        raise EngineError("SGLang ended the answer without finishing it")

    @contextmanager
    def _aborted_unless_done(self, rid: str, reply: Reply) -> Iterator[None]:
        """Whoever leaves before the end, or notices it before the server does, ends the generation."""
        lost = False
        try:
            yield
        except EngineUnavailable:
            lost = True
            raise
        finally:
            if not reply.server_done and not lost:
                task = asyncio.create_task(self._abort(rid))
                self._aborting.add(task)
                task.add_done_callback(self._aborting.discard)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """SGLang would refuse in the middle of an answer; this is before it."""
        if self._requests >= self._max_requests:
            raise EngineOverloaded("the engine's queue is full")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _abort(self, rid: str) -> None:
        try:
            await self._ask("POST", "/abort_request", {"rid": rid}, _QUICK_S)
        except EngineError as error:
            logger.warning("SGLang was not told that a request is over (%s)", error.code)

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """The token ids that the server is sent for these messages."""
        model = await self._model.get()
        return await asyncio.to_thread(model.renderer.render, messages, tools, generation_prompt)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of given tokens, at temperature 1: SGLang knows no other for tokens that are given.

        Raises:
            InvalidEngineRequest: the request does not fit, or asks for another temperature.
            UnknownVersion: other weights have scored, at least in part: no version's numbers are told for another's.
        """
        model = await self._model.get()
        served = await self._versions.serving(request.version, pinned=True)
        _check_score(request, min(self._context, served.seen.context_length), model.vocabulary)
        rid = uuid.uuid4().hex
        body = wire.score_body(request.ids, request.start, rid=rid, adapter=served.adapter, salt=served.salt)
        with self._counted(), self._versions.using(served.version):
            answer = await self._ask("POST", "/generate", body, self._request_timeout_s)
        if wire.scorer_of(answer) != served.seen.weights or served.seen.weights in self._versions.doubted:
            raise UnknownVersion(f"policy version {request.version} is not loaded", param="version")
        return ScoreResult(logprobs=wire.scores_of(answer, request.ids, request.start))

    # --- versions and health ---------------------------------------------------------------------------------

    async def load_version(self, version: PolicyVersion) -> None:
        """Load an adapter under its own name, or replace the weights in the middle of whatever is running."""
        await self._versions.load(version)

    async def unload_version(self, version: int) -> None:
        """Unload an adapter as soon as no request of this instance uses it; new requests are refused at once."""
        await self._versions.unload(version)

    async def health(self) -> EngineHealth:
        """Whether it is ready, and what it has loaded. While weights are replaced it is not asked: as it was, it is.

        Raises:
            EngineUnavailable: it cannot be reached.
        """
        seen = self._versions.seen
        if seen is None or not self._versions.replacing:
            seen = await self._versions.look()
            self._loads = wire.load_of(await self._ask("GET", "/v1/loads?include=core", None, _QUICK_S))
            self._versions.tidy()
        active, queued = self._loads
        return EngineHealth(
            ready=True,
            instance_id=seen.instance_id,
            loaded_versions=self._versions.answered(),
            active_requests=active,
            queued_requests=queued,
            context_length=min(self._context, seen.context_length),
        )

    async def server_info(self) -> dict[str, Any]:
        """What the server says of itself, options included."""
        return await self._ask("GET", "/server_info", None, _QUICK_S)

    async def close(self) -> None:
        """Finish what was begun behind the scenes, and close the connections."""
        await asyncio.gather(*self._aborting, return_exceptions=True)
        await self._versions.close()
        self._connections.close()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """One question and its answer, which is empty where the server only agrees."""
        data = b"" if body is None else fast_json.dumps(body)
        try:
            async with self._connections.exchange(method, path, data, timeout_s=timeout_s) as answer:
                await _check(answer)
                text = await answer.read_all()
        except _HTTP_ERRORS as error:
            raise _unreachable(error) from error
        return _object(text) if text else {}


def queue_length(config: Config) -> int:
    """How many requests SGLang may have at once, running or waiting."""
    return config.engine.max_parallel + config.serving.max_queue


class ModelSource:
    """The base model's text side, read once and only when it is needed."""

    def __init__(self, config: Config) -> None:
        self._config = config.model
        self._reading = asyncio.Lock()
        self._text: ModelText | None = None

    async def get(self) -> ModelText:
        """The text side; the first call takes a second, in a thread."""
        async with self._reading:
            if self._text is None:
                self._text = await asyncio.to_thread(self._read)
            return self._text

    def _read(self) -> ModelText:
        from openclaw_rl.models import resolve_model  # loads torch, for which others of our processes have no use

        return load_model_text(resolve_model(self._config))


async def _pieces(answer: Exchange) -> AsyncIterator[dict[str, Any]]:
    """The objects in a stream of server-sent events, up to its end."""
    rest = b""
    while data := await answer.read():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield _object(line[len(b"data: ") :])


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = fast_json.loads(text)
    except ValueError as error:
        raise EngineError("SGLang answered with something that is not JSON") from error
    if not isinstance(body, dict):
        raise EngineError("SGLang answered with JSON that is no object")
    return body


async def _check(answer: Exchange) -> None:
    """Raise what an answer that is no success means."""
    if answer.status == HTTPStatus.OK:
        return
    text = await answer.read_all()
    try:
        body = fast_json.loads(text)
    except ValueError:
        body = {"message": text.decode("utf-8", errors="replace")[:500] or f"HTTP status {answer.status}"}
    raise wire.error_of(body if isinstance(body, dict) else {"message": str(body)[:500]}, answer.status)


def _unreachable(error: Exception) -> EngineError:
    """Never reached, or lost in the middle of an answer: worth another try. Too late: not the same."""
    if isinstance(error, TimeoutError):
        return EngineError("SGLang took too long")
    what = "SGLang cannot be reached" if isinstance(error, ConnectFailed) else "the connection to SGLang was lost"
    return EngineUnavailable(what)


def _check_room(prompt: tuple[int, ...], context_length: int) -> None:
    if len(prompt) >= context_length:
        raise InvalidEngineRequest(
            f"the messages are {len(prompt)} tokens long, the context holds {context_length} with the answer",
            param="messages",
            code="context_length_exceeded",
        )


def _check_score(request: ScoreRequest, context_length: int, vocabulary: int) -> None:
    """What the server might trip over never reaches it."""
    if not 1 <= request.start < len(request.ids):
        raise InvalidEngineRequest("start lies between 1 and the number of ids, exclusively", param="start")
    if len(request.ids) > context_length:
        message = f"{len(request.ids)} ids do not fit into a context of {context_length}"
        raise InvalidEngineRequest(message, param="ids", code="context_length_exceeded")
    if not all(0 <= token < vocabulary for token in request.ids):
        raise InvalidEngineRequest(f"token ids lie between 0 and {vocabulary - 1}", param="ids")
    if request.temperature not in (0.0, 1.0):
        raise InvalidEngineRequest("SGLang scores at temperature 1 only", param="temperature")
