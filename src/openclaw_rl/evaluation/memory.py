"""The memory of all our processes together, at its peak."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

import psutil

INTERVAL_S = 1.0
COST_FACTOR = 50.0
"""Measuring takes at most one part in this many of the time: reading a big process's maps is not free."""


def process_memory_bytes(pid: int) -> int:
    """One process's memory: its proportional share (PSS) where that can be read, else its resident set; 0 if gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # not Linux, not ours to read, or just ended: the resident set says what can be said
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def tree_memory_bytes() -> int:
    """The memory of this process and of every process below it."""
    own = psutil.Process()
    pids = [own.pid, *(child.pid for child in own.children(recursive=True))]
    return sum(map(process_memory_bytes, pids))


class PeakMemory:
    """Samples the memory of the process tree in a thread and keeps the highest sum."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self._peak = 0

    @property
    def gib(self) -> float:
        """The peak so far."""
        return self._peak / 2**30

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        """Sample until told to stop, resting long enough after each sample for the cost to be small."""
        while True:
            started = time.monotonic()
            self._peak = max(self._peak, tree_memory_bytes())
            cost = time.monotonic() - started
            if self._stop.wait(max(self._interval_s, COST_FACTOR * cost)):
                return
