"""What a trainer does whose last checkpoints are not what was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.recovery import DAMAGED, NoIntactCheckpoint
from openclaw_rl.types import SampleState, VersionState
from tests.training.test_cycle import fill, make_config, make_loop, work_off

STATE = "trainer_state.pt"
ADAPTER = "adapter/adapter_model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def cut(path: Path) -> None:
    """The first half of a file, as a full disk or a power cut leaves it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: list[Callable[[Path], None]] = [
    lambda path: cut(path / STATE),
    lambda path: cut(path / ADAPTER),
    lambda path: cut(path / "manifest.json"),
    shutil.rmtree,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_from_the_newest_whole_checkpoint(
    tmp_path: Path, store: Store, damage: Callable[[Path], None]
) -> None:
    fill(store, 6)
    work_off(make_loop(make_config(tmp_path), store))
    steps = store.samples.steps()
    assert [step.step for step in steps] == [1, 2, 3]
    for step in steps[1:]:
        damage(Path(step.checkpoint))

    again = make_loop(make_config(tmp_path), store)
    again.resume()
    whole = load_checkpoint(Path(steps[0].checkpoint))
    torch.testing.assert_close(again._trainer.state().weights, whole.weights, rtol=0, atol=0)
    assert store.versions.serving().version == 1
    assert store.status.counts().counters[DAMAGED] == 1  # of the two, one was in service

    fill(store, 2, first=6)
    assert again.cycle()
    assert store.versions.serving().version == 4
    assert store.status.counts().samples_by_state == {SampleState.TRAINED: 8}
    work_off(make_loop(make_config(tmp_path), store))  # and once more, past the damaged ones
    assert store.versions.serving().version == 4


def test_a_damaged_version_that_was_not_published_never_is(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    loop = make_loop(make_config(tmp_path), store)
    loop.resume()
    assert loop.cycle()
    loop._publisher.fail = 99  # type: ignore[attr-defined]
    assert loop.cycle()
    cut(Path(store.samples.steps()[-1].checkpoint) / STATE)
    make_loop(make_config(tmp_path), store).resume()
    states = {version.version: version.state for version in store.versions.all()}
    assert states == {0: VersionState.RETIRED, 1: VersionState.SERVING, 2: VersionState.REJECTED}


def test_without_any_whole_checkpoint_a_person_has_to_decide(tmp_path: Path, store: Store) -> None:
    fill(store, 4)
    config = make_config(tmp_path)
    work_off(make_loop(config, store))
    shutil.rmtree(config.checkpoints_dir)
    with pytest.raises(NoIntactCheckpoint, match="none of the 2 checkpoints"):
        make_loop(config, store).resume()
    assert store.versions.serving().version == 2


def test_a_lost_store_is_told_by_a_lone_checkpoint(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    config = make_config(tmp_path)
    work_off(make_loop(config, store))
    other = Store.open(tmp_path / "other.sqlite")
    try:
        with pytest.raises(ValueError, match="put the store back"):
            make_loop(config, other).resume()
    finally:
        other.close()
    assert (config.checkpoints_dir / "step-000001").is_dir()
