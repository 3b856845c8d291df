"""One supervised process: its environment, its log file, its start, its end, and when to start it again."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.supervision.state import ChildPhase, ChildState, Exit, child_config_path, process_created_at
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

START_ORDER: tuple[LoopName, ...] = (
    LoopName.ENGINE,
    LoopName.GATEWAY,
    LoopName.ROLLOUT,
    LoopName.JUDGING,
    LoopName.TRAINING,
)
"""The engine takes longest to be ready, so it goes first."""


def loops_of(config: Config) -> tuple[LoopName, ...]:
    """The processes of a deployment, in the order of their start: with a driver only where it has something to do."""
    return (*START_ORDER, LoopName.DRIVER) if config.rollout.makes_rollouts else START_ORDER


STABLE_AFTER_S = 60.0
MAX_LOG_BYTES = 10 * 1024 * 1024
KEPT_LOGS = 3
LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,.]+ [A-Z]+ +\S+ +[\w.]+: ")
"""Time, level, process and logger, as `child.configure_logging` has them written."""


class Backoff:
    """How long to wait before each restart: doubling from `first_s` to `maximum_s`, reset by a stable life."""

    def __init__(self, first_s: float, maximum_s: float, stable_after_s: float = STABLE_AFTER_S) -> None:
        self._first_s = first_s
        self._maximum_s = max(first_s, maximum_s)
        self._stable_after_s = stable_after_s
        self._next_s = first_s

    def after(self, lifetime_s: float) -> float:
        """The wait (seconds) after a process that lived for `lifetime_s`."""
        if lifetime_s >= self._stable_after_s:
            self._next_s = self._first_s
        wait = self._next_s
        self._next_s = min(self._maximum_s, wait * 2)
        return wait


def loop_command(loop: LoopName, config: Config) -> list[str]:
    """How the process of a loop is started."""
    module = "openclaw_rl.supervision.child"
    path = str(child_config_path(config.run_dir))
    return [sys.executable, "-m", module, loop.value, "--config", path, "--parent", str(os.getpid())]


def loop_environment(loop: LoopName, config: Config, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a loop's process: as inherited, without our configuration, and with few threads.

    The configuration is in its file already; a variable must not change it a second time. Idle threads sleep
    (`PASSIVE`, `KMP_BLOCKTIME`): spinning ones would take the cores from the stream that a client reads.
    """
    threads = {LoopName.ENGINE: config.engine.threads, LoopName.TRAINING: config.training.threads}.get(loop, 1)
    number = str(threads or cpu_count())
    kept = {name: value for name, value in inherited.items() if not _is_configuration(name)}
    return {
        **kept,
        "OMP_NUM_THREADS": number,
        "MKL_NUM_THREADS": number,
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _is_configuration(name: str) -> bool:
    return name.startswith("OPENCLAW_RL_") and name != "OPENCLAW_RL_LOG_LEVEL"


def cpu_count() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def rotate_log(path: Path, max_bytes: int = MAX_LOG_BYTES, kept: int = KEPT_LOGS) -> None:
    """Move a log that has grown past `max_bytes` to `.1`, older ones one further, and drop the oldest."""
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    for number in range(kept, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


class Child:
    """A loop's process, started again when it ends."""

    def __init__(
        self,
        loop: LoopName,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        backoff: Backoff,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall` tells the time (seconds since the epoch) that people are shown; waits go by a clock nobody sets."""
        self.loop = loop
        self._wall = wall
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._backoff = backoff
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._start_due = time.monotonic()
        self._state = ChildState(phase=ChildPhase.STOPPED, pid=None, created_at=None, since=self._wall())

    @property
    def state(self) -> ChildState:
        """What to tell others about it."""
        return self._state

    @property
    def running(self) -> bool:
        """Whether its process has not been seen to end."""
        return self._process is not None

    def start(self) -> None:
        """Start the process, its output appended to its log.

        It leads a session of its own: Ctrl-C in the terminal reaches the supervisor only, which then ends its
        children in order. Call it from the main thread: a child's tie to its parent is to the thread that made it.
        """
        rotate_log(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._began = time.monotonic()
        restarts = self._state.restarts + (1 if self._state.last_exit else 0)
        self._state = ChildState(
            phase=ChildPhase.RUNNING,
            pid=self._process.pid,
            created_at=process_created_at(self._process.pid),
            since=self._wall(),
            restarts=restarts,
            last_exit=self._state.last_exit,
        )

    def reap(self, *, restart: bool) -> Exit | None:
        """Notice the end of the process: how it ended, or None while it runs. With `restart`, plan the next start."""
        if self._process is None:
            return None
        returncode = self._process.poll()
        if returncode is None:
            return None
        now = self._wall()
        self._process = None
        ended = Exit.of(returncode, now)
        wait_s = self._plan_start(time.monotonic() - self._began) if restart else None
        self._state = ChildState(
            phase=ChildPhase.STOPPED if wait_s is None else ChildPhase.RESTARTING,
            pid=None,
            created_at=None,
            since=now,
            restarts=self._state.restarts,
            last_exit=ended,
            next_start_at=None if wait_s is None else now + wait_s,
        )
        return ended

    def start_if_due(self) -> bool:
        """Start it again if its wait is over; whether its state changed.

        Where the system cannot start it (no memory, no folder for its log) the next try waits longer.
        """
        if self._state.next_start_at is None or time.monotonic() < self._start_due:
            return False
        try:
            self.start()
        except OSError as error:
            logger.warning("%s cannot be started now: %s", self.loop, error)
            self._state = replace(self._state, next_start_at=self._wall() + self._plan_start(0.0))
        return True

    def _plan_start(self, lifetime_s: float) -> float:
        """The wait (seconds) until the next start, which begins now."""
        wait_s = self._backoff.after(lifetime_s)
        self._start_due = time.monotonic() + wait_s
        return wait_s

    def cancel_restart(self) -> None:
        """It shall not come back."""
        if self._process is None:
            self._state = ChildState(
                phase=ChildPhase.STOPPED,
                pid=None,
                created_at=None,
                since=self._state.since,
                restarts=self._state.restarts,
                last_exit=self._state.last_exit,
            )

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the process at once, and wait until the system says so."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_log_line(self) -> str:
        """The last line that it wrote, without what logging puts before it: of a traceback, the message."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode("utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return LOG_PREFIX.sub("", lines[-1]).strip() if lines else ""
