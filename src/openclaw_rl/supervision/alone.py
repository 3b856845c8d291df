"""One process per loop and directory, whoever started it.

A supervisor that is killed leaves its loops to end by themselves, and may not even have written down that it had
started them; the next one starts another set meanwhile. Two trainers on one store would write each other's
checkpoints, two gateways would want one port. So each loop holds a lock, which the system gives back however its
process ends, and a successor waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

RETRY_S = 0.05
LOCKS_DIR = "locks"


def lock_path(run_dir: Path, name: str) -> Path:
    """The file that the process of a loop, or of one of its replicas, holds locked as long as it lives."""
    return run_dir / LOCKS_DIR / f"{name}.lock"


@contextlib.contextmanager
def alone(run_dir: Path, name: str, stop: threading.Event) -> Iterator[bool]:
    """Wait until no other process is called so in `run_dir`; False where `stop` was set before that.

    Raises:
        OSError: if the lock's file cannot be opened.
    """
    path = lock_path(run_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("w", encoding="utf-8") as file:
        # A child that code of the user's own forks may outlive us: it must not keep others waiting for us.
        os.register_at_fork(after_in_child=file.close)
        yield _taken(file, name, stop)


def _taken(file: IO[str], name: str, stop: threading.Event) -> bool:
    told = False
    while not stop.is_set():
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                logger.info("the %s process before this one has not ended yet; waiting for it", name)
            told = True
            stop.wait(RETRY_S)
        else:
            return True
    return False
