"""Any engine as HTTP on loopback; the embedded and the scripted engine are served by this one application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from openclaw_rl.serving.engines.embedded import wire
from openclaw_rl.serving.engines.protocol import ChatEvent, Engine, EngineError, InvalidEngineRequest
from openclaw_rl.types import PolicyVersion, VersionState

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_GRACE_S = 3
_LOCAL_NAMES = ["127.0.0.1", "localhost", "[::1]"]
"""What `Host` may say: a page whose own name resolves to loopback (DNS rebinding) says its own."""
_CLIENT_GONE = 499
"""The status of a request whose client was killed in mid-sentence: nobody reads it."""


def create_app(engine: Engine) -> FastAPI:
    """The routes: /chat, /render, /score, /versions/load, /versions/unload, /health."""
    app = FastAPI(title="openclaw-rl engine", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_LOCAL_NAMES)

    @app.exception_handler(EngineError)
    async def refused(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, EngineError):
            raise error
        return JSONResponse(wire.error_to_json(error), status_code=error.status)

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=_CLIENT_GONE)

    @app.post("/chat")
    async def chat(request: Request) -> Response:
        events = engine.chat(wire.chat_request_from_json(await _body(request)))
        first = await _first(request, events)  # what is wrong with it shows here, as a status of its own
        return StreamingResponse(_lines(first, events), media_type="application/x-ndjson")

    @app.post("/render")
    async def render(request: Request) -> JSONResponse:
        body = await _body(request)
        messages, tools = tuple(body.get("messages", ())), tuple(body.get("tools", ()))
        ids = await engine.render(messages, tools, generation_prompt=bool(body.get("generation_prompt", True)))
        return JSONResponse({"ids": ids})

    @app.post("/score")
    async def score(request: Request) -> JSONResponse:
        result = await engine.score(wire.score_request_from_json(await _body(request)))
        return JSONResponse({"logprobs": result.logprobs})

    @app.post("/versions/load")
    async def load(request: Request) -> JSONResponse:
        await engine.load_version(_version(await _body(request)))
        return JSONResponse({})

    @app.post("/versions/unload")
    async def unload(request: Request) -> JSONResponse:
        await engine.unload_version(_version(await _body(request)).version)
        return JSONResponse({})

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse(wire.health_to_json(await engine.health()))

    return app


async def _first(request: Request, events: AsyncIterator[ChatEvent]) -> ChatEvent:
    """The first event, which may take long; a client that leaves before it ends the generation.

    Raises:
        EngineError: what is wrong with the request.
        ClientDisconnect: nobody waits for it any more.
    """
    begun = asyncio.create_task(_next(events))
    left = asyncio.create_task(_until_left(request))
    try:
        await asyncio.wait({begun, left}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            raise ClientDisconnect
        return begun.result()
    finally:
        for task in (left, begun):
            task.cancel()
        await asyncio.gather(left, begun, return_exceptions=True)


async def _next(events: AsyncIterator[ChatEvent]) -> ChatEvent:
    return await anext(events)


async def _until_left(request: Request) -> None:
    """Its body has been read: what comes next is that the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _lines(first: ChatEvent, events: AsyncIterator[ChatEvent]) -> AsyncIterator[str]:
    """NDJSON of the events. Ends the generation when the client goes away (the response is then cancelled)."""
    try:
        yield wire.event_to_line(first)
        async for event in events:
            yield wire.event_to_line(event)
    except EngineError as error:
        yield wire.error_line(error)
    finally:
        await _close(events)


async def _close(events: AsyncIterator[ChatEvent]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


async def _body(request: Request) -> wire.Json:
    """The JSON object of a request that says it is one; a web page cannot say so without asking first, in vain."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidEngineRequest("the content type is not application/json", param="Content-Type")
    try:
        body = await request.json()
    except ValueError as error:
        raise InvalidEngineRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidEngineRequest("the body is not a JSON object")
    return body


def _version(body: wire.Json) -> PolicyVersion:
    version = body.get("version")
    if not isinstance(version, int) or version < 0:
        raise InvalidEngineRequest("version must be a whole number from 0", param="version")
    path = body.get("path")
    return PolicyVersion(version=version, state=VersionState.CANDIDATE, path=path, step=0, created_at=0.0)


class _Server(uvicorn.Server):
    """Leaves the signals to the process, which knows more about stopping than one of its servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(app: FastAPI, host: str, port: int, stop: threading.Event, heartbeat: Callable[[], None]) -> None:
    """Serve until `stop`; open streams get a few seconds. `heartbeat` is called ten times a second.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=60,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    while not stop.is_set() and not serving.done():
        await asyncio.to_thread(heartbeat)
        await asyncio.sleep(_POLL_S)
    server.should_exit = True
    try:
        await serving
    except SystemExit as error:  # uvicorn's way to say that it cannot bind
        raise RuntimeError(f"cannot serve on {host}:{port}: another program may listen there") from error
