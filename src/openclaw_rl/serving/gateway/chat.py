"""`POST /v1/chat/completions`: one exchange from its bytes to its last chunk, as a list of steps.

A plain ASGI application, because it has to see the client leave while an answer is generated, streamed or not:
then the generation is cancelled and the request is recorded as cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from openclaw_rl.config import ServingConfig
from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    EngineError,
    EngineUnavailable,
    Finished,
    PromptRead,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.gateway import errors
from openclaw_rl.serving.gateway.answer import AnswerInProgress
from openclaw_rl.serving.gateway.auth import KeyRing
from openclaw_rl.serving.gateway.dialects import openai_chat
from openclaw_rl.serving.gateway.events import Events
from openclaw_rl.serving.gateway.intake import Asked, read_request
from openclaw_rl.serving.gateway.owners import OwnerNames, Route, Router
from openclaw_rl.serving.gateway.recorder import Arrival, Opened, Recorder, new_id
from openclaw_rl.serving.gateway.versions import VersionKeeper, version_name
from openclaw_rl.serving.gateway.wire import ClientGone, Outlet
from openclaw_rl.types import BASE_VERSION, ExclusionReason, Turn, TurnState

logger = logging.getLogger(__name__)

ENGINE_RETRY_S = 0.1
TELL_TIMEOUT_S = 5.0


@dataclass(kw_only=True, slots=True)
class Exchange:
    """One request on its way; what is known of it grows step by step."""

    asked: Asked
    outlet: Outlet
    turn_id: str
    created_at: float
    answer: AnswerInProgress = field(default_factory=AnswerInProgress)
    opened: Opened | None = None
    owner: str = ""
    route: Route = field(default_factory=lambda: Route(version=BASE_VERSION))
    client_gone: bool = False


@dataclass(kw_only=True, slots=True)
class Load:
    """How many requests are being served, and how many were answered since the start.

    `changed` is set when one begins or ends; who waits for it clears it.
    """

    active: int = 0
    answered: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ChatEndpoint:
    """The handler; one for the life of the gateway."""

    def __init__(
        self,
        config: ServingConfig,
        engine: Engine,
        keys: KeyRing,
        keeper: VersionKeeper,
        recorder: Recorder,
        load: Load,
        *,
        router: Router,
        owners: OwnerNames,
    ) -> None:
        self._config = config
        self._engine = engine
        self._keys = keys
        self._keeper = keeper
        self._recorder = recorder
        self._load = load
        self._router = router
        self._owners = owners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        outlet = Outlet(send)
        try:
            exchange = await self._accept(scope, receive, outlet)
            with self._slot():
                await self._while_client_listens(exchange, receive)
        except ClientGone:
            return
        except asyncio.CancelledError:  # the gateway stops
            if not outlet.done:
                raise
        except errors.GatewayError as error:  # refused before it was accepted
            await self._tell(outlet, error)

    # --- accepting -----------------------------------------------------------------------------------------

    async def _accept(self, scope: Scope, receive: Receive, outlet: Outlet) -> Exchange:
        asked = await read_request(scope, receive, self._keys, default_max_tokens=self._config.default_max_tokens)
        capabilities = self._engine.capabilities
        if asked.chat.tools and not capabilities.tools:
            raise errors.bad_request("tools", "This engine has no tools.", code="unsupported_parameter")
        if asked.chat.logprobs and not capabilities.logprobs:
            raise errors.bad_request("logprobs", "This engine has no logprobs.", code="unsupported_parameter")
        if asked.chat.return_token_ids and not capabilities.token_ids:
            raise errors.bad_request(
                "return_token_ids", "This engine tells no token ids.", code="unsupported_parameter"
            )
        self._keeper.check_name(asked.chat.model)
        owner = self._owners.owner(asked.principal, user=asked.chat.user, header=asked.user_header)
        return Exchange(asked=asked, outlet=outlet, turn_id=new_id(), owner=owner, created_at=time.time())

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if self._load.active >= self._config.max_queue:
            raise errors.busy(self._load.active)
        self._load.active += 1
        self._load.changed.set()
        try:
            yield
        finally:
            self._load.active -= 1
            self._load.changed.set()

    async def _while_client_listens(self, exchange: Exchange, receive: Receive) -> None:
        """Serve the exchange; cancel that when the client leaves or the gateway stops."""
        work = asyncio.current_task()
        assert work is not None
        watching = asyncio.create_task(_cancel_when_gone(work, exchange, receive))
        try:
            await self._serve(exchange)
        except asyncio.CancelledError:
            if not exchange.client_gone or work.uncancel() > 0:  # the gateway stops
                raise
        finally:
            watching.cancel()

    # --- serving -------------------------------------------------------------------------------------------

    async def _serve(self, exchange: Exchange) -> None:
        """The steps of one answer, and what each way of failing means for client and record."""
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await self._record_request(exchange)
                events = await self._ask(exchange)
                async with contextlib.aclosing(events):
                    await self._relay(exchange, events)
            self._load.answered += 1
        except asyncio.CancelledError:
            status, code = ("cancelled", "client_gone") if exchange.client_gone else ("failed", "gateway_stopped")
            await self._record_failure(exchange, status, code)
            if not exchange.client_gone:
                await self._tell(exchange.outlet, errors.unavailable("The gateway is stopping."))
            raise
        except ClientGone:  # noticed while sending
            await self._record_failure(exchange, "cancelled", "client_gone")
        except TimeoutError:
            await self._fail(exchange, errors.timed_out(self._config.request_timeout_s))
        except EngineError as error:
            if isinstance(error, EngineUnavailable):  # lost in the middle of an answer
                self._keeper.suspect(f"the engine was lost ({error.code})")
            await self._fail(exchange, errors.from_engine(error))
        except errors.GatewayError as error:
            await self._fail(exchange, error)
        except Exception as error:  # noqa: BLE001 - the client must get an answer; logged without content
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("turn %s: %s\n%s", exchange.turn_id, type(error).__name__, frames)
            await self._fail(exchange, errors.internal())

    async def _record_request(self, exchange: Exchange) -> None:
        """Record the arrival, before the engine is asked: it may be the next state of the turn before it."""
        asked = exchange.asked
        if asked.record:
            exchange.opened = await self._recorder.open(
                Arrival(
                    turn_id=exchange.turn_id,
                    key_id=asked.principal.key_id,
                    client_session_id=asked.session_id,
                    turn_type=asked.turn_type,
                    messages=asked.chat.messages,
                    tools=asked.chat.tools,
                    session_done=asked.session_done,
                    model=asked.chat.model,
                    retry_count=asked.retry_count,
                    idempotency_key=asked.idempotency_key,
                    prompt_cache_key=asked.chat.prompt_cache_key,
                    owner=exchange.owner,
                    created_at=exchange.created_at,
                )
            )
            if exchange.opened is None and self._recorder.refuses:
                raise errors.record_unavailable()
        ours = exchange.opened.request.session_id if exchange.opened else new_id()
        exchange.outlet.identify(session_id=asked.session_id or ours, turn_id=exchange.turn_id)

    async def _ask(self, exchange: Exchange) -> Events:
        """Start the generation; wait for an engine that is away, for a while. Returns after its first event."""
        deadline = time.monotonic() + self._config.engine_wait_s
        asked = exchange.asked
        while True:
            async with self._router.routed(
                asked.chat.model, exchange.owner, asked.principal, deadline=deadline
            ) as route:
                exchange.route = route
                begun = await self._begin(exchange)
            if isinstance(begun, Events):
                exchange.outlet.identify(version=exchange.route.version)
                return begun
            left = deadline - time.monotonic()
            if left <= 0:
                raise errors.unavailable("The engine cannot be reached.") from begun
            if route.version in self._keeper.loaded:  # else it is loaded first, at once
                await asyncio.sleep(max(ENGINE_RETRY_S, min(begun.retry_after_s or 0.0, left)))

    async def _begin(self, exchange: Exchange) -> Events | EngineError:
        """Ask the engine; why, where it did not take the request, and may yet."""
        chat, route = exchange.asked.chat, exchange.route
        request = ChatRequest(
            request_id=exchange.turn_id,
            messages=chat.messages,
            tools=chat.tools,
            sampling=chat.sampling,
            version=route.version,
            session_id=_affinity(exchange),
            pinned=self._router.pins(chat.model),
        )
        stream = self._engine.chat(request)
        try:
            first = await anext(stream, None)
        except (EngineUnavailable, UnknownVersion) as error:
            if not self._router.lost(chat.model, route, error):
                raise
            return error
        if first is None:
            raise EngineError("the engine sent nothing")
        if isinstance(first, PromptRead) and first.version is not None:
            exchange.route = self._router.answered(route, first.version)
        return Events(first=first, rest=stream)

    # --- relaying ------------------------------------------------------------------------------------------

    async def _relay(self, exchange: Exchange, events: Events) -> None:
        chat, outlet = exchange.asked.chat, exchange.outlet
        head = openai_chat.Head(
            turn_id=exchange.turn_id,
            created=int(exchange.created_at),
            model=chat.model,
            version=version_name(exchange.route.version),
        )
        if chat.stream:
            await outlet.start_stream()
            role = {"role": "assistant", "content": "", "refusal": None}
            ids = openai_chat.TokenIds(prompt=events.prompt_ids) if chat.return_token_ids else openai_chat.NO_IDS
            await outlet.send_event(openai_chat.render_chunk(head, role, include_usage=chat.include_usage, ids=ids))
        async for event in events:
            exchange.answer.add(event)
            if chat.stream and isinstance(event, TokensDrawn):
                await _send_tokens(outlet, head, chat, event)
        finished = exchange.answer.finished
        if finished is None:
            raise EngineError("the engine stopped without a last event")
        await self._record_turn(exchange, finished)
        await _send_end(exchange, head, finished)

    async def _record_turn(self, exchange: Exchange, finished: Finished) -> None:
        """Commit the turn; the client sees the end of its answer only after this."""
        if exchange.opened is None:
            return
        reason = self._known_exclusion(exchange)
        turn = Turn(
            request=exchange.opened.request,
            answer=exchange.answer.message(),
            tokens=exchange.answer.tokens(),
            sampling=exchange.asked.chat.sampling,
            finish_reason=finished.finish_reason,
            state=TurnState.SERVED if reason is None else TurnState.EXCLUDED,
            reason=reason,
            served_at=time.time(),
        )
        await self._recorder.turn(turn, exchange.opened)

    def _known_exclusion(self, exchange: Exchange) -> ExclusionReason | None:
        """What only the gateway can know of a turn: who answered it, and what the engine counted."""
        return self._router.exclusion(exchange.asked.chat.model, exchange.route) or exchange.answer.count_mismatch()

    # --- failing -------------------------------------------------------------------------------------------

    async def _fail(self, exchange: Exchange, error: errors.GatewayError) -> None:
        """Record the failure, then tell the client: as a status, or as an event where the stream has begun."""
        await self._record_failure(exchange, "failed", error.code)
        await self._tell(exchange.outlet, error)

    async def _tell(self, outlet: Outlet, error: errors.GatewayError) -> None:
        """Send an error to a client that may have left, or that may not be reading."""
        with contextlib.suppress(ClientGone, TimeoutError):
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await outlet.send_error(error)

    async def _record_failure(self, exchange: Exchange, status: str, code: str) -> None:
        if exchange.asked.record:
            await self._recorder.failure(exchange.turn_id, status=status, error=code)


async def _cancel_when_gone(work: asyncio.Task[None], exchange: Exchange, receive: Receive) -> None:
    """Cancel the serving of an exchange once its client has left; a complete answer looks like that, too."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.outlet.done:
        exchange.client_gone = True
        work.cancel()


async def _send_tokens(
    outlet: Outlet, head: openai_chat.Head, chat: openai_chat.ParsedChat, event: TokensDrawn
) -> None:
    """One chunk for one event; none where there is nothing to show."""
    if not (event.text or event.tool_calls or ((chat.logprobs or chat.return_token_ids) and event.ids)):
        return
    delta: dict[str, object] = {}
    if event.text or not event.tool_calls:
        delta["content"] = event.text
    if event.tool_calls:
        delta["tool_calls"] = list(event.tool_calls)
    logprobs = openai_chat.render_logprobs(event.ids, event.logprobs) if chat.logprobs else None
    ids = openai_chat.TokenIds(drawn=event.ids) if chat.return_token_ids and event.ids else openai_chat.NO_IDS
    await outlet.send_event(
        openai_chat.render_chunk(head, delta, include_usage=chat.include_usage, logprobs=logprobs, ids=ids)
    )


async def _send_end(exchange: Exchange, head: openai_chat.Head, finished: Finished) -> None:
    chat, outlet, answer = exchange.asked.chat, exchange.outlet, exchange.answer
    usage = _usage_of(finished)
    reason = finished.finish_reason
    if not chat.stream:
        logprobs = openai_chat.render_logprobs(answer.ids, answer.logprobs) if chat.logprobs else None
        drawn = openai_chat.TokenIds(prompt=answer.prompt_ids or None, drawn=answer.ids or None)
        ids = drawn if chat.return_token_ids else openai_chat.NO_IDS
        body = openai_chat.render_completion(
            head, answer.message(), finish_reason=reason, usage=usage, logprobs=logprobs, ids=ids
        )
        await outlet.send_json(200, body)
        return
    last = openai_chat.render_chunk(head, {}, finish_reason=reason, include_usage=chat.include_usage)
    if chat.include_usage and usage is not None:
        last += openai_chat.render_chunk(head, None, usage=usage, include_usage=True)
    await outlet.end_stream(last + openai_chat.DONE)


def _usage_of(finished: Finished) -> openai_chat.Usage | None:
    """The engine's counts; None where it gave none: they are not 0."""
    if finished.prompt_tokens is None or finished.completion_tokens is None:
        return None
    return openai_chat.Usage(prompt_tokens=finished.prompt_tokens, completion_tokens=finished.completion_tokens)


def _affinity(exchange: Exchange) -> str:
    """What keeps a conversation on one replica: its session, by our id; the client's own for it, where unrecorded."""
    if exchange.opened is not None:
        return exchange.opened.request.session_id
    return exchange.asked.session_id or exchange.turn_id
