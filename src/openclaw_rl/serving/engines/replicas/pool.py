"""The engine's process where it has several: starts each replica as a process of its own, and minds them.

One that ends is started again, after a while that doubles; the others go on. `status` hears of all of them from here.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.replicas.gpus import gpus_here, gpus_of_each
from openclaw_rl.store import Store
from openclaw_rl.supervision.child import EXIT_NO_RESTART
from openclaw_rl.supervision.children import Backoff, Child
from openclaw_rl.supervision.ports import engine_addresses
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.supervision.state import child_config_path, read_state
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

POLL_S = 0.05
SHARE_OF_SHUTDOWN = 0.3
"""Of supervisor.shutdown_timeout_s: the supervisor gives the engine's process a third of it."""


def run(config: Config, stop: threading.Event) -> None:
    """Mind the process of each engine until `stop` is set. Call it from the main thread, to which they are tied.

    Raises:
        ConfigError: one of them cannot be started with this configuration, or there are fewer GPUs than servers.
    """
    first_life = _is_first_life(config)
    gpus = _gpus(config, first_life)
    store = Store.open(config.store_path)
    children = [_child(config, number, gpus[number]) for number in range(config.engine.count)]
    names = list(engine_addresses(config))
    strict = first_life and not config.engine.urls  # those were asked when `up` began, and may come back as they were
    reporter = LoopReporter(store, LoopName.ENGINE)
    try:
        for child in children:
            child.start()
        while not stop.wait(POLL_S):
            for name, child in zip(names, children, strict=True):
                _mind(name, child, strict=strict)
            _report(reporter, dict(zip(names, children, strict=True)))
    finally:
        _end(children, config.supervisor.shutdown_timeout_s * SHARE_OF_SHUTDOWN)
        store.close()


def replica_command(config: Config, number: int) -> list[str]:
    """How the process of replica `number` (from 0) is started."""
    module = "openclaw_rl.serving.engines.replicas.worker"
    path = str(child_config_path(config.run_dir))
    return [sys.executable, "-m", module, str(number), "--config", path, "--parent", str(os.getpid())]


def threads_of_each(threads: int, replicas: int) -> int:
    """CPU threads of one replica: its share of the engine's, at least one."""
    return max(1, threads // replicas)


def _child(config: Config, number: int, gpus: Mapping[str, str]) -> Child:
    threads = str(threads_of_each(config.engine.threads, config.engine.count))
    settings = config.supervisor
    return Child(
        LoopName.ENGINE,
        replica_command(config, number),
        {**os.environ, **gpus, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        config.logs_dir / f"engine-{number + 1}.log",
        Backoff(settings.restart_backoff_s, settings.max_backoff_s),
    )


def _is_first_life(config: Config) -> bool:
    """Whether this deployment has not had a pool before this one, which ended."""
    state = read_state(config.run_dir)
    if state is None or state.pid != os.getppid():  # of an earlier deployment; ours is not written yet
        return True
    engine = state.children.get(LoopName.ENGINE)
    return engine is None or not engine.restarts


def _gpus(config: Config, first_life: bool) -> Sequence[Mapping[str, str]]:
    try:
        return gpus_of_each(config, os.environ, gpus_here())
    except ConfigError as error:
        if first_life:
            raise
        raise RuntimeError(f"there were more GPUs when this deployment began: {error}") from error


def _mind(name: str, child: Child, *, strict: bool) -> None:
    """Start it again where it has ended. `strict`: a configuration with which it cannot be started at all is an
    error, which no other try will change; once it has run, the others go on without it, and it is tried again.
    """
    first = strict and not child.state.restarts
    ended = child.reap(restart=True)
    if ended is not None:
        last = child.last_log_line()
        if ended.code in EXIT_NO_RESTART and first:
            raise ConfigError(f"{name}: {last or 'it cannot run with this configuration'}")
        logger.warning("%s %s; it is started again (%s)", name, ended.words(), last)
    child.start_if_due()


def _report(reporter: LoopReporter, children: Mapping[str, Child]) -> None:
    restarts = [child.state.restarts for child in children.values()]
    away = {name: child.last_log_line() for name, child in children.items() if not child.running}
    if not away:
        reporter.working(f"{len(children)} replicas' processes run", restarts=restarts)
        return
    why = "; ".join(f"{name}: {last}" if last else name for name, last in away.items())
    reporter.waiting(f"{len(away)} of {len(children)} replicas to be started again ({why})", restarts=restarts)


def _end(children: Sequence[Child], timeout_s: float) -> None:
    """Ask all to end, and end those that do not in time."""
    for child in children:
        child.cancel_restart()
        child.terminate()
    deadline = time.monotonic() + timeout_s
    while any(child.running for child in children) and time.monotonic() < deadline:
        for child in children:
            child.reap(restart=False)
        time.sleep(POLL_S / 5)
    for child in children:
        if child.running:
            logger.warning("a replica did not end within %.1f s and is killed", timeout_s)
            child.kill()
            child.reap(restart=False)
