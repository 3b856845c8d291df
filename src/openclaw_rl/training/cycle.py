"""The cycle of the training loop: wait for a batch, train on it once, keep it, serve it.

Killed anywhere, it loses nothing and trains nothing twice, because of the order of three things: the checkpoint is on
disk before the step commits; the commit (samples trained, step, version) is one transaction; a version that is
committed and not in service is published before anything else is done.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.policy_files import adapter_dir
from openclaw_rl.rollout.batches import batch_due
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.checkpoint import (
    discard_uncommitted,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from openclaw_rl.training.publish import Publisher, PublishError, candidates
from openclaw_rl.training.trainer import StepOutcome, Trainer
from openclaw_rl.types import PolicyVersion, Sample, StepRecord, VersionState

log = logging.getLogger(__name__)

POLL_S = 0.25


class Stopped(Exception):
    """The process was told to stop in the middle of a step, which is then as if it had never begun."""


class TrainingLoop:
    """The loop over injected parts; `loop.run` puts the real ones together."""

    def __init__(
        self,
        *,
        config: Config,
        store: Store,
        trainer: Trainer,
        publisher: Publisher,
        reporter: LoopReporter,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._store = store
        self._trainer = trainer
        self._publisher = publisher
        self._reporter = reporter
        self._stop = stop

    def run(self) -> None:
        """Go on until `stop` is set."""
        self.resume()
        try:
            while not self._stop.is_set():
                if not self.cycle():
                    self._stop.wait(POLL_S)
        except Stopped:
            log.info("stopped in the middle of a step; its samples wait again")
        finally:
            self._store.samples.release_claims()

    def resume(self) -> None:
        """Be where the last committed step left off; what a dead predecessor held is free again."""
        self._reporter.working("resuming")
        released = self._store.samples.release_claims()
        steps = self._store.samples.steps()
        last = steps[-1].step if steps else 0
        removed = discard_uncommitted(self._config.checkpoints_dir, last)
        if steps:
            self._trainer.restore(load_checkpoint(Path(steps[-1].checkpoint)))
        log.info("at step %d; %d samples released, %d leftovers removed", last, released, len(removed))

    def cycle(self) -> bool:
        """Do the next thing there is to do; False where there was nothing."""
        if not self._publish_candidates():
            return False
        self._expire_stale()
        samples = self._claim_due()
        if not samples:
            return False
        outcome = self._step(samples)
        if outcome.refused is not None:
            self._reject(samples, outcome.refused)
        else:
            self._commit(samples, outcome)
            self._publish_candidates()
            self._prune()
        return True

    # --- the steps of a cycle, in order --------------------------------------------------------------------

    def _publish_candidates(self) -> bool:
        """Put what is committed into service; False where that has to be tried again later."""
        for version in candidates(self._store):
            waiting_for = f"the engine to load {version.name}"
            try:
                self._publisher.publish(version, lambda said=waiting_for: self._reporter.waiting(said))  # type: ignore[misc]
            except PublishError as error:
                log.warning("%s", error)
                self._store.status.count("publish_failures")
                self._reporter.waiting(str(error))
                return False
        return True

    def _expire_stale(self) -> None:
        oldest = self._trainer.step_number - self._config.training.max_staleness
        expired = self._store.samples.expire(before_version=oldest) if oldest > 0 else 0
        if expired:
            log.info("%d samples were drawn by versions before %d and expired", expired, oldest)

    def _claim_due(self) -> list[Sample]:
        """The samples of the next batch, those that this model cannot train taken out; none if it is not due."""
        ready = self._store.samples.ready()
        decision = batch_due(ready.count, ready.oldest_created_at, time.time(), self._config.rollout)
        if not decision.due:
            self._reporter.waiting(f"a batch: {decision.why}", ready=ready.count)
            return []
        usable = []
        for sample in self._store.samples.claim(decision.size, self._config.training.lease_s):
            reason = self._trainer.unusable(sample)
            if reason is None:
                usable.append(sample)
            else:
                self._reject([sample], reason)
        return usable

    def _step(self, samples: list[Sample]) -> StepOutcome:
        step = self._trainer.step_number + 1

        def progress(doing: str) -> None:
            if self._stop.is_set():
                raise Stopped
            self._reporter.working(f"training step {step}: {doing}", step=step, samples=len(samples))

        progress("starting")
        with self._store.status.span("training_step", step=step, samples=len(samples)):
            return self._trainer.step(samples, progress)

    def _reject(self, samples: list[Sample], reason: str) -> None:
        self._store.samples.reject([sample.turn_id for sample in samples], reason=reason)
        self._store.status.count("steps_refused" if len(samples) > 1 else "samples_unusable")

    def _commit(self, samples: list[Sample], outcome: StepOutcome) -> None:
        self._reporter.working(f"writing the checkpoint of step {outcome.step}")
        checkpoint = save_checkpoint(self._trainer, self._config.checkpoints_dir.resolve())
        self._reporter.working(f"committing step {outcome.step}")
        now = time.time()
        record = StepRecord(
            step=outcome.step,
            version=outcome.step,
            sample_ids=tuple(sample.turn_id for sample in samples),
            metrics=outcome.metrics,
            checkpoint=str(checkpoint),
            seconds=outcome.seconds,
            created_at=now,
        )
        version = PolicyVersion(
            version=outcome.step,
            state=VersionState.CANDIDATE,
            path=str(adapter_dir(checkpoint)),
            step=outcome.step,
            created_at=now,
        )
        self._store.samples.commit_step(record, version)
        log.info("step %d: %d samples in %.1f s", outcome.step, len(samples), outcome.seconds)

    def _prune(self) -> None:
        needed = {VersionState.SERVING, VersionState.CANDIDATE}
        in_use = {version.step for version in self._store.versions.all() if version.state in needed}
        prune_checkpoints(self._config.checkpoints_dir, keep=self._config.training.keep_checkpoints, in_use=in_use)
