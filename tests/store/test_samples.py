from __future__ import annotations

import dataclasses
import time

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from openclaw_rl.store import Store
from openclaw_rl.store.samples import SamplesGone
from openclaw_rl.store.versions import BasisChanged, Pinned
from openclaw_rl.types import InvalidTransition, Origin, Sample, SampleState, VersionState
from tests.builders import state_of
from tests.store.helpers import candidate, step_record, to_sample


def test_samples_come_back_as_they_went_in_the_oldest_first(store: Store) -> None:
    origin = Origin(key_id="k", group_id=None, task_id=None, step=0)
    made = [dataclasses.replace(sample, origin=origin) for sample in to_sample(store, "t1", "t2", "t3")]
    ready = store.samples.ready()
    assert (ready.count, ready.oldest_created_at) == (3, 1000.0)
    assert store.samples.claim(2, 60.0) == made[:2]
    assert store.samples.claim(2, 60.0) == made[2:]
    assert store.samples.claim(2, 60.0) == []
    assert store.samples.ready().oldest_created_at is None


def test_a_batch_takes_what_fits_in_its_tokens_and_at_least_one_sample(store: Store) -> None:
    made = to_sample(store, "t1", "t2", "t3")
    tokens = [len(sample.tokens.prompt_ids) + len(sample.tokens.response_ids) for sample in made]

    def claimed(max_tokens: int) -> list[str]:
        store.samples.release_claims()
        return [sample.turn_id for sample in store.samples.claim(3, 60.0, max_tokens=max_tokens)]

    assert claimed(sum(tokens)) == ["t1", "t2", "t3"]
    assert claimed(sum(tokens[:2])) == ["t1", "t2"]
    assert claimed(sum(tokens[:2]) - 1) == ["t1"]
    assert claimed(1) == ["t1"]


def test_a_turn_becomes_a_sample_once(store: Store) -> None:
    (sample,) = to_sample(store, "t1")
    with pytest.raises(InvalidTransition):
        store.samples.add(sample)
    assert store.status.counts().counters["samples"] == 1


def test_a_dead_trainers_claim_runs_out(store: Store) -> None:
    to_sample(store, "t1")
    assert len(store.samples.claim(1, lease_s=2.0)) == 1
    assert store.samples.claim(1, lease_s=60.0) == []
    time.sleep(2.1)
    assert len(store.samples.claim(1, lease_s=60.0)) == 1
    assert store.status.counts().counters["samples_returned"] == 1


def test_a_restarted_trainer_gets_its_predecessors_claims_at_once(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, lease_s=900.0)
    assert store.samples.release_claims() == 2
    assert store.samples.release_claims() == 0
    assert len(store.samples.claim(2, lease_s=900.0)) == 2


def test_samples_of_one_moment_are_claimed_in_the_order_of_their_ids(store: Store) -> None:
    for turn_id in ("t3", "t1", "t2"):
        to_sample(store, turn_id)
    assert len({sample.created_at for sample in store.samples.claim(3, 60.0)}) == 1
    store.samples.release_claims()
    assert [sample.turn_id for sample in store.samples.claim(2, 60.0)] == ["t1", "t2"]


def test_a_dead_trainers_batch_is_taken_up_as_it_was(store: Store) -> None:
    to_sample(store, "t1", "t2")
    assert store.samples.take_up_claims(60.0) == []
    held = store.samples.claim(2, lease_s=0.01)
    to_sample(store, "t0")
    time.sleep(0.05)
    assert store.samples.take_up_claims(60.0) == held
    assert [sample.turn_id for sample in store.samples.claim(9, 60.0)] == ["t0"]
    assert "samples_returned" not in store.status.counts().counters


def test_a_step_is_committed_whole_and_repeating_it_changes_nothing(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    record, version = step_record(1, "t1", "t2"), candidate(1)
    store.samples.commit_step(record, version)
    before = store.status.counts()
    store.samples.commit_step(record, version)
    assert store.status.counts() == before
    assert before.samples_by_state == {"trained": 2}
    assert (before.counters["samples_trained"], before.counters["steps"]) == (2, 1)
    assert store.samples.steps() == [record]
    assert store.versions.get(1) == version


def test_a_step_is_on_the_disk_before_it_counts_and_no_other_commit_waits_for_that(store: Store) -> None:
    """Two steps that a power cut takes leave checkpoints that nobody knows: the next start would refuse them."""
    levels: list[int] = []
    event.listen(
        store._database._engine,
        "commit",
        lambda connection: levels.append(connection.exec_driver_sql("PRAGMA synchronous").scalar()),
    )
    to_sample(store, "t1")
    store.samples.claim(1, 60.0)
    before = len(levels)
    store.samples.commit_step(step_record(1, "t1"), candidate(1))
    store.status.count("anything")
    assert (set(levels[:before]), levels[before:]) == ({1}, [2, 1])


def test_a_step_is_not_committed_again_with_other_samples(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    store.samples.commit_step(step_record(1, "t1"), candidate(1))
    with pytest.raises(ValueError, match="other samples"):
        store.samples.commit_step(step_record(1, "t2"), candidate(1))
    assert store.status.counts().samples_by_state == {"trained": 1, "claimed": 1}


def test_nothing_is_trained_twice(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    store.samples.commit_step(step_record(1, "t1"), candidate(1))
    with pytest.raises(InvalidTransition):
        store.samples.commit_step(step_record(2, "t2", "t1"), candidate(2))
    assert store.status.counts().samples_by_state == {"trained": 1, "claimed": 1}, "t2 is not half-trained"
    assert store.versions.get(2) is None
    assert len(store.samples.steps()) == 1


def test_a_step_needs_claims_samples_and_a_new_version(store: Store) -> None:
    to_sample(store, "t1")
    with pytest.raises(InvalidTransition):
        store.samples.commit_step(step_record(1, "t1"), candidate(1))
    store.samples.claim(1, 60.0)
    with pytest.raises(SamplesGone, match="t9"):
        store.samples.commit_step(step_record(1, "t1", "t9"), candidate(1))
    with pytest.raises(IntegrityError):
        store.samples.commit_step(step_record(1, "t1"), candidate(0))
    assert store.status.counts().samples_by_state == {"claimed": 1}
    assert store.samples.steps() == []


def test_a_refused_step_spends_its_samples_with_a_counted_reason(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(1, 60.0)
    store.samples.reject(["t1"], reason="nonfinite")
    counts = store.status.counts()
    assert counts.samples_by_state == {"rejected": 1, "ready": 1}
    assert counts.counters["samples_rejected_nonfinite"] == 1
    with pytest.raises(InvalidTransition):
        store.samples.reject(["t2"], reason="nonfinite")


def test_stale_samples_expire_and_are_counted(store: Store) -> None:
    to_sample(store, "t1", "t2")  # drawn by version 0
    assert store.samples.expire(before_version=0) == 0
    store.samples.claim(1, 60.0)
    assert store.samples.expire(before_version=1) == 1, "a claimed one is in a step already"
    counts = store.status.counts()
    assert counts.samples_by_state == {"claimed": 1, "expired": 1}
    assert counts.counters["samples_expired_stale"] == 1


def test_rewards_are_listed_whether_or_not_they_are_trained(store: Store) -> None:
    made: list[Sample] = to_sample(store, "t1", "t2")
    assert store.samples.trained_rewards() == [(sample.created_at, sample.reward) for sample in made]
    assert state_of(store, "t1")[0].value == "sampled"


def test_exactly_one_version_serves(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    assert store.versions.serving().version == 0
    store.samples.commit_step(step_record(1, "t1"), candidate(1))
    store.samples.commit_step(step_record(2, "t2"), candidate(2))
    store.versions.serve(1)
    store.versions.serve(1)
    assert {v.version: v.state for v in store.versions.all()} == {
        0: VersionState.RETIRED,
        1: VersionState.SERVING,
        2: VersionState.CANDIDATE,
    }
    store.versions.reject(2, "kl_to_base")
    with pytest.raises(InvalidTransition):
        store.versions.serve(2)
    assert store.versions.serving().version == 1, "the version in service stays"


def test_a_rollback_serves_an_earlier_version_and_rejects_what_waits(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    store.samples.commit_step(step_record(1, "t1"), candidate(1), basis=0)
    store.versions.serve(1)
    store.samples.commit_step(step_record(2, "t2"), candidate(2), basis=1)
    store.versions.roll_back(0)
    assert [(v.state, v.reason) for v in store.versions.all()] == [
        (VersionState.SERVING, None),
        (VersionState.RETIRED, "rolled_back"),
        (VersionState.REJECTED, "rolled_back"),
    ]
    assert [v.basis for v in store.versions.all()] == [None, 0, 1]
    with pytest.raises(InvalidTransition):
        store.versions.roll_back(2)
    assert store.versions.serving().version == 0
    store.versions.roll_back(1)  # forward again: it is out of service no longer, and nothing was gone back from
    assert [v.reason for v in store.versions.all()] == [None, None, "rolled_back"]


def test_a_pinned_version_stays_in_service(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    store.samples.commit_step(step_record(1, "t1"), candidate(1))
    store.versions.serve(1)
    store.versions.pin(1)
    store.samples.commit_step(step_record(2, "t2"), candidate(2))
    with pytest.raises(Pinned, match="policy-v1"):
        store.versions.serve(2)
    assert store.versions.pinned() == store.versions.serving()
    store.versions.pin(0)  # a pin on another takes its place
    assert [v.version for v in store.versions.all() if v.pinned] == [0]
    store.versions.unpin()
    assert store.versions.pinned() is None


def test_a_step_on_weights_that_serve_no_longer_is_not_committed(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    store.samples.commit_step(step_record(1, "t1"), candidate(1), basis=0)
    store.versions.serve(1)
    store.versions.roll_back(0)
    with pytest.raises(BasisChanged):
        store.samples.commit_step(step_record(2, "t2"), candidate(2), basis=1)
    assert [step.step for step in store.samples.steps()] == [1]
    assert store.samples.release_claims() == 1


def test_a_step_that_the_gate_refused_rejects_its_samples(store: Store) -> None:
    to_sample(store, "t1", "t2")
    store.samples.claim(2, 60.0)
    refused = dataclasses.replace(candidate(1), state=VersionState.REJECTED, reason="entropy")
    for _ in range(2):  # repeating it changes nothing
        store.samples.commit_step(step_record(1, "t1", "t2"), refused)
    assert store.status.counts().samples_by_state == {SampleState.REJECTED: 2}
    assert store.status.counts().counters["samples_rejected_entropy"] == 2
    assert store.versions.get(1) == refused
    assert store.versions.serving().version == 0
