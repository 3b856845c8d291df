"""What a supervisor leaves in RUN_DIR for others to read: who it is, where it answers, how its children do.

    supervisor.json   this module's `SupervisorState`, replaced atomically at every change
    supervisor.lock   locked (flock) as long as the supervisor lives; holds its pid
    config.json       the tree that the loops run with, ports resolved; private, for it holds keys

A pid alone proves nothing once its process has ended and the number is used again, so every pid is kept with
the time at which its process began.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import psutil

from openclaw_rl.config_render import write_private
from openclaw_rl.config_sources import ConfigError


class Phase(StrEnum):
    """Where a supervisor stands."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ChildPhase(StrEnum):
    """Where a supervised process stands."""

    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How a process ended: with a code, or by a signal. `at` is in seconds since the epoch."""

    code: int | None
    signal: int | None
    at: float

    @classmethod
    def of(cls, returncode: int, at: float) -> Exit:
        """From `subprocess`' return code, where a signal is negative."""
        return (
            cls(code=returncode, signal=None, at=at) if returncode >= 0 else cls(code=None, signal=-returncode, at=at)
        )

    def words(self) -> str:
        """`killed by signal 9 (SIGKILL) at 14:02:11`."""
        moment = datetime.fromtimestamp(self.at).strftime("%H:%M:%S")
        if self.signal is None:
            return f"exited with code {self.code} at {moment}"
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by signal {self.signal} ({known.get(self.signal, 'unknown')}) at {moment}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildState:
    """One supervised process. `pid` is that of the current process, None between two."""

    phase: ChildPhase
    pid: int | None
    created_at: float | None
    since: float
    restarts: int = 0
    last_exit: Exit | None = None
    next_start_at: float | None = None

    @property
    def alive(self) -> bool:
        """Whether this very process is there, not another that got its number."""
        return self.pid is not None and process_alive(self.pid, self.created_at)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.pid is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
                os.kill(self.pid, number)


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorState:
    """A supervisor and its children; `url` is what an OpenAI client takes as its base."""

    phase: Phase
    pid: int
    created_at: float
    started_at: float
    run_dir: str
    url: str
    engine_url: str
    children: Mapping[str, ChildState] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.phase is not Phase.STOPPED and process_alive(self.pid, self.created_at)

    def write(self) -> None:
        """Replace RUN_DIR/supervisor.json in one step."""
        write_private(state_path(Path(self.run_dir)), json.dumps(asdict(self), indent=2) + "\n")


def state_path(run_dir: Path) -> Path:
    """Where the state of a deployment is."""
    return run_dir / "supervisor.json"


def child_config_path(run_dir: Path) -> Path:
    """Where the configuration is with which the loops of a deployment run."""
    return run_dir / "config.json"


def read_state(run_dir: Path) -> SupervisorState | None:
    """The state that a supervisor left in `run_dir`, or None where none ever ran.

    Raises:
        ConfigError: if the file is there and is not such a state.
    """
    path = state_path(run_dir)
    try:
        tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        children = {name: _child_from(child) for name, child in tree.pop("children").items()}
        return SupervisorState(**{**tree, "phase": Phase(tree["phase"]), "children": children})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {type(error).__name__}: {error}") from error


def _child_from(tree: Mapping[str, Any]) -> ChildState:
    last_exit = Exit(**tree["last_exit"]) if tree["last_exit"] else None
    return ChildState(**{**tree, "phase": ChildPhase(tree["phase"]), "last_exit": last_exit})


def process_created_at(pid: int) -> float | None:
    """When the process `pid` began (seconds since the epoch), None where there is none or only its remains."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def process_alive(pid: int, created_at: float | None) -> bool:
    """Whether the very process that began then under this pid is still there."""
    found = process_created_at(pid)
    # Boot time, on which both figures rest, is read with a precision of about 0.01 s.
    return found is not None and created_at is not None and abs(found - created_at) < 1.0


class RunDirLocked(ConfigError):
    """Another supervisor runs in this directory."""


class RunDirLock:
    """Keeps a second supervisor out of a directory; the system lets go of it when the process ends, however."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            RunDirLocked: naming who holds it.
        """
        file = open(self._run_dir / "supervisor.lock", "a+", encoding="utf-8")  # noqa: SIM115 (held until release)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise RunDirLocked(
                f"{self._run_dir} is in use by the deployment with pid {holder}: stop that one (kill {holder}), "
                "or choose another directory with --run-dir"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go of it. The file stays: removing it could hand two supervisors a lock each."""
        if self._file is not None:
            self._file.close()
            self._file = None
