"""The process of one loop: `python -m openclaw_rl.supervision.child training --config RUN_DIR/config.json`."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.extensions import exit_code
from openclaw_rl.supervision.alone import alone
from openclaw_rl.supervision.process import die_with_parent, ending_at_once, leave, stop_event
from openclaw_rl.types import LoopName

EXIT_CONFIGURATION = 78
"""The configuration cannot be honoured (EX_CONFIG of sysexits.h)."""
EXIT_USAGE = 2
EXIT_NO_RESTART = frozenset({EXIT_CONFIGURATION, EXIT_USAGE})
"""Codes after which another try would end in the same way."""

MODULES: Mapping[LoopName, str] = {
    LoopName.GATEWAY: "openclaw_rl.serving.gateway.server",
    LoopName.ROLLOUT: "openclaw_rl.rollout.loop",
    LoopName.JUDGING: "openclaw_rl.judging.loop",
    LoopName.TRAINING: "openclaw_rl.training.loop",
    LoopName.DRIVER: "openclaw_rl.rollout.driver",
}
ENGINE_MODULES: Mapping[str, str] = {
    "embedded": "openclaw_rl.serving.engines.embedded.server",
    "vllm": "openclaw_rl.serving.engines.vllm.server",
    "scripted": "openclaw_rl.testing.scripted_engine",
    "sglang": "openclaw_rl.serving.engines.sglang.server",
    "openai": "openclaw_rl.serving.engines.openai.watcher",
}
"""Each has `run(config, stop)`, which returns once `stop` is set."""

REPLICAS_MODULE = "openclaw_rl.serving.engines.replicas.pool"
"""The same for several: it starts the process of each, and minds them."""

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
QUIET = ("httpx", "httpcore", "openai", "urllib3", "asyncio", "sqlalchemy", "alembic")
"""Libraries that would write a line for every request, or at DEBUG the messages themselves."""


def module_of(loop: LoopName, config: Config) -> str:
    """The module whose `run` is the loop."""
    if loop is LoopName.ENGINE and config.engine.count > 1 and config.engine.kind != "openai":
        return REPLICAS_MODULE
    return ENGINE_MODULES[config.engine.kind] if loop is LoopName.ENGINE else MODULES[loop]


def configure_logging(name: str) -> None:
    """Log to standard error, for people: time, level, the process's name, the message.

    Raises:
        ConfigError: if OPENCLAW_RL_LOG_LEVEL is no level.
    """
    level = os.environ.get("OPENCLAW_RL_LOG_LEVEL", "INFO").upper()
    if level not in LOG_LEVELS:
        raise ConfigError(f"OPENCLAW_RL_LOG_LEVEL = {level}: choose one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)-7s {name:<8} %(name)s: %(message)s",
        force=True,
    )
    for library in QUIET:
        logging.getLogger(library).setLevel(logging.WARNING)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one loop until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 crashed (with a traceback), 78 configuration."""
    parser = argparse.ArgumentParser(prog="openclaw_rl.supervision.child")
    parser.add_argument("loop", choices=[loop.value for loop in LoopName])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--parent", type=int, help="end when the process with this pid, which started us, ends")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    stop = stop_event()
    loop = LoopName(arguments.loop)
    logger = logging.getLogger("openclaw_rl.supervision.child")
    try:
        configure_logging(loop.value)
        config = load_json(arguments.config)
        logger.info("starting, pid %d", os.getpid())
        with ending_at_once():  # libraries take seconds to import
            module = importlib.import_module(module_of(loop, config))
        with alone(config.run_dir, loop, stop) as ours:
            if ours:
                module.run(config, stop)
    except ConfigError as error:
        logging.basicConfig(stream=sys.stderr)
        logger.error("%s", error)
        return EXIT_CONFIGURATION
    logger.info("stopped")
    return 0


def code_of(run: Callable[[], int]) -> int:
    """The exit code of a loop, which it may also raise; what else it raises is shown, and is 1.

    So that a loop that dies does end: the interpreter would first wait for threads of the user's own.
    """
    try:
        return run()
    except BaseException as error:  # noqa: BLE001 - the last place where it can be shown
        return exit_code(error)


if __name__ == "__main__":
    leave(code_of(main))
