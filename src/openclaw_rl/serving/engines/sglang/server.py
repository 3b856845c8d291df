"""The engine's loop with SGLang: starts `sglang.launch_server`, or takes one that runs, and speaks for it."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import available_devices, choose_device, choose_dtype, context_length, resolve_model
from openclaw_rl.serving.engines.check import kind_in_service
from openclaw_rl.serving.engines.external import ExternalServer, RunningServer, Watch, speak_for
from openclaw_rl.serving.engines.installed import Package, check_installed
from openclaw_rl.serving.engines.interpreter import python_for
from openclaw_rl.serving.engines.protocol import EngineHealth
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.sglang.client import SglangEngine, queue_length
from openclaw_rl.serving.engines.sglang.requirements import WRITTEN_FOR, another_model, unmet
from openclaw_rl.serving.engines.sglang.wire import RESERVED_TOKENS
from openclaw_rl.store import Store
from openclaw_rl.supervision.ports import base_url, resolve_port
from openclaw_rl.supervision.process import LoopReporter, Reports, ending_at_once
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

PACKAGE = Package(
    name="SGLang",
    module="sglang",
    distributions=("sglang",),
    made_for=WRITTEN_FOR,
    remedy=f"install sglang=={WRITTEN_FOR} there (docs/13-engines.md), or set engine.sglang.python to another Python",
)
"""What the Python must have."""
KEY_FILE = "sglang.yaml"
"""In the run directory: options of a SGLang that is started here which are not for the eyes of others."""
_NOT_BESIDE_A_KEY = frozenset({"--config", "--api-key", "--admin-api-key", "--tokenizer-worker-num"})
"""It reads one file of options; and with several tokenizers it asks for no key."""
_SHARE_OF_SHUTDOWN = 0.25
"""Of supervisor.shutdown_timeout_s: the gateway's streams have ended before the engine is told to."""


def run(config: Config, stop: threading.Event, reporter: Reports | None = None) -> None:
    """Have SGLang serve until `stop` is set; `reporter` None: tell the record how it is.

    Raises:
        ConfigError: no Python with SGLang is there, or an older one than we need, or the server that runs lacks what
            this configuration needs.
        ExternalServerEnded: the server ended by itself, or was not ready in time.
    """
    store = Store.open(config.store_path)
    try:
        situation = Situation(config=config, in_service=kind_in_service(config))
        with _server(situation) as server:
            uvloop.run(_serve(situation, server, stop, reporter or LoopReporter(store, LoopName.ENGINE)))
    finally:
        store.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Server:
    """Where it is; its process and the key that it asks for, if it is started here."""

    url: str
    running: RunningServer | None = None
    key: str | None = None


@contextmanager
def _server(situation: Situation) -> Iterator[_Server]:
    """The server for the time of a block."""
    config = situation.config
    if config.engine.urls:
        yield _Server(url=config.engine.urls[0])
        return
    with ending_at_once():
        check_installed(PACKAGE, python_of(config))
    port = resolve_port(config.engine.host, 0, "engine")
    options_file = config.run_dir / _key_file(config)
    with _keyed(options_file) as key:
        running = RunningServer(launch(situation, port, options_file))
        try:
            yield _Server(url=base_url(config.engine.host, port), running=running, key=key)
        finally:
            running.end()


def _key_file(config: Config) -> str:
    """`KEY_FILE`, and of replicas one for each: which it is of them its port says."""
    ports = config.engine.replica_ports
    name = Path(KEY_FILE)
    return f"{name.stem}-{ports.index(config.engine.port) + 1}{name.suffix}" if ports else KEY_FILE


@contextmanager
def _keyed(path: Path) -> Iterator[str]:
    """A new key, in a file of SGLang's options at `path` for the time of a block.

    SGLang lets pages of any origin read its answers, and its routes replace weights: without a key any page in a
    browser on this machine could use them. On a command line others of the machine could read it.
    """
    key = secrets.token_hex(32)
    write_private(path, json.dumps({"api-key": key}) + "\n")  # JSON is YAML
    try:
        yield key
    finally:
        path.unlink(missing_ok=True)


async def _serve(situation: Situation, server: _Server, stop: threading.Event, reporter: Reports) -> None:
    config = situation.config
    engine = SglangEngine.from_config(config, server.url, key=server.key)
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

    name = "SGLang" if server.running is not None else f"SGLang at {server.url}"
    watch = Watch(name, server.running, ask, start_timeout_s=config.engine.sglang.start_timeout_s)
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
    return python_for("sglang", config)


def launch(situation: Situation, port: int, options_file: Path) -> ExternalServer:
    """How SGLang is started for what is to be run, to listen on `port`. `options_file`: where it reads its key.

    Raises:
        ConfigError: its Python or the model is not there; or an argument of its owner takes the key from it.
    """
    config = situation.config
    engine, model = config.engine, config.model
    _check_extra(engine.extra_args)
    device = choose_device(model.device, available_devices())
    directory = resolve_model(model)
    context = min(engine.context_length + RESERVED_TOKENS, context_length(directory))
    lora = config.training.lora
    options = {
        "--config": str(options_file.absolute()),
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
    if situation.serves_whole_models or not config.training.use_lora:  # also where one may only be gone back to
        flags.append("--disable-overlap-schedule")  # what is drawn is counted before a pause: `unmet_by_swaps`
    command = [str(python_of(config)), "-m", "sglang.launch_server"]
    command += [word for option in options.items() for word in option]
    command += ["--lora-target-modules", *lora.target_modules, *flags, *engine.extra_args]
    return ExternalServer(
        name="SGLang",
        command=command,
        environment=environment_for(device),
        grace_s=max(1.0, config.supervisor.shutdown_timeout_s * _SHARE_OF_SHUTDOWN),
    )


def _check_extra(arguments: Sequence[str]) -> None:
    for name in (word.partition("=")[0] for word in arguments):
        if name in _NOT_BESIDE_A_KEY:
            raise ConfigError(
                f"engine.extra_args: a SGLang that is started here takes no {name}: it is given a key of its own, in "
                "the one --config that it reads"
            )


def environment_for(device: str) -> dict[str, str]:
    """What SGLang reads from the environment: on a CPU it wants to be told so twice."""
    return {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
