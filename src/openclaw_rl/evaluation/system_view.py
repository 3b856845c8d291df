"""The system's side of a run, read from the store: for the live page, for the report, and for knowing the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy.exc import OperationalError

from openclaw_rl.config import Config
from openclaw_rl.evaluation.live_view import SystemState
from openclaw_rl.evaluation.settling import Standing
from openclaw_rl.store import Store
from openclaw_rl.types import LoopName, SampleState, TurnState, VersionState

PATIENCE_S = 45.0
"""A smaller batch that becomes due within this is waited for."""


def read_system_state(store: Store, config: Config) -> SystemState | None:
    """The figures of the live page; None while the store is busy."""
    try:
        counts = store.status.counts()
        serving = store.versions.serving()
        trainer = next((loop for loop in store.status.loops() if loop.loop is LoopName.TRAINING), None)
    except OperationalError:
        return None
    samples = counts.samples_by_state
    return SystemState(
        sessions=counts.sessions,
        turns_by_state=counts.turns_by_state,
        judged=counts.judgements,
        hints=counts.hints,
        samples_waiting=samples.get(SampleState.READY, 0),
        samples_training=samples.get(SampleState.CLAIMED, 0),
        samples_trained=samples.get(SampleState.TRAINED, 0),
        batch_size=config.rollout.batch_size,
        version=serving.name,
        steps=serving.step,
        trainer="" if trainer is None else trainer.waiting_for or trainer.activity,
    )


def standing(store: Store, config: Config) -> Standing:
    """What is on its way into a version, and how much has arrived."""
    counts = store.status.counts()
    trained = counts.samples_by_state.get(SampleState.TRAINED, 0)
    return Standing(
        pending=tuple(pending_work(store, config)),
        arrived=(store.versions.serving().version, trained, counts.judgements),
    )


def pending_work(store: Store, config: Config) -> list[str]:
    """What is still on its way into a version, in words; empty when all is settled.

    Samples that make no batch by themselves are not waited for, unless they become due soon.
    """
    counts = store.status.counts()
    turns, samples = counts.turns_by_state, counts.samples_by_state
    pending: list[str] = []
    if number := turns.get(TurnState.SERVED, 0):
        pending.append(f"{number} answers to be looked at")
    if number := turns.get(TurnState.JUDGING, 0):
        pending.append(f"{number} answers to be judged")
    if number := len(store.turns.with_next_request()):
        pending.append(f"{number} next states to be recorded")
    ready = samples.get(SampleState.READY, 0)
    soon = config.rollout.max_batch_wait_s <= PATIENCE_S and ready >= config.rollout.min_batch_size
    if ready >= config.rollout.batch_size or soon:
        pending.append(f"{ready} samples to be trained")
    if number := samples.get(SampleState.CLAIMED, 0):
        pending.append(f"a training step on {number} samples")
    if any(version.state is VersionState.CANDIDATE for version in store.versions.all()):
        pending.append("a version to be published")
    return pending


def judge_scores(store: Store) -> Mapping[str, float | None]:
    """The latest judgement's score by turn, None where it ended without one."""
    return {judgement.turn_id: judgement.score for judgement in store.turns.judgements()}


def recorded_answers(store: Store, turn_ids: Iterable[str]) -> Mapping[str, str]:
    """The text of the recorded answers of these turns; turns that are not there are left out."""
    texts: dict[str, str] = {}
    for turn_id in turn_ids:
        turn = store.turns.get(turn_id)
        if turn is not None:
            texts[turn_id] = str(turn.answer.get("content") or "")
    return texts
