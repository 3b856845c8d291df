"""The gateway as a process: uvicorn with uvloop and httptools, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

import uvicorn
import uvloop
from fastapi import FastAPI

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.gateway.app import ChatFirst, create_app
from openclaw_rl.serving.gateway.guard import PATIENCE_S
from openclaw_rl.serving.gateway.refusing import PUBLISH, RefusingEngine
from openclaw_rl.store import Store

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""The writing thread gives the interpreter up at each statement, the event loop at each system call; whoever wants it
back waits so long for the other. Python's own 5 ms would be more than all else that a request costs."""

_STOP_POLL_S = 0.1
_SHARE_OF_SHUTDOWN = 0.6  # of supervisor.shutdown_timeout_s, so that closing has time left


class GatewayServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the process has one stop event for everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `supervision.process.stop_event`."""
        yield


def run(config: Config, stop: threading.Event) -> None:
    """Serve until `stop` is set; answers that are being given then may end, within the shutdown time."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, stop))


async def _serve(config: Config, stop: threading.Event) -> None:
    store = await asyncio.to_thread(Store.open, config.store_path, patience_s=PATIENCE_S)
    engine = connect(config)
    if config.serving.on_update == "refuse":
        engine = RefusingEngine(engine, lambda: store.status.in_span(PUBLISH))
    try:
        await serve(config, store, engine, stop)
    finally:
        await engine.close()
        await asyncio.to_thread(store.close)


async def serve(config: Config, store: Store, engine: Engine, stop: threading.Event) -> None:
    """Serve `engine` and `store` on the configured address until `stop` is set.

    Raises:
        RuntimeError: if the address cannot be bound, or the application does not start, or something that it does in
            the background has failed: a gateway that no longer looks at the engine would repeat what it last saw.
    """
    app = create_app(config, store, engine)
    server = GatewayServer(
        uvicorn.Config(
            ChatFirst(app),
            host=config.serving.host,
            port=config.serving.port,
            loop="uvloop",
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nobody asks for the client's address
            timeout_graceful_shutdown=max(1, int(config.supervisor.shutdown_timeout_s * _SHARE_OF_SHUTDOWN)),
        )
    )
    watcher = asyncio.create_task(_stop_when_set(server, stop, app))
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn's way to say that it cannot bind
        raise RuntimeError(f"cannot serve on {config.serving.host}:{config.serving.port}") from error
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    if not server.started:
        raise RuntimeError("the gateway did not start")
    for task in app.state.tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise RuntimeError("the gateway's background work has failed") from failure


async def _stop_when_set(server: uvicorn.Server, stop: threading.Event, app: FastAPI) -> None:
    while not stop.is_set() and not any(task.done() for task in app.state.tasks):  # noqa: ASYNC110 - see below
        await asyncio.sleep(_STOP_POLL_S)  # `stop` is set by a signal handler, outside any event loop
    server.should_exit = True
