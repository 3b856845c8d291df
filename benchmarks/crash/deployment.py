"""`openclaw-rl up` as a user runs it, started again whenever it was killed, on the same directory and port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.crash.plan import LOOPS, Target
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.supervision.state import Phase, SupervisorState, read_state

RECIPE = Path(__file__).with_name("recipe.toml")
POLL_S = 0.02
UNBORN_S = 90.0
"""How long a process may be away before the test gives up."""
BELOW_EPHEMERAL = range(20000, 32000)
"""Ports that no outgoing connection is given: while the gateway is dead, its own must not be taken by one."""


class NotThere(RuntimeError):
    """A process that should be there is not, for too long."""


def fixed_port() -> int:
    """A free port for the gateway, which has to be the same after each start.

    Raises:
        RuntimeError: if there is none.
    """
    for port in BELOW_EPHEMERAL:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


class Deployment:
    """One run directory, and the supervisor that runs there now. A context manager: it leaves nothing running."""

    def __init__(self, run_dir: Path, model: Path) -> None:
        self.run_dir = run_dir
        self.port = fixed_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.log = run_dir.with_name("up.log")
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Deployment:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start `openclaw-rl up`, in a session of its own."""
        command = [sys.executable, "-m", "openclaw_rl.cli", "up", str(RECIPE), "--run-dir", str(self.run_dir)]
        flags = ["--model.path", str(self._model), "--serving.port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> int | None:
        """Ask it to stop, as Ctrl-C does; its exit code, None where it had to be killed."""
        process = self._process
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    @property
    def state(self) -> SupervisorState | None:
        """What the present supervisor says, None before it has said anything."""
        process = self._process
        try:
            state = read_state(self.run_dir)
        except ConfigError:
            return None
        return state if state is not None and process is not None and state.pid == process.pid else None

    @property
    def ready(self) -> bool:
        """Whether clients were served by this supervisor."""
        state = self.state
        return state is not None and state.phase is Phase.READY

    def ended(self) -> int | None:
        """The exit code of a supervisor that ended by itself."""
        return None if self._process is None else self._process.poll()

    def pid(self, target: Target) -> int | None:
        """The process of a target now; None while there is none."""
        if target is Target.SUPERVISOR:
            return None if self._process is None or self._process.poll() is not None else self._process.pid
        state = self.state
        child = None if state is None else state.children.get(target.value)
        return None if child is None else child.pid

    def freeze(self, pid: int) -> bool:
        """Stop a process where it stands, so that one can see what the kill is about to hit; False if it has gone."""
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False
        return True

    def thaw(self, pid: int) -> None:
        """Let a frozen process go on."""
        os.kill(pid, signal.SIGCONT)

    def kill(self, target: Target, pid: int) -> None:
        """SIGKILL; a supervisor is started again at once, as systemd would."""
        os.kill(pid, signal.SIGKILL)
        if target is Target.SUPERVISOR and self._process is not None:
            self._process.wait()
            self.start()

    def orphans(self) -> list[int]:
        """Processes of this directory that the present supervisor did not start."""
        own = set() if self._process is None else {self._process.pid}
        state = self.state
        if state is not None:
            own |= {child.pid for child in state.children.values() if child.pid is not None}
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.run_dir / "config.json") in words and process.info["pid"] not in own:
                found.append(process.info["pid"])
        return found

    def wait_ready(self, timeout_s: float = UNBORN_S) -> None:
        """Wait until clients are served.

        Raises:
            NotThere: with its last words, if it ended or took too long.
        """
        deadline = time.monotonic() + timeout_s
        while not self.ready:
            if self.ended() is not None or time.monotonic() > deadline:
                raise NotThere(f"the deployment is not ready: {self.last_words()}")
            time.sleep(POLL_S)

    def last_words(self) -> str:
        """The last line that `up` printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def unplanned_ends(self) -> list[str]:
        """What `up` said of processes that ended otherwise than by SIGKILL."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if any(line.startswith(f"{loop}: exited") for loop in LOOPS)]
