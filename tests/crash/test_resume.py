"""A trainer that is killed makes what one makes that is not; and the comparison finds what differs."""

from __future__ import annotations

import argparse
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.resume import add_arguments, run, table
from benchmarks.resume_compare import differences, unequal
from benchmarks.resume_trainer import Phase, look

from openclaw_rl.policy_files import write_manifest
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.publish import PUBLISH
from openclaw_rl.types import LoopName
from tests.training.test_cycle import fill, make_config, make_loop, work_off


@pytest.mark.real_model
def test_a_trainer_killed_twice_makes_what_one_makes_that_lives(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    shown = run(parser.parse_args(["--kills", "2", "--seed", "3", "--keep", str(tmp_path / "runs")]))
    assert shown["amiss"] == [], table(shown)
    assert (shown["kills"], shown["steps"], shown["equal"]) == (2, 4, True)
    assert table(shown).splitlines()[-1].startswith("kills=2 equal=true steps=4 ")
    one = tmp_path / "runs" / "in-peace" / "checkpoints" / "step-000004"
    assert torch.load(one / "trainer_state.pt", weights_only=True)["gate"]["told_base_asked"] > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with two steps."""
    run_dir = tmp_path_factory.mktemp("trained")
    config = make_config(run_dir)
    store = Store.open(config.store_path)
    fill(store, 4)
    work_off(make_loop(config, store))
    store.close()
    return run_dir


@pytest.fixture
def pair(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of it."""
    return tuple(Path(shutil.copytree(trained, tmp_path / name)) for name in ("one", "other"))  # type: ignore[return-value]


def test_copies_are_equal(pair: tuple[Path, Path]) -> None:
    assert differences(*pair) == []


def test_a_changed_bit_of_the_optimiser_is_found(pair: tuple[Path, Path]) -> None:
    checkpoint = pair[1] / "checkpoints" / "step-000001"
    state = torch.load(checkpoint / "trainer_state.pt", weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"].view(-1)[0] += 1e-9
    torch.save(state, checkpoint / "trainer_state.pt")
    write_manifest(checkpoint, {})
    assert differences(*pair) == ["step-000001/trainer_state.pt: /optimizer/state/0/exp_avg"]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ('UPDATE steps SET sample_ids = \'["t1", "t0"]\' WHERE step = 1', "steps: "),
        ("UPDATE steps SET metrics = '{}' WHERE step = 2", "steps: "),
        ("UPDATE samples SET state = 'ready' WHERE turn_id = 't3'", "samples: "),
        ("DELETE FROM versions WHERE version = 2", "versions: 3 rows and 2"),
    ],
)
def test_a_difference_in_the_record_is_found(pair: tuple[Path, Path], statement: str, found: str) -> None:
    with sqlite3.connect(pair[1] / "store.sqlite") as connection:
        connection.execute(statement)
    connection.close()
    (line,) = differences(*pair)
    assert line.startswith(found)


def test_a_missing_checkpoint_is_found(pair: tuple[Path, Path]) -> None:
    shutil.rmtree(pair[1] / "checkpoints" / "step-000002")
    assert differences(*pair) == ["checkpoints: step-000001, step-000002 and step-000001"]


def test_unequal_by_hand() -> None:
    ones = torch.ones(2)
    assert unequal({"a": [ones, 1.0], "b": "x"}, {"a": [ones.clone(), 1.0], "b": "x"}) == []
    assert unequal({"a": [ones, 1.0]}, {"a": [ones.double(), 1.5]}) == ["/a/0", "/a/1"]
    assert unequal({"a": 1}, {"b": 1}) == [": other keys"]
    assert unequal((1, 2), (1,)) == [": 2 and 1 entries"]


SAID: list[tuple[str, Phase]] = [
    ("loading the model", Phase.LOADING),
    ("training step 1: computing gradients", Phase.PASSES),
    ("training step 1: probing the new weights on the batch", Phase.GATE),
    ("training step 1: reading what the new weights answer", Phase.GATE),
    ("training step 1: reading the hints", Phase.PASSES),
    ("writing the checkpoint of step 1", Phase.WRITING),
    ("waiting", Phase.BETWEEN),
]


@pytest.mark.parametrize(("said", "phase"), SAID)
def test_phases_are_told_by_what_the_trainer_says(tmp_path: Path, said: str, phase: Phase) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    LoopReporter(store, LoopName.TRAINING).working(said)
    assert look(tmp_path).phase is phase
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    if phase not in {Phase.LOADING}:
        assert look(tmp_path).phase is Phase.WRITTEN
        with store.status.span(PUBLISH, version=1):
            assert look(tmp_path).phase is Phase.PUBLISHING
    store.close()


def test_a_kill_needs_a_step(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments: Any = parser.parse_args(["--kills", "4", "--steps", "4"])
    with pytest.raises(SystemExit, match="wants a step of its own"):
        run(arguments)
