"""An engine that is not ours, as the process of the engine's loop sees it: a server started here, or one that runs.

This process speaks for it, in the embedded engine's HTTP, so that one process counts who uses which version. A server
that is started here ends with this process, however that ends. One that runs elsewhere is watched only.
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

from openclaw_rl.serving.engines.embedded.app import create_app, serve
from openclaw_rl.serving.engines.protocol import Engine, EngineError, EngineHealth
from openclaw_rl.supervision.process import Reports
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
    def pid(self) -> int:
        """Its process, which leads its group."""
        return self._process.pid

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


class Watch:
    """How a server is, asked again and again; `ended` is set when there is nothing more to wait for."""

    def __init__(self, name: str, running: RunningServer | None, ask: Ask, *, start_timeout_s: float) -> None:
        self._name = name
        self._running = running
        self._ask = ask
        self._start_timeout_s = start_timeout_s
        self._health: EngineHealth | None = None
        self._was_ready = False
        self.ended = threading.Event()

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            ExternalServerEnded: it ended by itself, or was not ready in time.
        """
        try:
            deadline = time.monotonic() + self._start_timeout_s
            while True:
                self._look_at_process()
                self._health = await _health(self._ask)
                self._was_ready = self._was_ready or (self._health is not None and self._health.ready)
                if self._running is not None and not self._was_ready and time.monotonic() > deadline:
                    raise ExternalServerEnded(f"{self._name} was not ready within {self._start_timeout_s:.0f} s")
                await asyncio.sleep(WATCH_S if self._was_ready else POLL_S)
        finally:
            self.ended.set()

    def _look_at_process(self) -> None:
        code = None if self._running is None else self._running.exit_code
        if code is not None:
            raise ExternalServerEnded(f"{self._name} ended by itself with code {code}")

    def report(self, reporter: Reports) -> None:
        """Say how it is."""
        health = self._health
        if health is None or not health.ready:
            gone = f"{self._name} to answer again"
            reporter.waiting(gone) if self._was_ready else reporter.working(f"starting {self._name}")
        elif busy := health.active_requests + health.queued_requests:
            reporter.working("generating", requests=busy)
        else:
            reporter.waiting("a request")


async def speak_for(
    engine: Engine, watch: Watch, stop: threading.Event, reporter: Reports, *, host: str, port: int
) -> None:
    """Serve `engine` in our own HTTP until `stop`, or until its server has ended.

    Raises:
        ExternalServerEnded: see `Watch`.
    """
    watching = asyncio.create_task(watch.run())
    over = threading.Event()

    def heartbeat() -> None:
        if stop.is_set() or watch.ended.is_set():
            over.set()
        watch.report(reporter)

    try:
        await serve(create_app(engine), host, port, over, heartbeat)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await engine.close()
    if not stop.is_set() and not watching.cancelled():
        watching.result()


async def _health(ask: Ask) -> EngineHealth | None:
    try:
        return await ask()
    except EngineError:
        return None
