"""A vLLM server as a child that ends with us: in order where there is time, and always in the end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

_POLL_S = 0.05


class VllmProcess:
    """The server and all that it starts: one process group. Its output goes where ours goes."""

    def __init__(self, command_for: Callable[[Path], Sequence[str]], environment: Mapping[str, str]) -> None:
        """Start it; `command_for` makes the command from the path of the socket at which it shall listen.

        Call it from the main thread: a child's tie to its parent is to the thread that made it.
        """
        # Not in the run directory: the path of a socket may have about a hundred characters only.
        self._folder = Path(tempfile.mkdtemp(prefix="openclaw-rl-vllm-"))
        self.socket = self._folder / "socket"
        self._process = subprocess.Popen(
            list(command_for(self.socket)), env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True
        )
        logger.info("vLLM started, pid %d", self._process.pid)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Its process, which leads its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def end(self, within_s: float) -> None:
        """SIGTERM to the server; after `within_s` SIGKILL to whatever of its group is left."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and (self._process.poll() is None or self._group_is_there()):
            time.sleep(_POLL_S)
        if self._group_is_there():
            logger.warning("vLLM did not end within %.0f s; killing it", within_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _group_is_there(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True
