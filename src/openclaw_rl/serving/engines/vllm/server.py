"""The engine process for `engine.kind = vllm`: a vLLM server of its own, or one that runs, behind our engine HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator

import uvloop

from openclaw_rl.config import Config
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.check import kind_in_service
from openclaw_rl.serving.engines.embedded.app import create_app, serve
from openclaw_rl.serving.engines.installed import check_installed
from openclaw_rl.serving.engines.vllm.client import VllmEngine
from openclaw_rl.serving.engines.vllm.launch import (
    PACKAGE,
    find_python,
    server_command,
    server_context,
    server_environment,
)
from openclaw_rl.serving.engines.vllm.process import VllmProcess
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter, Reports, ending_at_once
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

_SHARE_OF_SHUTDOWN = 0.3
"""Of `supervisor.shutdown_timeout_s`: what vLLM gets to end in order, after our own streams have ended."""


class VllmEnded(RuntimeError):
    """vLLM ended, or did not come up in time; this process ends too, and its supervisor starts both again."""


def run(config: Config, stop: threading.Event, reporter: Reports | None = None) -> None:
    """Serve vLLM until `stop` is set; `reporter` None: tell the record how it is.

    Raises:
        ConfigError: there is no vLLM, or an older one than we need, or it lacks something.
        VllmEnded: it ended by itself, or did not answer within `engine.vllm.start_timeout_s`.
    """
    store = Store.open(config.store_path)
    try:
        with _server(config) as (url, process):
            uvloop.run(_serve(config, url, process, stop, reporter or LoopReporter(store, LoopName.ENGINE)))
    finally:
        store.close()


@contextlib.contextmanager
def _server(config: Config) -> Iterator[tuple[str, VllmProcess | None]]:
    """A vLLM server for the time of a block, and its address; no process where another one is used."""
    if config.engine.urls:
        yield config.engine.urls[0], None
        return
    python, model = find_python(config), resolve_model(config.model)
    with ending_at_once():
        check_installed(PACKAGE, python)
    context = server_context(config, model)
    process = VllmProcess(
        lambda socket: server_command(config, python=python, model=model, context=context, socket=socket),
        server_environment(config, os.environ),
    )
    try:
        yield process.url, process
    finally:
        process.end(config.supervisor.shutdown_timeout_s * _SHARE_OF_SHUTDOWN)


async def _serve(
    config: Config, url: str, process: VllmProcess | None, stop: threading.Event, reporter: Reports
) -> None:
    engine = VllmEngine(config, url, kind_in_service(config))
    ended = threading.Event()
    starting = asyncio.create_task(_start(engine, config.engine.vllm.start_timeout_s))
    starting.add_done_callback(lambda task: ended.set() if task.cancelled() or task.exception() else None)

    def heartbeat() -> None:
        if stop.is_set() or (process is not None and process.returncode is not None):
            ended.set()
        elif not starting.done():
            reporter.waiting("vLLM to start" if process is not None else f"vLLM at {url}")
        elif engine.away:
            reporter.waiting("vLLM to answer again" if process is not None else f"vLLM at {url} to answer again")
        elif engine.busy:
            reporter.working("generating", requests=engine.busy)
        else:
            reporter.waiting("a request")

    try:
        await serve(create_app(engine), config.engine.host, config.engine.port, ended, heartbeat)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()
    if not stop.is_set():
        if not starting.cancelled():
            starting.result()
        raise VllmEnded(f"vLLM ended with code {None if process is None else process.returncode}")


async def _start(engine: VllmEngine, within_s: float) -> None:
    await asyncio.to_thread(engine.load_tokenizer)
    try:
        async with asyncio.timeout(within_s):
            await engine.start()
    except TimeoutError as error:
        raise VllmEnded(f"vLLM did not answer within {within_s:.0f} s") from error
    logger.info("vLLM is ready, context %d tokens", engine.context)
