"""Batches that kill the trainer: found by counting, singled out, and in the end rejected, so that training goes on.

A trainer that dies in a step (the system ends it for the memory that it takes, or it raises) is started again and
takes the same batch: a death must change nothing about what is learned from. But a batch that kills it would come for
ever. So deaths are counted for each sample, by the place in the step where they happened: it is the same place if the
batch is at fault, and seldom the same again if somebody kills processes at random. What was counted is forgotten once
a step came through. A stop, or a wait for the record or the disk, is no death.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import select
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from openclaw_rl.config import LossConfig, TrainingConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import origin
from openclaw_rl.store import Store
from openclaw_rl.store.deaths import Death
from openclaw_rl.store.outage import StoppedInOutage, outage_of
from openclaw_rl.supervision.process import Reports
from openclaw_rl.training.advantages import group_of
from openclaw_rl.types import LoopName, Sample

log = logging.getLogger(__name__)

KILLS_TRAINER = "kills_trainer"
"""Why samples are rejected over which the trainer dies, with nothing beside them."""
EVALUATING = "evaluating"
"""The place of a death in the user's own evaluation."""
STOPPING = "stopping"
"""What is said once the process is told to stop."""
_PASS = re.compile(r", pass \d+ of \d+$")
"""How a place ends that is one of several passes."""
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_LOOK_S = 0.25
_IN_STEP = re.compile(r"training step \d+: (?P<doing>.+)", re.DOTALL)
_IN_EVALUATION = re.compile(rf"{EVALUATING} version \d+")


class Stopped(Exception):
    """The process was told to stop in the middle of something, which the next start does; the message says what."""


def said_in_step(step: int, doing: str) -> str:
    """What a loop says of itself in the middle of a step."""
    return f"training step {step}: {doing}"


def said_in_evaluation(version: int) -> str:
    """What it says while the user's own evaluation is asked."""
    return f"{EVALUATING} version {version}"


def place_of(said: str) -> str | None:
    """The place in a step that a loop was at when it said this; None where it was at no batch's work."""
    if _IN_EVALUATION.fullmatch(said):
        return EVALUATING
    found = _IN_STEP.fullmatch(said)
    return None if found is None else found["doing"]


def kind_of(place: str) -> str:
    """A place without which of several passes it was."""
    return _PASS.sub("", place)


def units(samples: Sequence[Sample], loss: LossConfig) -> list[list[Sample]]:
    """The smallest parts of a batch that mean the same when they are trained apart: groups stay whole.

    Where rewards are scaled by the batch, the batch is one part.
    """
    if loss.normalise == "batch":
        return [list(samples)]
    found: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        group: Hashable | None = group_of(sample, loss)
        if sample.origin is not None and sample.origin.rollout is not None:
            group = sample.origin.group_id
        found.setdefault(("alone", sample.turn_id) if group is None else ("group", group), []).append(sample)
    return list(found.values())


def count_killed(store: Store, config: TrainingConfig) -> None:
    """Count the death of a predecessor that was killed in a step; before the present trainer says anything.

    Where it died is what it last said of itself, which it writes before it does it. In one transaction.
    """
    with store.together():
        said = next((one for one in store.status.loops() if one.loop is LoopName.TRAINING), None)
        place = None if said is None else place_of(said.activity)
        if place is None:
            return
        at_work = said.details.get("owner") if said is not None else None
        for owner in store.samples.claiming_owners() if at_work is None else [at_work]:
            held = store.samples.take_up_claims(config.lease_s, owner)
            if held:
                Deaths(store, config).note(held, place)


@contextmanager
def stop_told(stop: threading.Event, reporter: Reports) -> Iterator[None]:
    """Say that the process stops once it is told to: who is killed after that took too long, and died of no batch.

    From a thread, and by the signal itself: the handler that sets `stop` runs only between two instructions of the
    main thread's, and one pass backward, which is one, may take longer than the supervisor waits. `stop` is left to
    the handler, for which a second signal is another thing than the first.
    """
    heard, wake = socket.socketpair()
    ended = threading.Event()

    def told() -> bool:
        ready, _, _ = select.select([heard], [], [], _LOOK_S)
        return stop.is_set() or bool(ready and _SIGNALS.intersection(heard.recv(64)))

    def tell() -> None:
        while not ended.is_set():
            if told():
                reporter.working(STOPPING)
                return

    wake.setblocking(False)
    thread = threading.Thread(target=tell, name="stop-told", daemon=True)
    with heard, wake, _woken_by_signals(wake.fileno()):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _woken_by_signals(descriptor: int) -> Iterator[None]:
    """Have the number of each signal written there when it comes; of signals, only the main thread may say that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deafen_forks()
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


@functools.cache
def _deafen_forks() -> None:
    """Once for this process: a signal to what it forks (the pool of an evaluation) is not one to it.

    A child inherits where the numbers of signals are written, which is read here.
    """
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class Deaths:
    """Counts them, and keeps from a batch what `training.max_deaths` of them, or the last alone, speak against."""

    def __init__(self, store: Store, config: TrainingConfig) -> None:
        self._store = store
        self._config = config

    def note(self, samples: Sequence[Sample], place: str) -> None:
        """The trainer died at `place` over this batch."""
        alone = len(units(samples, self._config.loss)) == 1
        log.error("the trainer died (%s) over the samples %s", place, _named(samples))
        self._store.deaths.note([sample.turn_id for sample in samples], place, alone=alone)

    @contextmanager
    def counted(self, samples: Sequence[Sample], place: Callable[[], str]) -> Iterator[None]:
        """What is raised inside ends the process, and counts as a death at `place()` over `samples`."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a library may say sys.exit()
            if not _is_no_death(error):
                log.error("in a step: %s", origin(error))
                self.note(samples, place())
            raise

    def survived(self, samples: Sequence[Sample]) -> None:
        """A step came through with them."""
        ids = [sample.turn_id for sample in samples]
        if self._store.deaths.of(ids):
            self._store.deaths.forget(ids)

    def suspects(self) -> Set[str]:
        """Samples that wait to be tried alone: for as long as that takes, they are not too old."""
        return self._store.deaths.suspects(self._config.max_deaths)

    def _against(self, samples: Sequence[Sample]) -> Mapping[str, Sequence[Death]]:
        """By sample, the deaths that are enough to speak against it."""
        found = self._store.deaths.of([sample.turn_id for sample in samples])
        return {name: [one for one in over if one.number >= self._config.max_deaths] for name, over in found.items()}

    def _killers(self, claimed: Sequence[Sample]) -> tuple[list[Sample], set[str]]:
        """Those with enough deaths in one kind of place, the last of them alone; and all places of that kind.

        Which pass it was tells the batch that kills from one that is killed by chance; alone, there are fewer passes.
        """
        found = self._store.deaths.of([sample.turn_id for sample in claimed])
        against = self._against(claimed)
        killers, places = [], set()
        for one in claimed:
            over = found.get(one.turn_id, ())
            kinds = {kind_of(death.place) for death in against.get(one.turn_id, ())}
            kinds &= {kind_of(death.place) for death in over if death.alone}
            if kinds:
                killers.append(one)
                places |= {death.place for death in over if kind_of(death.place) in kinds}
        return killers, places

    def sift(self, claimed: Sequence[Sample]) -> list[Sample]:
        """Of claimed samples those to be trained now; the others were rejected, or given back to be tried later.

        Those over which the trainer died `max_deaths` times at one place are tried one (one group) at a time: the
        batch may have been too large as a whole, and most of it is innocent. What kills it alone is rejected.
        """
        killers, places = self._killers(claimed)
        if killers:
            log.error("the trainer dies over them alone: rejected as %s: %s", KILLS_TRAINER, _named(killers))
            with self._store.together():
                self._store.samples.reject([one.turn_id for one in killers], reason=KILLS_TRAINER)
                self._store.deaths.acquit(places)
        gone = {one.turn_id for one in killers}
        left = [one for one in claimed if one.turn_id not in gone]
        against = self._against(left)
        suspects = [one for one in left if against.get(one.turn_id)]
        if not suspects:
            return left
        kept = next(unit for unit in units(left, self._config.loss) if suspects[0] in unit)
        others = [one.turn_id for one in left if one not in kept]
        if others:
            log.warning("the trainer died again and again over a batch: of it, alone: %s", _named(kept))
            self._store.samples.give_back(others)
        return kept


def _is_no_death(error: BaseException) -> bool:
    """Whether it is an ordinary end, or the fault of the record or of the configuration."""
    passing = isinstance(error, Stopped | StoppedInOutage | ConfigError | SQLAlchemyError | sqlite3.Error)
    return passing or outage_of(error) is not None


def _named(samples: Sequence[Sample]) -> str:
    return ", ".join(sample.turn_id for sample in samples)
