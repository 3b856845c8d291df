"""Any engine behind its real HTTP, on a free port of loopback, in a thread: for tests of what asks it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.serving.engines.embedded.app import create_app, serve
from openclaw_rl.serving.engines.protocol import Engine

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0


@contextmanager
def engine_server(engine: Engine) -> Iterator[str]:
    """Serve `engine`; the URL at which it listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    stop = threading.Event()
    serving = serve(create_app(engine), "127.0.0.1", port, stop, heartbeat=lambda: None)
    thread = threading.Thread(target=asyncio.run, args=(serving,))
    thread.start()
    try:
        _wait_until_open(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join(STOP_TIMEOUT_S)


def _wait_until_open(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
