"""The engine's loop with SGLang: starts `sglang.launch_server`, or takes one that runs, and speaks for it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

import openclaw_rl
from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import available_devices, choose_device, choose_dtype, context_length, resolve_model
from openclaw_rl.serving.engines.check import kind_in_service
from openclaw_rl.serving.engines.external import ExternalServer, RunningServer, Watch, speak_for
from openclaw_rl.serving.engines.installed import Package, check_installed
from openclaw_rl.serving.engines.protocol import EngineHealth
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.sglang.client import SglangEngine, queue_length
from openclaw_rl.serving.engines.sglang.requirements import WRITTEN_FOR, another_model, unmet
from openclaw_rl.serving.engines.sglang.wire import RESERVED_TOKENS
from openclaw_rl.store import Store
from openclaw_rl.supervision.ports import base_url, resolve_port
from openclaw_rl.supervision.process import LoopReporter, ending_at_once
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

DEFAULT_PYTHON = Path(".venv-sglang/bin/python")
PACKAGE = Package(
    name="SGLang",
    module="sglang",
    distributions=("sglang",),
    made_for=WRITTEN_FOR,
    remedy=f"install sglang=={WRITTEN_FOR} there (docs/13-engines.md), or set engine.sglang.python to another Python",
)
"""What the Python must have."""
_SHARE_OF_SHUTDOWN = 0.25
"""Of supervisor.shutdown_timeout_s: the gateway's streams have ended before the engine is told to."""


def run(config: Config, stop: threading.Event) -> None:
    """Have SGLang serve until `stop` is set.

    Raises:
        ConfigError: no Python with SGLang is there, or an older one than we need, or the server that runs lacks what
            this configuration needs.
        ExternalServerEnded: the server ended by itself, or was not ready in time.
    """
    store = Store.open(config.store_path)
    try:
        with _server(config) as (url, running):
            uvloop.run(_serve(config, url, running, stop, LoopReporter(store, LoopName.ENGINE)))
    finally:
        store.close()


@contextmanager
def _server(config: Config) -> Iterator[tuple[str, RunningServer | None]]:
    """The server's address, and its process if it is started here, for the time of a block."""
    if config.engine.urls:
        yield config.engine.urls[0], None
        return
    with ending_at_once():
        check_installed(PACKAGE, python_of(config))
    port = resolve_port(config.engine.host, 0, "engine")
    running = RunningServer(launch(config, port))
    try:
        yield base_url(config.engine.host, port), running
    finally:
        running.end()


async def _serve(
    config: Config, url: str, running: RunningServer | None, stop: threading.Event, reporter: LoopReporter
) -> None:
    engine = SglangEngine.from_config(config, url)
    situation = Situation(config=config, in_service=kind_in_service(config))
    checked = False

    async def ask() -> EngineHealth:
        nonlocal checked
        health = await engine.health()
        if not checked:
            info = await engine.server_info()
            longest = await asyncio.to_thread(lambda: context_length(resolve_model(config.model)))
            if lacking := unmet(info, situation, context=min(config.engine.context_length, longest)):
                raise ConfigError("; ".join(lacking))
            _warn_of_another_model(info, config)
            await engine.prepare()
            checked = True
        return health

    name = "SGLang" if running is not None else f"SGLang at {url}"
    watch = Watch(name, running, ask, start_timeout_s=config.engine.sglang.start_timeout_s)
    await speak_for(engine, watch, stop, reporter, host=config.engine.host, port=config.engine.port)


def _warn_of_another_model(info: Mapping[str, Any], config: Config) -> None:
    if not config.training.enabled:
        return
    directory = resolve_model(config.model)
    if served := another_model(info, config.model.path, directory):
        logger.warning(
            "SGLang serves the model %s, and the trainer learns on %s (model.path): if they are not the same, what "
            "is learned means nothing there",
            served,
            directory,
        )


def python_of(config: Config) -> Path:
    """The Python that SGLang is started with.

    Raises:
        ConfigError: it is not there.
    """
    wanted = config.engine.sglang.python
    if wanted is not None:
        chosen = wanted.expanduser().absolute()
        if not os.access(chosen, os.X_OK):
            raise ConfigError(f"engine.sglang.python {chosen} is no program")
        return chosen
    sources = Path(openclaw_rl.__file__).resolve().parents[2]
    for folder in (Path.cwd(), sources):
        if os.access(folder / DEFAULT_PYTHON, os.X_OK):
            return folder / DEFAULT_PYTHON
    raise ConfigError(
        f"engine.kind = sglang needs {DEFAULT_PYTHON} with SGLang in {Path.cwd()} or {sources} (docs/13-engines.md); "
        "or set engine.sglang.python, or engine.urls to a SGLang that runs"
    )


def launch(config: Config, port: int) -> ExternalServer:
    """How SGLang is started for this configuration, to listen on `port`.

    Raises:
        ConfigError: its Python or the model is not there.
    """
    engine, model = config.engine, config.model
    device = choose_device(model.device, available_devices())
    directory = resolve_model(model)
    context = min(engine.context_length + RESERVED_TOKENS, context_length(directory))
    lora = config.training.lora
    options = {
        "--model-path": str(directory),
        "--host": engine.host,
        "--port": str(port),
        "--device": device,
        "--dtype": str(choose_dtype(model.dtype, device)).removeprefix("torch."),  # as the trainer computes
        "--context-length": str(context),
        "--max-running-requests": str(engine.max_parallel),
        "--max-queued-requests": str(queue_length(config)),  # whoever is too many is refused here
        "--chunked-prefill-size": str(engine.prefill_chunk_tokens),
        "--max-lora-rank": str(lora.rank),
        "--max-loras-per-batch": str(config.engine.max_versions + 1),  # the base takes one
        "--sampling-mask-max-tokens": str(engine.sglang.kept_tokens),
        "--log-level": "warning",
    }
    flags = ["--enable-lora", "--incremental-streaming-output", "--sleep-on-idle"]
    command = [str(python_of(config)), "-m", "sglang.launch_server"]
    command += [word for option in options.items() for word in option]
    command += ["--lora-target-modules", *lora.target_modules, *flags, *engine.extra_args]
    return ExternalServer(
        name="SGLang",
        command=command,
        environment=environment_for(device),
        grace_s=max(1.0, config.supervisor.shutdown_timeout_s * _SHARE_OF_SHUTDOWN),
    )


def environment_for(device: str) -> dict[str, str]:
    """What SGLang reads from the environment: on a CPU it wants to be told so twice."""
    return {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
