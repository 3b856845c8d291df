"""The training process of a run directory: started, looked at from outside, and killed at a moment of its work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.process import BaseProcess
from pathlib import Path

from openclaw_rl.training.checkpoint import checkpoint_path

POLL_S = 0.001
WAIT_S = 600.0
"""How long nothing may happen before this gives up."""
MISSED = 3
"""So many steps may pass a planned moment by before the kill takes whatever there is."""
LONGEST_DELAY_S = 0.05


class Phase(StrEnum):
    """Where in its work a trainer is; `LOADING` and `BETWEEN` are no part of a step and never aimed at."""

    LOADING = "loading or resuming"
    BETWEEN = "between two steps"
    PASSES = "forward and backward"
    GATE = "in the gate"
    WRITING = "writing the checkpoint"
    WRITTEN = "checkpoint written, step not committed"
    COMMITTED = "committed, not yet publishing"
    PUBLISHING = "publishing"


AIMED = tuple(phase for phase in Phase if phase not in {Phase.LOADING, Phase.BETWEEN})
_LASTING = frozenset({Phase.PASSES, Phase.GATE})
"""Phases that last long enough for a kill to come somewhere inside them."""


class Stuck(RuntimeError):
    """The trainer ended by itself, or nothing moved for too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the record and the disk say at a moment."""

    pid: int | None
    phase: Phase
    steps: int
    unpublished: int


def look(run_dir: Path) -> Seen:
    """Read the record of a run from outside."""
    path = run_dir / "store.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        connection.execute("BEGIN")  # one view for all that follows
        steps = connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
        said = connection.execute("SELECT pid, activity FROM loops WHERE loop = 'training'").fetchone()
        unpublished = connection.execute("SELECT count(*) FROM versions WHERE state = 'candidate'").fetchone()[0]
        open_span = "SELECT count(*) FROM spans WHERE name = 'publish' AND ended_at IS NULL"
        publishing = connection.execute(open_span).fetchone()[0]
    pid, activity = said if said is not None else (None, "loading")
    written = checkpoint_path(run_dir / "checkpoints", steps + 1).exists()
    phase = _phase(activity, unpublished=unpublished > 0, publishing=publishing > 0, written=written)
    return Seen(pid=pid, phase=phase, steps=steps, unpublished=unpublished)


def _phase(activity: str, *, unpublished: bool, publishing: bool, written: bool) -> Phase:
    if activity.startswith(("loading", "resuming")):
        return Phase.LOADING
    if publishing:
        return Phase.PUBLISHING
    if unpublished:
        return Phase.COMMITTED
    if written:
        return Phase.WRITTEN
    if activity.startswith(("writing", "committing")):
        return Phase.WRITING
    if not activity.startswith("training step"):
        return Phase.BETWEEN
    return Phase.GATE if ": probing" in activity or ": reading what" in activity else Phase.PASSES


def _train(config: str, log: str) -> None:
    """What a new process does: exactly what `python -m openclaw_rl.supervision.child training` does."""
    from openclaw_rl.supervision.child import main

    with Path(log).open("a", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(main(["training", "--config", config]))


class TrainerProcess:
    """One run directory and whichever training process is at work there.

    Processes are forked from a server that has nothing but the imports behind it, so that they begin in a second.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["openclaw_rl.training.loop", "openclaw_rl.supervision.child"])
        self._process: BaseProcess | None = None

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever is still at work: a benchmark that gives up must not wait for it."""
        if self._process is not None and self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def start(self) -> None:
        """Begin, or begin again after a kill."""
        paths = str(self.run_dir / "config.json"), str(self.run_dir / "trainer.log")
        self._process = self._context.Process(target=_train, args=paths)
        self._process.start()

    def until_done(self, steps: int) -> None:
        """Wait until `steps` are committed and published, then ask the process to stop.

        Raises:
            Stuck: it ended, or did nothing for too long.
        """
        self._until(lambda seen: seen.steps >= steps and not seen.unpublished and seen.phase is Phase.BETWEEN)
        self.stop()

    def kill_at(self, aim: Phase, chance: random.Random, *, last: int) -> tuple[Phase, int]:
        """SIGKILL it at the moment `aim`, or, where that is missed, at any of a later step; before step `last`.

        It is stopped first, so that what it was at when it died is known: that and the steps committed are returned.
        """
        own = self._pid()
        begun = self._until(lambda seen: seen.pid == own and seen.phase is not Phase.LOADING).steps
        latest = min(begun + MISSED, last - 1)
        while True:
            seen = self._until(
                lambda seen: seen.phase is aim or (seen.steps >= latest and seen.phase in AIMED), poll_s=POLL_S
            )
            if aim in _LASTING:
                time.sleep(chance.uniform(0.0, LONGEST_DELAY_S))
            os.kill(own, signal.SIGSTOP)
            seen = look(self.run_dir)
            if seen.phase is aim or (seen.steps >= latest and seen.phase in AIMED):
                break
            os.kill(own, signal.SIGCONT)
        os.kill(own, signal.SIGKILL)
        self._join()
        return seen.phase, seen.steps

    def stop(self) -> None:
        """Ask it to stop, as the supervisor does."""
        process = self._process
        if process is None or process.pid is None or process.exitcode is not None:
            return
        os.kill(process.pid, signal.SIGTERM)
        self._join()

    def _join(self) -> None:
        assert self._process is not None
        self._process.join(WAIT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def _pid(self) -> int:
        process = self._process
        if process is None or process.pid is None:
            raise Stuck("there is no training process")
        return process.pid

    def _until(self, holds: Callable[[Seen], bool], *, poll_s: float = 0.02) -> Seen:
        before, deadline = None, 0.0
        while True:
            seen = look(self.run_dir)
            if holds(seen):
                return seen
            if seen != before:
                before, deadline = seen, time.monotonic() + WAIT_S
            process = self._process
            if process is None or process.exitcode is not None or time.monotonic() > deadline:
                raise Stuck(f"the trainer does not get on ({seen.phase}): {self._last_words()}")
            time.sleep(poll_s)

    def _last_words(self) -> str:
        log = self.run_dir / "trainer.log"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1] if lines else "it said nothing"
