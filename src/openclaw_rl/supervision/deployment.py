"""A deployment as an object: start it, talk to it, stop it. For the demo, benchmarks and tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.supervision.children import rotate_log
from openclaw_rl.supervision.readiness import ready_within_s
from openclaw_rl.supervision.state import Phase, SupervisorState, read_state
from openclaw_rl.types import LoopName

POLL_INTERVAL_S = 0.05
GRACE_S = 5.0


class DeploymentError(RuntimeError):
    """The deployment did not start, or has ended."""


class Deployment:
    """All loops of `config` under a supervisor, a process of its own. A context manager: started, then stopped.

    It ends with the thread that started it, so start it from one that lives as long (the main thread).
    """

    def __init__(self, config: Config) -> None:
        run_dir = config.run_dir.expanduser().absolute()
        self.config = config.model_copy(update={"run_dir": run_dir})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Deployment:
        """Start, and wait until it is ready."""
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the supervisor; it starts the loops."""
        if self._process is not None:
            raise DeploymentError("this deployment has been started already")
        self.config.logs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        requested = self.config.run_dir / "deployment.json"
        write_private_json(self.config, requested)
        command = [sys.executable, "-m", "openclaw_rl.supervision.supervisor"]
        log_path = self.config.logs_dir / "supervisor.log"
        rotate_log(log_path)
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*command, "--config", str(requested), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float | None = None) -> str:
        """Wait until clients can be served; the URL for them. By default as long as the configuration allows.

        Raises:
            DeploymentError: with the supervisor's last words, if it ended or took too long.
        """
        limit = ready_within_s(self.config) + GRACE_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            state = self._own_state()
            if state is not None and state.phase is Phase.READY:
                return state.url
            if self._process is None or self._process.poll() is not None:
                raise DeploymentError(f"the deployment ended before it was ready: {self._last_words()}")
            time.sleep(POLL_INTERVAL_S)
        raise DeploymentError(f"the deployment was not ready after {limit:.0f} s: {self._last_words()}")

    def stop(self) -> int | None:
        """End the loops in order, and wait for it; the supervisor's exit code, None if it never ran."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.config.supervisor.shutdown_timeout_s + GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()  # the loops are tied to it, and end too
                process.wait()
        return process.returncode

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client, ending in `/v1`."""
        return self.state.url

    @property
    def state(self) -> SupervisorState:
        """What the supervisor says now.

        Raises:
            DeploymentError: if it has said nothing yet.
        """
        state = self._own_state()
        if state is None:
            raise DeploymentError("the deployment has not started yet")
        return state

    def pids(self) -> Mapping[LoopName, int]:
        """The process of each loop that runs now."""
        return {LoopName(name): child.pid for name, child in self.state.children.items() if child.pid is not None}

    @property
    def supervisor_pid(self) -> int:
        """The supervisor's own process.

        Raises:
            DeploymentError: if it was not started.
        """
        if self._process is None:
            raise DeploymentError("the deployment has not started yet")
        return self._process.pid

    def _own_state(self) -> SupervisorState | None:
        """The state that this deployment's supervisor wrote, not one that an earlier one left behind."""
        state = read_state(self.config.run_dir)
        return state if state is not None and state.pid == self.supervisor_pid else None

    def _last_words(self) -> str:
        with (self.config.logs_dir / "supervisor.log").open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
