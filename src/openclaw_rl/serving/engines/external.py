"""An engine that is not ours, as the process of the engine's loop sees it: a server started here, or one that runs.

A server that is started here ends with this process, however that ends. One that runs elsewhere is watched only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.serving.engines.protocol import EngineError, EngineHealth
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.supervision.tied import tied_command

logger = logging.getLogger(__name__)

POLL_S = 0.2
WATCH_S = 1.0
_NOT_FOR_OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")
"""What would make another Python environment load our packages."""

Ask = Callable[[], Awaitable[EngineHealth]]
"""How the server is; raises EngineError where it cannot be asked."""


class ExternalServerEnded(RuntimeError):
    """The server ended by itself; this process ends too, and its supervisor starts both again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalServer:
    """How a server is started. `name` is for people; `environment` is added to our own."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    """Seconds from SIGTERM to SIGKILL."""


class RunningServer:
    """A server started here, in a process group of its own. Make it in the main thread, to which its life is tied."""

    def __init__(self, server: ExternalServer) -> None:
        self._server = server
        self._process = subprocess.Popen(
            tied_command(os.getpid(), server.command, without=_NOT_FOR_OTHERS),
            env={**os.environ, **server.environment},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        logger.info("started %s, pid %d", server.name, self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """SIGTERM to it, SIGKILL after the grace to it and all that it started. Returns when it is gone."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._server.grace_s)
            except subprocess.TimeoutExpired:
                logger.warning("%s does not end within %.0f s: killing it", self._server.name, self._server.grace_s)
        self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        """What it started and left behind; the group has the number of the process that led it."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


async def mind(
    server: ExternalServer | None, ask: Ask, stop: threading.Event, reporter: LoopReporter, *, start_timeout_s: float
) -> None:
    """Start `server` (None: it runs elsewhere) and say how it is, until `stop`; then end it.

    Raises:
        ExternalServerEnded: it ended by itself, or was not ready within `start_timeout_s`.
    """
    running = RunningServer(server) if server is not None else None
    name = server.name if server is not None else "the engine elsewhere"
    deadline = time.monotonic() + start_timeout_s
    was_ready = False
    try:
        while not stop.is_set():
            if running is not None and running.exit_code is not None:
                raise ExternalServerEnded(f"{name} ended by itself with code {running.exit_code}")
            health = await _health(ask)
            was_ready = was_ready or (health is not None and health.ready)
            if running is not None and not was_ready and time.monotonic() > deadline:
                raise ExternalServerEnded(f"{name} was not ready within {start_timeout_s:.0f} s")
            await asyncio.to_thread(_report, reporter, health, name, was_ready)
            await _sleep(WATCH_S if was_ready else POLL_S, stop)
    finally:
        if running is not None:
            await asyncio.to_thread(running.end)


async def _health(ask: Ask) -> EngineHealth | None:
    try:
        return await ask()
    except EngineError:
        return None


def _report(reporter: LoopReporter, health: EngineHealth | None, name: str, was_ready: bool) -> None:
    if health is None or not health.ready:
        reporter.waiting(f"{name} to answer again") if was_ready else reporter.working(f"starting {name}")
    elif busy := health.active_requests + health.queued_requests:
        reporter.working("generating", requests=busy)
    else:
        reporter.waiting("a request")


async def _sleep(seconds: float, stop: threading.Event) -> None:
    """Sleep in pieces, so that a stop is noticed."""
    end = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < end:  # noqa: ASYNC110 - set by a signal handler
        await asyncio.sleep(min(POLL_S, seconds))
