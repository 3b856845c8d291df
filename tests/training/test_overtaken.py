"""A person goes back to an earlier version while the engine loads a later one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.store import Store
from openclaw_rl.testing.engine_server import engine_server
from openclaw_rl.testing.scripted_engine import ScriptedEngine
from openclaw_rl.training.publish import EnginePublisher, VersionRefused
from openclaw_rl.types import PolicyVersion, StepRecord, VersionState
from tests.training.test_cycle import StorePublisher, adapter_after, fill, make_config, make_loop, work_off


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


class RollingBackEngine(ScriptedEngine):
    """Somebody goes back to the base while it loads its first version."""

    def __init__(self, store: Store) -> None:
        super().__init__([{"text": "hello"}])
        self._store = store
        self.loaded_for: list[int] = []

    async def load_version(self, version: PolicyVersion) -> None:
        await super().load_version(version)
        if not self.loaded_for:
            self._store.versions.roll_back(0)
        self.loaded_for.append(version.version)


def test_a_rollback_during_a_publication_gives_the_version_up(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    fresh = adapter_after(loop._trainer)
    engine = RollingBackEngine(store)
    with engine_server(engine) as url:
        loop._candidates.publisher = EnginePublisher(store, lambda: EmbeddedEngine(url), timeout_s=30.0)
        loop.resume()
        assert loop.cycle()
        given_up = store.versions.get(1)
        assert given_up is not None
        assert (given_up.state, given_up.reason) == (VersionState.REJECTED, "rolled_back")
        assert store.versions.serving().version == 0
        assert store.status.counts().counters["publications_overtaken"] == 1
        for now, base in zip(adapter_after(loop._trainer), fresh, strict=True):
            torch.testing.assert_close(now, base, rtol=0, atol=0)
        assert loop.cycle()
    assert store.versions.serving().version == 2
    assert engine.loaded_for == [1, 2]
    assert [step.sample_ids for step in store.samples.steps()] == [("t0", "t1"), ("t2", "t3")]


def test_candidates_that_a_rollback_gave_up_meanwhile_are_not_published(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    now = time.time()
    for number in (1, 2):
        store.samples.claim(1, 60.0)
        record = StepRecord(
            step=number, version=number, sample_ids=(f"t{number - 1}",), metrics={}, checkpoint="c", seconds=1.0,
            created_at=now,
        )  # fmt: skip
        version = PolicyVersion(version=number, state=VersionState.CANDIDATE, path="p", step=number, created_at=now)
        store.samples.commit_step(record, version)
    engine = RollingBackEngine(store)
    with engine_server(engine) as url:
        loop._candidates.publisher = EnginePublisher(store, lambda: EmbeddedEngine(url), timeout_s=30.0)
        assert loop._candidates.publish("")
    assert engine.loaded_for == [1]
    assert store.status.counts().counters["publications_overtaken"] == 1


def test_a_version_that_is_refused_and_given_up_at_once_is_rejected_once(tmp_path: Path, store: Store) -> None:
    class BothPublisher(StorePublisher):
        def publish(self, version: PolicyVersion, heartbeat: Callable[[], None]) -> None:
            store.versions.roll_back(0)
            raise VersionRefused(f"the engine refuses {version.name}")

    fill(store, 2)
    loop = make_loop(make_config(tmp_path), store)
    loop._candidates.publisher = BothPublisher(store)
    work_off(loop)
    given_up = store.versions.get(1)
    assert given_up is not None
    assert (given_up.state, given_up.reason) == (VersionState.REJECTED, "rolled_back")
