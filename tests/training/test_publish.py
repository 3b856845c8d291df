"""Publishing over the engine's own HTTP, the engine being a scripted one that fails as it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_rl.config import Config, PoliciesConfig
from openclaw_rl.policy_files import weights_of
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import (
    Engine,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnreadableVersion,
)
from openclaw_rl.store import Store
from openclaw_rl.testing.engine_server import engine_server
from openclaw_rl.testing.scripted_engine import ScriptedEngine
from openclaw_rl.training.checkpoint import save_checkpoint
from openclaw_rl.training.loop import files_check
from openclaw_rl.training.publish import (
    EnginePublisher,
    PublishError,
    VersionOvertaken,
    VersionRefused,
    candidates,
)
from openclaw_rl.types import PolicyVersion, StepRecord, VersionState
from tests.training.support import into_store, make_sample, tiny_trainer


class FailingEngine(ScriptedEngine):
    """Raises these errors, one a call, before it loads a version."""

    def __init__(self, *errors: EngineError) -> None:
        super().__init__([{"text": "hello"}])
        self.errors = list(errors)
        self.asked = 0

    async def load_version(self, version: PolicyVersion) -> None:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        await super().load_version(version)


@contextmanager
def served(engine: Engine) -> Iterator[Callable[[], Engine]]:
    with engine_server(engine) as url:
        yield lambda: EmbeddedEngine(url)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "store.sqlite")
    into_store(opened, make_sample(tiny_trainer(), 1))
    opened.samples.claim(1, 60.0)
    now = time.time()
    record = StepRecord(
        step=1, version=1, sample_ids=("t1",), metrics={}, checkpoint="c", seconds=1.0, created_at=now
    )
    version = PolicyVersion(version=1, state=VersionState.CANDIDATE, path="p", step=1, created_at=now)
    opened.samples.commit_step(record, version)
    return opened


def test_a_candidate_is_loaded_and_then_serves(store: Store) -> None:
    engine = FailingEngine(EngineUnavailable("still loading"), EngineUnavailable("still loading"))
    beats: list[float] = []
    (version,) = candidates(store)
    with served(engine) as connect:
        EnginePublisher(store, connect, timeout_s=30.0).publish(version, lambda: beats.append(time.monotonic()))
    assert engine.asked == 3
    assert store.versions.serving().version == 1
    assert candidates(store) == []
    (span,) = store.status.spans("publish")
    assert span.ended_at is not None
    assert beats


def test_an_engine_that_never_answers_leaves_the_candidate_for_later(store: Store) -> None:
    engine = FailingEngine(*[EngineUnavailable("gone")] * 1000)
    (version,) = candidates(store)
    with served(engine) as connect, pytest.raises(PublishError, match=r"did not load policy-v1 within 1 s"):
        EnginePublisher(store, connect, timeout_s=1.0).publish(version, lambda: None)
    assert store.versions.serving().version == 0
    assert candidates(store) == [version]


def test_a_refusal_is_said_at_once(store: Store) -> None:
    engine = FailingEngine(InvalidEngineRequest("no such files"))
    (version,) = candidates(store)
    with served(engine) as connect, pytest.raises(VersionRefused, match="refuses policy-v1: no such files"):
        EnginePublisher(store, connect, timeout_s=30.0).publish(version, lambda: None)
    assert engine.asked == 1
    assert store.versions.serving().version == 0


@pytest.mark.parametrize("error", [EngineError("a bug"), UnreadableVersion("a bug")])
def test_a_fault_of_the_engine_is_no_refusal(store: Store, error: EngineError) -> None:
    engine = FailingEngine(error)
    (version,) = candidates(store)
    with served(engine) as connect, pytest.raises(PublishError, match="failed to load policy-v1: a bug") as caught:
        EnginePublisher(store, connect, timeout_s=30.0).publish(version, lambda: None)
    assert not isinstance(caught.value, VersionRefused)


def test_a_version_that_was_given_up_while_it_was_loaded_does_not_serve(store: Store) -> None:
    class RollingBack(ScriptedEngine):
        async def load_version(self, version: PolicyVersion) -> None:
            await super().load_version(version)
            store.versions.roll_back(0)

    (version,) = candidates(store)
    with (
        served(RollingBack([{"text": "hello"}])) as connect,
        pytest.raises(VersionOvertaken, match="policy-v1 was given up while the engine loaded it"),
    ):
        EnginePublisher(store, connect, timeout_s=30.0).publish(version, lambda: None)
    assert store.versions.serving().version == 0
    assert candidates(store) == []
    (span,) = store.status.spans("publish")
    assert span.ended_at is not None


FULL = [EngineOverloaded("4 policy versions are loaded, and all are in use")] * 1000


def test_with_one_policy_a_place_is_waited_for(store: Store) -> None:
    engine = FailingEngine(*FULL[:2])
    (version,) = candidates(store)
    with served(engine) as connect:
        EnginePublisher(store, connect, timeout_s=30.0).publish(version, lambda: None)
    assert engine.asked == 3
    assert store.versions.serving().version == 1


def test_a_sound_version_of_an_owners_serves_at_once_though_the_engine_has_no_place_for_it(store: Store) -> None:
    engine = FailingEngine(*FULL)
    (version,) = candidates(store)
    checked: list[PolicyVersion] = []
    with served(engine) as connect:
        EnginePublisher(store, connect, timeout_s=30.0, check=checked.append).publish(version, lambda: None)
    assert (engine.asked, checked) == (1, [version])
    assert store.versions.serving().version == 1


@pytest.mark.parametrize(
    ("error", "raised"), [(InvalidEngineRequest("torn"), VersionRefused), (UnreadableVersion("torn"), PublishError)]
)
def test_an_owners_version_whose_files_are_not_sound_does_not_serve_for_lack_of_a_place(
    store: Store, error: EngineError, raised: type[PublishError]
) -> None:
    def check(_version: PolicyVersion) -> None:
        raise error

    (version,) = candidates(store)
    with served(FailingEngine(*FULL)) as connect, pytest.raises(raised, match="policy-v1: torn") as caught:
        EnginePublisher(store, connect, timeout_s=30.0, check=check).publish(version, lambda: None)
    assert type(caught.value) is raised
    assert store.versions.serving().version == 0


def test_with_owners_the_files_of_a_version_are_read_and_with_one_policy_they_need_not_be(tmp_path: Path) -> None:
    assert files_check(Config(run_dir=tmp_path)) is None
    check = files_check(Config(run_dir=tmp_path, policies=PoliciesConfig(per="user")))
    assert check is not None
    checkpoint = save_checkpoint(tiny_trainer(shaken=True), tmp_path, "run")
    path = weights_of(checkpoint).directory
    version = PolicyVersion(version=1, state=VersionState.CANDIDATE, path=str(path), step=1, created_at=1.0)
    check(version)
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InvalidEngineRequest, match="is not the file that was written"):
        check(version)
