"""A server that is not ours, as a child: started, watched, ended, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from openclaw_rl.serving.engines.external import (
    Ask,
    ExternalServer,
    ExternalServerEnded,
    RunningServer,
    Watch,
    speak_for,
)
from openclaw_rl.serving.engines.protocol import EngineHealth, EngineUnavailable
from openclaw_rl.store import Store
from openclaw_rl.supervision.ports import resolve_port
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.supervision.tied import EXIT_NOT_FOUND, EXIT_USAGE, tied_command
from openclaw_rl.testing.scripted_engine import ScriptedEngine
from openclaw_rl.types import LoopName

READY = EngineHealth(
    ready=True, instance_id="i", loaded_versions=(0,), active_requests=0, queued_requests=0, context_length=8
)
STUBBORN = (
    "import os, pathlib, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {worker.pid}')\n"
    "time.sleep(60)\n"
)


def server(code: str, *arguments: str, grace_s: float = 0.3) -> ExternalServer:
    command = [sys.executable, "-c", code, *arguments]
    return ExternalServer(name="a server", command=command, environment={"GIVEN": "yes"}, grace_s=grace_s)


@pytest.fixture
def reporter(tmp_path: Path) -> LoopReporter:
    return LoopReporter(Store.open(tmp_path / "record.sqlite"), LoopName.ENGINE)


def soon(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def spoken_for(
    started: ExternalServer | None,
    ask: Ask,
    stop: threading.Event,
    reporter: LoopReporter,
    start_timeout_s: float = 20,
) -> None:
    """What an engine's `run` does with a server; the fake engine behind it is never asked."""
    running = RunningServer(started) if started is not None else None
    watch = Watch("the server", running, ask, start_timeout_s=start_timeout_s)
    port = resolve_port("127.0.0.1", 0, "engine")
    try:
        asyncio.run(speak_for(ScriptedEngine(()), watch, stop, reporter, host="127.0.0.1", port=port))
    finally:
        if running is not None:
            running.end()


def test_a_server_is_ended_with_all_that_it_started(tmp_path: Path, reporter: LoopReporter) -> None:
    noted, stop = tmp_path / "pids", threading.Event()

    async def ask() -> EngineHealth:
        if noted.exists() and noted.read_text():
            stop.set()
            return READY
        raise EngineUnavailable("not yet")

    spoken_for(server(STUBBORN, str(noted)), ask, stop, reporter)
    main, worker = (int(pid) for pid in noted.read_text().split())
    soon(lambda: not psutil.pid_exists(main) and not _runs(worker))


def test_a_server_that_ends_by_itself_ends_the_loop(reporter: LoopReporter) -> None:
    async def ask() -> EngineHealth:
        raise EngineUnavailable("gone")

    with pytest.raises(ExternalServerEnded, match="code 3"):
        spoken_for(server("exit(3)"), ask, threading.Event(), reporter)


def test_a_server_that_is_never_ready_is_given_up(reporter: LoopReporter) -> None:
    async def ask() -> EngineHealth:
        raise EngineUnavailable("loading")

    endless = server("import time; time.sleep(60)")
    with pytest.raises(ExternalServerEnded, match="not ready"):
        spoken_for(endless, ask, threading.Event(), reporter, start_timeout_s=0.5)


def test_an_engine_elsewhere_is_watched_and_missed(tmp_path: Path) -> None:
    store, stop = Store.open(tmp_path / "record.sqlite"), threading.Event()
    said: set[str | None] = set()
    gone = False

    async def ask() -> EngineHealth:
        nonlocal gone
        said.update(status.waiting_for for status in await asyncio.to_thread(store.status.loops))
        if "the server to answer again" in said:
            stop.set()
        gone = gone or "a request" in said
        if gone:
            raise EngineUnavailable("gone")
        return READY

    spoken_for(None, ask, stop, LoopReporter(store, LoopName.ENGINE))
    assert said >= {"a request", "the server to answer again"}


def test_the_tie_survives_the_exec_and_hides_what_is_not_for_others(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = (
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(f\"{os.getpid()} {os.environ.get('HIDDEN')}\")\n"
        "time.sleep(60)\n"
    )
    middle = (
        "import os, subprocess, sys, time\n"
        "from openclaw_rl.supervision.tied import tied_command\n"
        "command = [sys.executable, '-c', sys.argv[2], sys.argv[1]]\n"
        "subprocess.Popen(tied_command(os.getpid(), command, without=['HIDDEN']))\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", middle, str(noted), code], env={**os.environ, "HIDDEN": "secret"}
    )
    soon(lambda: noted.exists() and len(noted.read_text().split()) == 2)
    pid, hidden = noted.read_text().split()
    assert hidden == "None"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    soon(lambda: not _runs(int(pid)))


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (tied_command(os.getpid(), ["/nowhere/python"]), EXIT_NOT_FOUND),
        ([sys.executable, "-m", "openclaw_rl.supervision.tied", "x", "--", "true"], EXIT_USAGE),
        ([sys.executable, "-m", "openclaw_rl.supervision.tied", "1"], EXIT_USAGE),
    ],
)
def test_a_command_that_cannot_be_run_says_so(command: list[str], code: int) -> None:
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == code


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
