"""The gateway's application: its routes, its background tasks, and OpenAI's error shape for everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw_rl.config import Config
from openclaw_rl.rollout.classify import exclusion_of
from openclaw_rl.serving.engines.openai.features import LearnsFromAnswers
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine
from openclaw_rl.serving.gateway import errors, namesakes
from openclaw_rl.serving.gateway.auth import KeyRing, Principal
from openclaw_rl.serving.gateway.chat import ChatEndpoint, Load
from openclaw_rl.serving.gateway.feedback import parse_feedback, read_small_body
from openclaw_rl.serving.gateway.guard import StoreDown
from openclaw_rl.serving.gateway.local_only import LocalOnly
from openclaw_rl.serving.gateway.owners import OwnerNames, Router
from openclaw_rl.serving.gateway.recorder import Recorder, reason_of
from openclaw_rl.serving.gateway.refusing import RefusingEngine
from openclaw_rl.serving.gateway.reward import parse_reward
from openclaw_rl.serving.gateway.use import UseMark
from openclaw_rl.serving.gateway.versions import VersionKeeper
from openclaw_rl.store import Store
from openclaw_rl.store.feedback import SeveralUsers
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.store.verdicts import human_judgement
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """What the routes share."""

    store: Store
    keys: KeyRing
    keeper: VersionKeeper
    router: Router
    owners: OwnerNames
    recorder: Recorder
    load: Load
    use_mark: UseMark | None
    reporter: LoopReporter
    engine: Engine
    owned: bool
    """Whether each owner has sessions of their own (`policies.per`)."""


def create_app(config: Config, store: Store, engine: Engine) -> FastAPI:
    """The gateway as an ASGI application. The caller closes `store` and `engine` after it has shut down.

    While it runs `app.state.tasks` are what it does in the background; one that ends leaves it blind.
    """
    services = _services(config, store, engine)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await services.recorder.start()
        await _warn_of_namesakes(services, config)
        running = [services.keeper.run(), _heartbeat(services), services.recorder.guard.watch()]
        running += [] if services.use_mark is None else [services.use_mark.run()]
        app.state.tasks = tasks = [asyncio.create_task(one) for one in running]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await services.recorder.close()

    # No schema pages: bodies are checked by the dialects, which FastAPI does not see.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services, app.state.tasks = services, []
    chat = ChatEndpoint(
        config.serving,
        engine,
        services.keys,
        services.keeper,
        services.recorder,
        services.load,
        router=services.router,
        owners=services.owners,
    )
    app.router.routes.append(Route(CHAT_PATH, endpoint=chat, methods=["POST"]))
    _add_routes(app, services)
    _add_feedback_routes(app, services)
    _add_error_shape(app)
    app.state.chat = chat
    if not config.serving.api_keys:
        app.add_middleware(LocalOnly)
        app.state.chat = LocalOnly(chat)
    return app


def _services(config: Config, store: Store, engine: Engine) -> Services:
    name, policies, load = config.model.served_name, config.policies, Load()
    method = config.training.method
    keeper = VersionKeeper(store, engine, served_name=name, owned=policies.owned)
    return Services(
        store=store,
        keys=KeyRing(config.serving.api_keys),
        keeper=keeper,
        router=Router(store, engine, keeper, policies, served_name=name),
        owners=OwnerNames(policies, [key.name for key in config.serving.api_keys]),
        recorder=Recorder(
            store,
            config.rollout,
            untrainable=lambda turn: exclusion_of(turn, policy_name=name, method=method) is not None,
        ),
        owned=policies.owned,
        load=load,
        use_mark=UseMark(config.last_use_path, load) if config.training.window.idle_s > 0 else None,
        reporter=LoopReporter(store, LoopName.GATEWAY),
        engine=engine,
    )


async def _warn_of_namesakes(services: Services, config: Config) -> None:
    try:
        await asyncio.to_thread(namesakes.warn, services.store, config)
    except STORE_ERRORS as error:  # the gateway starts all the same; `status` warns of them too
        logger.warning("not looked for keys that are called like users (%s)", reason_of(error))


class ChatFirst:
    """The application with a shorter way for chat requests: to their endpoint, past all that FastAPI does.

    The endpoint answers for its errors itself. The route that is there too answers for other methods.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._chat: ASGIApp = app.state.chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_chat = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == CHAT_PATH
        await (self._chat if is_chat else self._app)(scope, receive, send)


def _add_routes(app: FastAPI, services: Services) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return _json(200, {"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        return await _readiness(services)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        principal = _principal(services, request)
        names = await services.router.model_names(_owner(services, request, principal), principal)
        return _json(200, {"object": "list", "data": [_model(name) for name in names]})

    @app.get("/v1/models/{name:path}")  # a name that was chosen may have slashes
    async def model(name: str, request: Request) -> Response:
        principal = _principal(services, request)
        await services.router.check_model(name, _owner(services, request, principal), principal)
        return _json(200, _model(name))

    @app.post("/v1/sessions/{session_id:path}/end")
    async def end_session(session_id: str, request: Request) -> Response:
        principal = _principal(services, request)
        try:
            owner = _owner(services, request, principal)
            known = await services.recorder.end_session(principal.key_id, session_id, owner)
        except (StoreDown, *STORE_ERRORS) as error:
            logger.error("a session was not ended (%s)", reason_of(error))
            raise errors.record_unavailable() from error
        if not known:
            whose = " of that user, whom X-User-Id names" if services.owned else ""
            message = f"This key has no such session{whose}."
            raise errors.GatewayError(404, message, code="session_not_found")
        return _json(200, {"session_id": session_id, "ended": True})


def _add_feedback_routes(app: FastAPI, services: Services) -> None:
    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        principal = _principal(services, request)
        said = parse_feedback(await read_small_body(request))
        judgement = human_judgement(said.turn_id, said.score, said.comment)
        owner = None if principal.admin else principal.key_id
        try:
            rated = await services.recorder.feedback(judgement, key_id=owner)
        except (StoreDown, *STORE_ERRORS) as error:
            logger.error("feedback was not recorded (%s)", reason_of(error))
            raise errors.record_unavailable() from error
        if rated is None:
            raise errors.GatewayError(404, "This key has no such turn.", code="turn_not_found")
        return _json(200, {"turn_id": rated.turn_id, "score": said.score, "recorded_only": rated.recorded_only})

    @app.post("/v1/sessions/{session_id:path}/reward")
    async def reward(session_id: str, request: Request) -> Response:
        principal = _principal(services, request)
        said = parse_reward(await read_small_body(request))
        key = None if principal.admin else principal.key_id
        owner = _owner(services, request, principal) if _names_user(request) or not principal.admin else None
        try:
            rated = await services.recorder.reward(
                said, session=session_id, key_id=key, owner=owner, apart=services.owned
            )
        except SeveralUsers:
            message = "Several users have a session of that name: say whose with X-User-Id, or send turn_id."
            raise errors.bad_request("X-User-Id", message, code="user_not_named") from None
        except (StoreDown, *STORE_ERRORS) as error:
            logger.error("a reward was not recorded (%s)", reason_of(error))
            raise errors.record_unavailable() from error
        if rated is None:
            whose = " of that user" if services.owned else ""
            message = f"This key has no such turn in such a session{whose}."
            raise errors.GatewayError(404, message, code="turn_not_found")
        body = {"turn_id": rated.turn_id, "score": said.score, "recorded_only": rated.recorded_only}
        return _json(200, {**body, "repeated": rated.repeated})


async def _readiness(services: Services) -> Response:
    keeper = services.keeper
    body: dict[str, object] = {
        "ready": keeper.ready,
        "waiting_for": keeper.problem or None,
        "version": keeper.current,
        "active_requests": services.load.active,
        "turns_not_recorded": services.recorder.turns_not_recorded,
        "record": _record_state(services),
        "replicas": _replicas(services),
    }
    try:
        loops = await asyncio.to_thread(services.store.status.loops)
    except STORE_ERRORS as error:
        body["loops"] = None
        body["store_problem"] = type(error).__name__
    else:
        now = time.time()
        body["loops"] = {
            status.loop.value: {
                "activity": status.activity,
                "waiting_for": status.waiting_for,
                "since": status.since,
                "heartbeat_age_s": round(max(0.0, now - status.heartbeat_at), 3),
            }
            for status in loops
        }
    response = _json(200 if keeper.ready else 503, body)
    if not keeper.ready:
        response.headers["retry-after"] = str(errors.RETRY_AFTER_S)
    return response


def _replicas(services: Services) -> list[dict[str, object]]:
    """How each replica is; none where there is one engine."""
    engine = _behind(services.engine)
    return [asdict(one) for one in engine.report()] if isinstance(engine, ReplicatedEngine) else []


def _upstreams(services: Services) -> dict[str, Mapping[str, bool]]:
    """What answers have told of each upstream, by its URL: the engine's loop watches them, and sees no answers."""
    engine = _behind(services.engine)
    each = engine.inner if isinstance(engine, ReplicatedEngine) else (engine,)
    return {one.url: one.told for one in each if isinstance(one, LearnsFromAnswers)}


def _behind(engine: Engine) -> Engine:
    return engine.inner if isinstance(engine, RefusingEngine) else engine


def _record_state(services: Services) -> dict[str, object]:
    """Whether the record can be written, since when not, and what was lost and is not in its own counters yet."""
    guard = services.recorder.guard
    return {"problem": guard.problem, "since": guard.since, "lost": dict(guard.lost), "unsaved": dict(guard.unsaved)}


async def _heartbeat(services: Services) -> None:
    """Tell the record what the gateway does, apart from the keeper, which may wait for the engine."""
    while True:
        load, recorder, keeper = services.load, services.recorder, services.keeper
        details = {
            "active": load.active,
            "answered": load.answered,
            "version": keeper.current,
            "turns_not_recorded": recorder.turns_not_recorded,
            "replicas": _replicas(services),
            "upstreams": _upstreams(services),
        }
        if services.use_mark is not None:
            details["use_marks_failed"] = services.use_mark.failures
        try:
            if keeper.ready:
                await asyncio.to_thread(services.reporter.working, "serving", **details)
            else:
                words = f"a version that can answer: {keeper.problem}"
                await asyncio.to_thread(services.reporter.waiting, words, **details)
        except STORE_ERRORS as error:
            logger.warning("the gateway's heartbeat was not written (%s)", type(error).__name__)
        await asyncio.sleep(HEARTBEAT_S)


def _principal(services: Services, request: Request) -> Principal:
    authorization = request.headers.get("authorization")
    return services.keys.principal(None if authorization is None else authorization.encode("latin-1"))


def _owner(services: Services, request: Request, principal: Principal) -> str:
    """Whose policy a request without a chat body is about: the user in its header, else its key's."""
    return services.owners.owner(principal, header=request.headers.get("x-user-id"))


def _names_user(request: Request) -> bool:
    """Whether somebody is in the header: blanks are nobody, as they are to `OwnerNames`."""
    return bool(request.headers.get("x-user-id", "").strip(" \t"))


def _add_error_shape(app: FastAPI) -> None:
    async def ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.GatewayError)
        return Response(error.body(), error.status, dict(error.headers), "application/json")

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        messages = {
            404: f"There is no {request.method} {request.url.path}.",
            405: f"{request.url.path} does not take {request.method}.",
        }
        codes = {404: "unknown_url", 405: "method_not_allowed"}
        message = messages.get(error.status_code, str(error.detail))
        body = errors.error_body(error.status_code, message, code=codes.get(error.status_code, "http_error"))
        return Response(body, error.status_code, dict(error.headers or {}), "application/json")

    async def fault(_request: Request, _error: Exception) -> Response:
        error = errors.internal()
        return Response(error.body(), error.status, media_type="application/json")

    app.add_exception_handler(errors.GatewayError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, fault)


def _model(name: str) -> dict[str, object]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "openclaw-rl"}


def _json(status: int, body: object) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")
