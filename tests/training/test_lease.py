"""What a step holds stays held while its trainer is heard of; what was deleted under it costs that step only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from openclaw_rl.store import Store
from openclaw_rl.store.erasure import BeingTrained
from openclaw_rl.store.schema import samples
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.lease import Lease
from openclaw_rl.types import LoopName
from tests.outages import Lock
from tests.training.test_cycle import fill, make_config, make_loop


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite", patience_s=0.05)
    yield opened
    opened.close()


def run_out(store: Store) -> None:
    """As if all leases had been taken long ago."""
    with store._database.write() as connection:
        connection.execute(update(samples).values(lease_until=time.time() - 1.0))


def left(store: Store) -> list[float]:
    """Of each lease, the seconds until it ends."""
    with store._database.read() as connection:
        return [until - time.time() for until in connection.execute(select(samples.c.lease_until)).scalars()]


def test_leases_are_renewed_about_once_a_minute(store: Store) -> None:
    now = [0.0]
    lease = Lease(store, 900.0, clock=lambda: now[0])
    fill(store, 1)
    store.samples.claim(1, 900.0)
    renewed = []
    for second in (0, 1, 59, 60, 61, 119, 120):
        now[0] = second
        run_out(store)
        lease.renew("")
        renewed += [second] * (left(store)[0] > 800)
    assert renewed == [0, 60, 120]


def test_a_record_that_is_locked_ends_no_step(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    lock = Lock(store._database.path)
    lock.take()
    Lease(store, 900.0).renew("")
    lock.close()
    assert "the leases of claimed samples were not renewed" in caplog.text


def test_a_step_longer_than_its_lease_is_not_robbed(tmp_path: Path, store: Store) -> None:
    class Slow(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            if activity == "training step 1: starting":  # a quarter of an hour goes by
                run_out(store)
                loop._lease._last -= 1000.0
            if activity == "committing step 1":
                try:
                    store.erasure.delete(["s"], trainer_lives=True)
                except BeingTrained as error:
                    refused.append(error.turn_ids)

    refused: list[tuple[str, ...]] = []
    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store, Slow(store, LoopName.TRAINING))
    loop.resume()
    assert loop.cycle()
    assert [sorted(turn_ids) for turn_ids in refused] == [["t0", "t1"]]
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1")]


def test_samples_that_were_deleted_during_a_step_undo_it_and_training_goes_on(tmp_path: Path, store: Store) -> None:
    class Robbed(LoopReporter):
        def working(self, activity: str, **details: Any) -> None:
            if activity == "committing step 1" and store.turns.get("t0") is not None:
                store.erasure.delete(["s"], trainer_lives=False)

    fill(store, 2)
    config = make_config(tmp_path)
    loop = make_loop(config, store, Robbed(store, LoopName.TRAINING))
    loop.resume()
    assert loop.cycle()
    assert store.samples.steps() == []
    assert not list(config.checkpoints_dir.glob("step-*"))
    assert store.status.counts().counters["steps_overtaken"] == 1
    fill(store, 2, first=2)
    assert loop.cycle()
    assert [step.sample_ids for step in store.samples.steps()] == [("t2", "t3")]
    assert store.versions.serving().version == 1


def test_samples_that_were_deleted_before_they_are_rejected_or_given_back_are_no_matter(store: Store) -> None:
    fill(store, 3)
    store.samples.claim(3, 60.0)
    store.samples.reject(["t0", "gone"], reason="custom_loss_unusable")
    assert store.status.counts().counters["samples_rejected_custom_loss_unusable"] == 1
    store.samples.give_back(["t1", "gone"])
    store.samples.give_back(["gone"])
    assert [sample.turn_id for sample in store.samples.claim(3, 60.0)] == ["t1"]
