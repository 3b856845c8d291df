"""The cycle of the training loop: wait for a batch, train on it once, keep it, serve it.

Killed anywhere, it loses nothing and trains nothing twice, because of the order of three things: the checkpoint is on
disk before the step commits; the commit (samples trained, step, version) is one transaction; a version that is
committed and not in service is published before its owner is trained again. With one policy that is before anything
else is done; of several, the others have their turns while one is pinned, or put off because something failed.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import UnreadablePolicy, WeightsKind, weights_of
from openclaw_rl.rollout.batches import batch_due
from openclaw_rl.store import Store
from openclaw_rl.store.news import News
from openclaw_rl.store.outage import STORE_ERRORS, Patience, StoppedInOutage, outage_of
from openclaw_rl.store.samples import SamplesGone
from openclaw_rl.store.versions import BasisChanged, Pinned
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.candidates import Candidates
from openclaw_rl.training.checkpoint import save_checkpoint
from openclaw_rl.training.deaths import (
    EVALUATING,
    STOPPING,
    Deaths,
    Stopped,
    said_in_evaluation,
    said_in_step,
    stop_told,
)
from openclaw_rl.training.evaluation import Evaluation, evaluated, load_evaluation
from openclaw_rl.training.gatekeeper import ANSWERS_PROBED, KnownAnswer
from openclaw_rl.training.lease import Lease
from openclaw_rl.training.leftovers import discard_leftovers
from openclaw_rl.training.line import Line, line_in_store
from openclaw_rl.training.metric_log import MetricFiles, metric_files
from openclaw_rl.training.origin import begin, check_adapter
from openclaw_rl.training.own_disk import Directories
from openclaw_rl.training.own_steps import OwnSteps
from openclaw_rl.training.pruning import prune
from openclaw_rl.training.publish import PUBLISH, Publisher, candidates
from openclaw_rl.training.put_off import PutOff, cure_of
from openclaw_rl.training.recovery import resumable
from openclaw_rl.training.step_rows import rows_of
from openclaw_rl.training.trainer import StepOutcome, Trainer
from openclaw_rl.training.turns_of_owners import Kept, KeptStates, Turns
from openclaw_rl.training.window import closed_because, last_use
from openclaw_rl.types import BASE_VERSION, LoopName, Sample

log = logging.getLogger(__name__)

TRAINING_STEP = "training_step"
"""The name of its spans."""
POLL_S = 0.25
TIMED_S = 1.0
"""How often a batch that is old enough, or a window that opens, is looked for: what comes without a change."""
EVALUATION_PAUSE_S = 2.0
"""How long an evaluation that raised is left alone before it is asked again."""
HINTS_TOLD = 3
"""How many of the last hints the base is told, to see what it would have said in the place of the new weights."""


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
        plain_answers: Sequence[KnownAnswer] = (),
    ) -> None:
        """`plain_answers`: what the gate reads new weights on until the user accepted answers of their own."""
        self._config = config
        self._store = store
        self._trainer = trainer
        self._reporter = reporter
        self._stop = stop
        self._patience = Patience(stop, reporter.waiting, pause_s=1.0, max_pause_s=30.0)
        self._deaths = Deaths(store, config.training)
        self._lease = Lease(store, config.training.lease_s)
        self._doing = ""
        self._plain_answers = tuple(plain_answers)
        self._evaluate = load_evaluation(config.training.gate)
        self._metric_files = MetricFiles(metric_files(config))
        self._basis = BASE_VERSION
        self._owner: str | None = None
        self._kept = KeptStates(config.policies.states_in_memory)
        self._put_off = PutOff()
        self._directories = Directories(config.checkpoints_dir.resolve(), self._put_off)
        self._candidates = Candidates(
            store=store,
            publisher=publisher,
            reporter=reporter,
            stop=stop,
            put_off=self._put_off,
            owned=config.policies.owned,
        )
        self._turns = Turns(config, store, self._put_off)

    def run(self) -> None:
        """Go on until `stop` is set; where record or disk cannot be used, wait, then begin as after a kill."""
        try:
            with stop_told(self._stop, self._reporter):
                self._until_stopped()
        except Stopped as error:
            log.info("stopped %s", error)
        except StoppedInOutage:
            log.info("stopped while the record could not be used")
        finally:
            with self._metric_files:
                self._release()

    def _until_stopped(self) -> None:
        while not self._stop.is_set():
            try:
                self._close_spans()
                self.resume()
                self._go_on()  # what was waited for is there once a cycle came through, and no sooner
            except STORE_ERRORS as error:
                self._wait_out(error)

    def _wait_out(self, error: Exception) -> None:
        """Wait a while for what cannot be used, and say what that is; raise what no waiting mends."""
        if isinstance(error, UnreadablePolicy):
            cure = "give it back its permissions or its disk, or move its checkpoint away to do without it"
            self._patience.wait_for(f"{error.filename} to be readable ({error.strerror}): {cure}", "unreadable")
            return
        named = error.filename if isinstance(error, OSError) else None
        if not self._patience.wait(error, named or "the record"):
            raise error

    def _go_on(self) -> None:
        news = News(self._store.changes, anyway_s=TIMED_S)
        while not self._stop.is_set():
            if news.worth_a_look(time.time()) or self._put_off.due:
                done = self.cycle()
                self._patience.over()
                if done:
                    continue
                news.nothing_found()
            self._stop.wait(POLL_S)

    def _close_spans(self) -> None:
        """End the spans whose end could not be written."""
        self._store.status.abort_spans((TRAINING_STEP, PUBLISH), LoopName.TRAINING)

    def _release(self) -> None:
        """Give back what is claimed; the next start does it where this cannot."""
        try:
            self._store.samples.release_claims()
        except STORE_ERRORS as error:
            if outage_of(error) is None:
                raise
            log.warning("claimed samples were not given back (%s)", type(error).__name__)

    def resume(self) -> None:
        """Be where the last committed step left off; the batch that a dead predecessor held is the next one."""
        if not self._patience.waiting:  # else it is said what for, since when
            self._reporter.working("resuming")
        last = self._store.samples.last_step()
        removed = discard_leftovers(self._config.checkpoints_dir, self._store, last)
        begin(self._config, self._store, self._trainer)
        self._owner = None
        self._kept.clear()
        if not self._config.policies.owned:
            self._turn_to("")
        self._metric_files.follow(self._store)
        log.info("at step %d; %d leftovers removed", last, len(removed))

    def cycle(self) -> bool:
        """Do the next thing there is to do; False where there was nothing."""
        if self._held_by_a_pin():
            return False
        self._candidates.publish("")
        owner = self._turns.next(self._reporter)
        if owner is None:
            return False
        if not self._turn_to(owner) or not self._directories.usable(owner):
            return True
        self._expire_stale()
        samples = self._claim_due()
        if not samples:
            return False
        outcome = self._step(samples)
        if outcome.refused is not None and not outcome.weights_changed:
            self._reject(samples, outcome.refused)
            self._store.status.count("steps_refused")
        elif self._commit(samples, outcome) and self._candidates.publish(owner) and self._turn_to(owner):
            prune(self._config, self._store, owner)
        return True

    # --- the steps of a cycle, in order --------------------------------------------------------------------

    def _held_by_a_pin(self) -> bool:
        """Whether a person keeps a version in service: what would be learned meanwhile could not be served."""
        pinned = None if self._config.policies.owned else self._store.versions.pinned()
        if pinned is not None:
            self._reporter.waiting(f"the pin on {pinned.name} to be lifted (openclaw-rl policy unpin)")
        return pinned is not None

    def _turn_to(self, owner: str) -> bool:
        """Have this owner's policy in the trainer, as its version in service is; False where it is pinned or put off.

        Mostly it is the one just trained. After a rollback, or a refusal by the gate or the engine, it is an earlier
        one: to train on from weights that nobody samples from would teach the policy by the answers of another.
        Files of one owner's that cannot be read, of which none is whole, or that `training.lora` as it is now does
        not fit, stop nobody else.
        """
        if owner == self._owner and self._store.versions.serving(owner).version == self._basis:
            return True
        if owner in self._store.versions.pinned_owners():
            return False  # its checkpoint is looked at once it is unpinned: damage there would lift the pin
        if self._owner is not None and self._owner != owner:
            self._kept.put(self._owner, Kept(version=self._basis, state=self._trainer.state()))
        self._owner = None  # nobody's, where the next line does not come to its end
        try:
            self._restore(owner)
        except Pinned:
            return False  # while it was looked at
        except (UnreadablePolicy, ConfigError) as error:
            if not owner:
                raise
            self._put_off.leave_alone(owner, cure_of(error, owner), error)
            return False
        self._owner = owner
        return True

    def _restore(self, owner: str) -> None:
        """Take the weights of an owner's version in service, or of the candidate that waits; count on from the last.

        A checkpoint that is not what was written takes its version out of service; one that cannot be read does not.
        """
        last = self._store.samples.last_step()
        basis = next(iter(reversed(candidates(self._store, owner))), self._store.versions.serving(owner)).version
        kept = self._kept.take(owner, basis) or self._read_from_disk(owner, basis)
        self._trainer.restore(dataclasses.replace(kept.state, step=last), weights_version=kept.version)
        self._trainer.own = OwnSteps.of(self._store.samples.step_numbers(owner), last)
        self._trainer.line = Line.of(line_in_store(self._store, owner, kept.version))
        self._basis = kept.version

    def _read_from_disk(self, owner: str, basis: int) -> Kept:
        intact = resumable(self._store, owner, basis)
        if intact.checkpoint is not None and intact.state is not None and intact.state.kind is WeightsKind.LORA:
            check_adapter(intact.checkpoint, self._trainer, said_by=f"this run goes on from {intact.checkpoint}")
        state = self._trainer.fresh() if intact.state is None else intact.state
        return Kept(version=intact.version, state=state)

    def _expire_stale(self) -> None:
        oldest = self._trainer.line.oldest_allowed(self._basis, self._config.training.max_staleness)
        owner = self._owner or ""
        spared = self._deaths.suspects()
        expired = self._store.samples.expire(before_version=oldest, owner=owner, spared=spared) if oldest > 0 else 0
        if expired:
            log.info("%d samples were drawn by versions before %d and expired", expired, oldest)

    def _claim_due(self) -> list[Sample]:
        """The samples of the next batch, those that this model cannot train taken out; none if it is not due."""
        owner = self._owner or ""
        ready = self._store.samples.ready(owner)
        decision = batch_due(ready.count, ready.oldest_created_at, time.time(), self._config.rollout)
        begun = owner in self._store.samples.claiming_owners()  # by a dead predecessor
        if not decision.due and not begun:
            self._reporter.waiting(f"a batch: {decision.why}", ready=ready.count)
            return []
        closed = closed_because(
            self._config.training.window,
            now=datetime.now(),
            last_request_at=last_use(self._config.last_use_path, self._store.status.last_request_at()),
        )
        if closed is not None:
            self._reporter.waiting(closed, ready=ready.count)
            return []
        self._turns.taken(owner)
        training = self._config.training
        claimed = self._deaths.sift(
            self._store.samples.take_up_claims(training.lease_s, owner)
            if begun
            else self._store.samples.claim(
                decision.size, training.lease_s, owner, max_tokens=training.max_tokens_per_step
            )
        )
        obstacles = self._trainer.usable.obstacles(claimed)
        for sample in claimed:
            if sample.turn_id in obstacles:
                self._reject([sample], obstacles[sample.turn_id])
                self._store.status.count("samples_unusable")
        return [sample for sample in claimed if sample.turn_id not in obstacles]

    def _say(self, words: str, stopped: str, **details: Any) -> None:
        """Say what is done next over a batch.

        Raises:
            Stopped: the process was told to stop; who is killed after that is not to be found at work on the batch.
        """
        if not self._stop.is_set():
            self._lease.renew(self._owner or "")
            self._reporter.working(words, **details)
            if not self._stop.is_set():
                return
            self._reporter.working(STOPPING)  # told between the two
        raise Stopped(stopped)

    def _step(self, samples: list[Sample]) -> StepOutcome:
        step = self._trainer.step_number + 1

        def progress(doing: str) -> None:
            self._doing = doing
            told = "in the middle of a step; its samples wait again"
            owner = self._owner or ""
            self._say(said_in_step(step, doing), told, step=step, samples=len(samples), owner=owner)

        progress("starting")
        with (
            self._store.status.span(TRAINING_STEP, step=step, samples=len(samples)),
            self._deaths.counted(samples, lambda: self._doing),
        ):
            return self._trainer.step(
                samples,
                progress,
                hints=self._store.samples.recent_hints(HINTS_TOLD, self._owner or ""),
                known=self._known_answers(),
            )

    def _known_answers(self) -> Sequence[KnownAnswer]:
        """The user's own accepted answers, once there are enough; till then those that come with the program."""
        accepted = self._store.samples.accepted_answers(ANSWERS_PROBED, self._owner or "")
        if len(accepted) < ANSWERS_PROBED:
            return self._plain_answers[:ANSWERS_PROBED]
        return [KnownAnswer(prompt_ids=prompt, response_ids=response) for prompt, response in accepted]

    def _reject(self, samples: list[Sample], reason: str) -> None:
        self._store.samples.reject([sample.turn_id for sample in samples], reason=reason)

    def _commit(self, samples: list[Sample], outcome: StepOutcome) -> bool:
        """Keep what the step made: a candidate, or (the gate refused) something to inspect. False: it never was."""
        owner = self._owner or ""
        checkpoint = self._saved(owner, outcome)
        if checkpoint is None:
            return False
        if outcome.refused is None and self._evaluate is not None:
            outcome = self._evaluated(samples, outcome, self._evaluate, weights_of(checkpoint).directory)
        self._patience.until_done(lambda: self._deaths.survived(samples))
        self._reporter.working(f"committing step {outcome.step}")
        record, version = rows_of(samples, outcome, checkpoint, owner)
        try:
            self._patience.until_done(lambda: self._store.samples.commit_step(record, version, basis=self._basis))
        except (BasisChanged, SamplesGone) as error:
            log.warning("%s: the step is undone, its samples wait again", error)
            self._store.status.count("steps_overtaken")
            self._undo()
            discard_leftovers(self._config.checkpoints_dir, self._store, outcome.step - 1)
            return False
        self._metric_files.follow(self._store)
        if outcome.refused is not None:
            log.error("%s is refused (%s) and kept in %s", version.name, outcome.refused, checkpoint)
            self._owner = None
            return True
        self._trainer.own = self._trainer.own.and_then(outcome.step)
        self._trainer.line = self._trainer.line.and_then(version.version, self._basis)
        self._basis = version.version
        log.info("step %d: %d samples in %.1f s", outcome.step, len(samples), outcome.seconds)
        return True

    def _saved(self, owner: str, outcome: StepOutcome) -> Path | None:
        """Write the checkpoint of a step; None: this owner's directory does not let it, and the step is undone."""
        self._reporter.working(f"writing the checkpoint of step {outcome.step}")
        try:
            checkpoint = save_checkpoint(self._trainer, self._directories.root(owner), self._store.identity.get())
        except OSError as error:
            self._directories.leave_alone(owner, error)
            self._undo()
            return None
        self._put_off.done(owner)
        return checkpoint

    def _undo(self) -> None:
        """The samples of a step wait again, and its weights are nobody's: the next turn takes those in service."""
        self._store.samples.release_claims(self._owner or "")  # what is held of others' is their next batch
        self._owner = None

    def _evaluated(
        self, samples: list[Sample], outcome: StepOutcome, evaluate: Evaluation, version: Path
    ) -> StepOutcome:
        def pause() -> None:
            if self._stop.wait(EVALUATION_PAUSE_S):
                raise Stopped("while a version was evaluated; its samples wait again")

        told = "before a version was evaluated; its samples wait again"
        self._say(said_in_evaluation(outcome.step), told, owner=self._owner or "")
        with self._deaths.counted(samples, lambda: EVALUATING):
            return evaluated(outcome, evaluate, version, self._config.training.gate, pause)
