"""The rollout loop: turns go from served to sampled or excluded.

A pass is a list of named steps. Each step moves turns by single store transactions and keeps nothing in memory, so
that the process may be killed anywhere, a pass may run twice, and the next pass always finds the right thing to do.
After a pass that moved nothing the next one waits until the record has changed, or a session has been idle too long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from openclaw_rl.config import Config
from openclaw_rl.judging.hint_candidates import REFUSED, screened
from openclaw_rl.rollout.classify import NOT_TOLD, exclusion_of, tokens_at_fault
from openclaw_rl.rollout.next_state import next_state_of
from openclaw_rl.rollout.progress import Progress, StallWatch, progress_of
from openclaw_rl.rollout.records import ConversationRecords
from openclaw_rl.rollout.retries import RetrySearch, find_retry
from openclaw_rl.rollout.samples import build_sample, kept_sample, zero_counts
from openclaw_rl.rollout.waiting import waiting_samples
from openclaw_rl.store import Store
from openclaw_rl.store.news import News
from openclaw_rl.store.outage import STORE_ERRORS, Patience
from openclaw_rl.store.transitions import TurnGone
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import HUMAN, ExclusionReason, Judgement, LoopName, Sample, SignalKind, Turn, TurnState

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0
"""Counting everything costs more than a pass with nothing to do; heartbeats are due each 2 s."""

Step = Callable[[Store, Config, float], int]
"""A step moves what it can at a time `now` and says how many turns (or sessions) it moved."""


def classify_served(store: Store, config: Config, _now: float) -> int:
    """`served` → `awaiting_next_state`, or `excluded` where the turn could never be trained.

    Answers of an upstream that tells no token ids are judged all the same, and excluded after that.
    """
    judged_anyway = NOT_TOLD if config.engine.kind == "openai" else frozenset()
    served = store.turns.in_state(TurnState.SERVED)
    for turn in served:
        reason = exclusion_of(turn, policy_name=config.model.served_name, method=config.training.method)
        reason = None if reason in judged_anyway else reason
        new = TurnState.AWAITING_NEXT_STATE if reason is None else TurnState.EXCLUDED
        store.turns.move(turn.turn_id, new, reason=reason)
    return len(served)


def attach_next_states(store: Store, _config: Config, _now: float) -> int:
    """`awaiting_next_state` → `judging` with the first feedback, even if the turn was excluded for lack of it."""
    moved = 0
    for turn_id, child in store.turns.with_next_request():
        messages = next_state_of(child)
        if messages is not None:
            store.turns.set_next_state(turn_id, child.turn_id, messages)
            moved += 1
    return moved


def take_feedback(store: Store, _config: Config, _now: float) -> int:
    """Turns that a person has judged go to `judging`: from `excluded` too, and from `sampled` if none claimed it."""
    return store.feedback.take()


def release_rollouts(store: Store, _config: Config, _now: float) -> int:
    """Groups of rollouts that were told their rewards: all that this pass does from here on is done to them whole."""
    return store.rollouts.release()


def close_signalless_rollouts(store: Store, _config: Config, _now: float) -> int:
    """Turns of rollouts of which nobody will say anything go to `excluded`."""
    left = store.rollouts.signalless()
    for turn_id, reason in left:
        store.turns.move(turn_id, TurnState.EXCLUDED, reason=reason)
    return len(left)


def take_signals(store: Store, config: Config, _now: float) -> int:
    """Turns without a next state go to `judging` for a signal that has a weight."""
    weights = config.judge.signals
    kinds = [kind for kind in SignalKind if getattr(weights, kind.value)]
    return store.feedback.take_signals(kinds) if kinds else 0


def keep_at_least_one(store: Store, config: Config, now: float) -> int:
    """With `rollout.at_least_one`: one turn of each ended session whose scores were all 0 becomes a sample."""
    if not (config.rollout.at_least_one and config.training.enabled):
        return 0
    kept = [turn for turn_id in store.feedback.keep_one() if (turn := store.turns.get(turn_id)) is not None]
    for turn in kept:
        store.samples.add_kept(kept_sample(turn, now=now))
    return len(kept)


def end_idle_sessions(store: Store, config: Config, now: float) -> int:
    """A session without a request for `rollout.idle_timeout_s` is over. A later request opens it again."""
    return store.sessions.end_idle(now - config.rollout.idle_timeout_s)


def close_unanswered(store: Store, _config: Config, _now: float) -> int:
    """`awaiting_next_state` → `excluded` (no_next_state) where the session is over and nobody reacted."""
    left = store.turns.awaiting_in_ended_sessions()
    for turn_id in left:
        store.turns.close_unanswered(turn_id)
    return len(left)


def settle_judged(store: Store, config: Config, now: float) -> int:
    """`judging` → `sampled` with a sample, or `excluded` with the reason why the judgement gives none."""
    judged = store.turns.judged()
    groups = store.rollouts.group_of_sessions([turn.request.session_id for turn, _ in judged]) if judged else {}
    together: dict[str, list[Sample]] = {}
    moved = 0
    for turn, judgement in judged:
        if (reason := tokens_at_fault(turn)) is not None:  # of an upstream: judged, and no more
            store.turns.move(turn.turn_id, TurnState.EXCLUDED, reason=reason)
            moved += 1
            continue
        search = _retry_of(store, config, turn, judgement)
        if search.undecided:
            continue
        group = groups.get(turn.request.session_id)
        outcome = _outcome(store, config, turn, judgement, search, now, compared=group is not None)
        if isinstance(outcome, Sample) and group is not None:
            together.setdefault(group, []).append(outcome)
        elif isinstance(outcome, Sample):
            store.samples.add(outcome)
        else:
            store.turns.move(turn.turn_id, TurnState.EXCLUDED, reason=outcome)
        moved += 1
    for samples in together.values():
        store.samples.add_group(samples)
    return moved


def _outcome(
    store: Store,
    config: Config,
    turn: Turn,
    judgement: Judgement,
    search: RetrySearch,
    now: float,
    *,
    compared: bool,
) -> Sample | ExclusionReason:
    """The sample that a judged turn becomes, or why it becomes none. `compared`: it is of a group of rollouts."""
    method = config.training.method
    if judgement.kind == HUMAN:  # nobody has looked at its comment yet
        judgement = _screened(store, judgement, turn)
    outcome = build_sample(turn, judgement, method, retry=search.demonstration, now=now)
    if compared and outcome is ExclusionReason.NO_SIGNAL and zero_counts(judgement, method):
        outcome = kept_sample(turn, now=now)  # among others that it is compared with, 0 is a reward
    if isinstance(outcome, Sample) and not config.training.enabled:
        return ExclusionReason.NOT_TRAINING
    return outcome


STEPS: Mapping[str, Step] = {
    "releasing rollouts": release_rollouts,
    "classifying served turns": classify_served,
    "attaching next states": attach_next_states,
    "taking feedback": take_feedback,
    "taking signals": take_signals,
    "ending idle sessions": end_idle_sessions,
    "closing rollouts without a signal": close_signalless_rollouts,
    "closing unanswered turns": close_unanswered,
    "settling judged turns": settle_judged,
    "keeping one turn of silent sessions": keep_at_least_one,
}
"""One pass, in this order: a next state that is here is attached before its absence could exclude the turn."""


def run_pass(store: Store, config: Config, now: float) -> dict[str, int]:
    """Run every step once; how many each moved. All 0 means that there was nothing to do.

    A step whose turn is deleted under its hands ends there; the next pass does what it left.
    """
    moved: dict[str, int] = {}
    for name, step in STEPS.items():
        try:
            moved[name] = step(store, config, now)
        except TurnGone:
            moved[name] = 1
    return moved


def run(config: Config, stop: threading.Event) -> None:
    """Look for work each `rollout.poll_interval_s` until `stop` is set; report, and warn when nothing moves."""
    store = Store.open(config.store_path)
    try:
        RolloutLoop(config, store, stop).run()
    finally:
        store.close()


class RolloutLoop:
    """Passes over one store, one after the other while there is something to do."""

    def __init__(self, config: Config, store: Store, stop: threading.Event) -> None:
        self._config = config
        self._store = store
        self._stop = stop
        self._news = News(store.changes)
        self._reporter = LoopReporter(store, LoopName.ROLLOUT)
        self._records = ConversationRecords(store, config)
        self._patience = Patience(stop, self._reporter.waiting)
        self._watch = StallWatch(config.rollout.warn_after_s, time.time())
        self._reported_at = 0.0

    def run(self) -> None:
        """Go on until told to stop; where the record cannot be used, wait: a pass that broke off is done again."""
        while not self._stop.is_set():
            try:
                self._once(time.time())
            except STORE_ERRORS as error:
                if not self._patience.wait(error):
                    raise
            else:
                self._patience.over()
                self._stop.wait(self._config.rollout.poll_interval_s)

    @property
    def waits_for_the_record(self) -> bool:
        """Whether the record cannot be used at the moment."""
        return self._patience.waiting

    def _pass(self, now: float) -> dict[str, int]:
        moved = run_pass(self._store, self._config, now)
        if not any(moved.values()):  # of all steps only one waits for a time
            quiet_since = self._store.sessions.quiet_since()
            self._news.nothing_found(
                None if quiet_since is None else quiet_since + self._config.rollout.idle_timeout_s
            )
        return moved

    def _once(self, now: float) -> None:
        moved = self._pass(now) if self._news.worth_a_look(now) else {}
        moved["writing records"] = self._records.write_due(now)
        if any(moved.values()):
            self._watch.moved(now)
        if now - self._reported_at >= REPORT_INTERVAL_S:
            progress = _progress(self._store, self._config, now)
            _report(self._reporter, moved, progress)
            self._watch.saw(progress.work, now)
            self._reported_at = now
        stalled_s = self._watch.stalled_for(now)
        if stalled_s is not None:
            _warn(stalled_s, _progress(self._store, self._config, now))


def _retry_of(store: Store, config: Config, turn: Turn, judgement: Judgement) -> RetrySearch:
    if not config.rollout.accepted_retry or turn.reconstructed:
        return RetrySearch()
    return find_retry(turn, judgement, store.turns.exchange)


def _screened(store: Store, judgement: Judgement, turn: Turn) -> Judgement:
    """A person's judgement with its comment only if it may teach."""
    seen = screened(judgement, turn)
    for reason, number in seen.details.get(REFUSED, {}).items():
        store.status.count(f"hints_refused_{reason}", number)
    return seen


def _progress(store: Store, config: Config, now: float) -> Progress:
    return progress_of(store.status.counts(), waiting_samples(store, config, now))


def _warn(stalled_s: float, progress: Progress) -> None:
    if progress.work is not None:
        logger.warning("no progress for %.0f s: %s", stalled_s, progress.sentence())


def _report(reporter: LoopReporter, moved: Mapping[str, int], progress: Progress) -> None:
    busy = [name for name, number in moved.items() if number]
    if busy:
        reporter.working(", ".join(busy), **progress.details())
    else:
        reporter.waiting(progress.waiting_for(), **progress.details())
