"""The engine's process: the model, its compute thread, and HTTP on loopback."""

from __future__ import annotations

import logging
import os
import sys
import threading
from functools import partial

import uvloop

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded.app import create_app, serve
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter, Reports, begin_beside
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""The compute thread gives the interpreter up at each operation on tensors, hundreds of times a token, and waits so
long to have it back from a thread that reads a version. With Python's own 5 ms a publication held tokens up."""


class EngineCrashed(RuntimeError):
    """The compute thread ended by itself; the process ends too, and its supervisor starts another."""


def run(config: Config, stop: threading.Event, reporter: Reports | None = None) -> None:
    """Serve the embedded engine until `stop` is set; `reporter` None: tell the record how it is.

    Raises:
        EngineCrashed: the compute thread failed.
        Exception: whatever kept the model from loading.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if reporter is not None:
        uvloop.run(_serve(config, stop, reporter))
        return
    store = Store.open(config.store_path)
    try:
        uvloop.run(_serve(config, stop, LoopReporter(store, LoopName.ENGINE)))
    finally:
        store.close()


async def _serve(config: Config, stop: threading.Event, reporter: Reports) -> None:
    service = EmbeddedService(config)
    ended = threading.Event()
    loading = begin_beside(partial(service.load_model, threads_of(config)))
    loading.add_done_callback(lambda done: ended.set() if done.cancelled() or done.exception() else None)

    def heartbeat() -> None:
        if stop.is_set() or service.crashed.is_set():
            ended.set()
        elif not loading.done():
            reporter.working("loading the model")
        elif service.busy:
            reporter.working("generating", requests=service.busy)
        else:
            reporter.waiting("a request")

    try:
        await serve(create_app(service), config.engine.host, config.engine.port, ended, heartbeat)
    finally:
        await service.close()
    if loading.done():
        loading.result()
    loading.cancel()  # told to stop while it loads: nobody waits for the rest
    if service.crashed.is_set():
        raise EngineCrashed("the engine's compute thread failed")


def threads_of(config: Config) -> int:
    """The CPU threads to compute with: as configured, else all but one of those that this process may use."""
    if config.engine.threads > 0:
        return config.engine.threads
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available - 1)
