"""The process of one replica.

python -m openclaw_rl.serving.engines.replicas.worker 0 --config RUN_DIR/config.json
"""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.serving.engines.replicas.pool import threads_of_each
from openclaw_rl.supervision.alone import alone
from openclaw_rl.supervision.child import ENGINE_MODULES, EXIT_CONFIGURATION, configure_logging
from openclaw_rl.supervision.process import die_with_parent, ending_at_once, leave, stop_event
from openclaw_rl.types import LoopName


class Silent:
    """Tells nobody: the record has one line for the engine, and the pool writes it."""

    def working(self, activity: str, **details: Any) -> None:
        """Not told."""

    def waiting(self, waiting_for: str, **details: Any) -> None:
        """Not told."""


SHARE_OF_GRACE = 0.7
"""Of `supervisor.shutdown_timeout_s`: a server behind a replica ends before the pool loses its patience."""


def replica_config(config: Config, number: int) -> Config:
    """The tree as replica `number` (from 0) sees it: one engine, at its port, with its share of the threads; and the
    one server of `engine.urls` that it speaks for.
    """
    engine, supervisor = config.engine, config.supervisor
    own = {
        "port": engine.replica_ports[number],
        "threads": threads_of_each(engine.threads, engine.count),
        "replicas": 1,
        "urls": engine.urls[number : number + 1],
    }
    grace = {"shutdown_timeout_s": supervisor.shutdown_timeout_s * SHARE_OF_GRACE}
    return config.model_copy(
        update={"engine": engine.model_copy(update=own), "supervisor": supervisor.model_copy(update=grace)}
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 crashed (with a traceback), 78 configuration."""
    parser = argparse.ArgumentParser(prog="openclaw_rl.serving.engines.replicas.worker")
    parser.add_argument("number", type=int)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    stop = stop_event()
    try:
        configure_logging(f"engine-{arguments.number + 1}")
        config = load_json(arguments.config)
        with ending_at_once():  # libraries take seconds to import
            module = importlib.import_module(ENGINE_MODULES[config.engine.kind])
        with alone(config.run_dir, f"{LoopName.ENGINE}-{arguments.number + 1}", stop) as ours:
            if ours:
                module.run(replica_config(config, arguments.number), stop, Silent())
    except ConfigError as error:
        logging.getLogger(__name__).error("%s", error)
        return EXIT_CONFIGURATION
    return 0


if __name__ == "__main__":
    leave(main())
