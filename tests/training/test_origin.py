"""A new run directory that begins from a checkpoint of another run, and checkpoints that are kept for good."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import Config, LoraConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.types import VersionState
from tests.training.test_cycle import RefusingPublisher, die_at, fill, make_config, make_loop, work_off


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the second step of a run."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("other")
    store = Store.open(directory / "store.sqlite")
    fill(store, 4)
    work_off(make_loop(make_config(directory), store))
    store.close()
    return directory / "checkpoints" / "step-000002"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path / "new"


def new_run(run_dir: Path, source: Path, **training: Any) -> tuple[Config, Store]:
    config = make_config(run_dir, resume_from_checkpoint=str(source), **training)
    return config, Store.open(config.store_path)


def weights(path: Path) -> bytes:
    return (path / "adapter" / "adapter_model.safetensors").read_bytes()


def test_its_weights_serve_as_version_1_before_anything_is_trained(run_dir: Path, source: Path) -> None:
    config, store = new_run(run_dir, source)
    loop = make_loop(config, store)
    work_off(loop)
    assert [(v.name, v.state) for v in store.versions.all()] == [
        ("base", VersionState.RETIRED),
        ("policy-v1", VersionState.SERVING),
    ]
    (step,) = store.samples.steps()
    assert (step.sample_ids, step.teacher) == ((), {"begun_from": str(source)})
    assert weights(Path(step.checkpoint)) == weights(source)
    there, here = load_checkpoint(source), loop._trainer.state()
    assert here.averages == there.averages
    assert torch.equal(here.rng, there.rng)
    assert here.optimizer["state"].keys() == there.optimizer["state"].keys()
    for number, moments in there.optimizer["state"].items():
        assert all(torch.equal(moments[name], here.optimizer["state"][number][name]) for name in moments)
    store.close()


def test_the_next_step_is_the_one_that_the_other_run_would_have_made(run_dir: Path, source: Path) -> None:
    other_dir = run_dir.parent / "goes-on"
    shutil.copytree(source.parents[1], other_dir)
    other = Store.open(other_dir / "store.sqlite")
    with other._database.write() as connection:  # the copy's steps lie in the copy
        connection.exec_driver_sql(
            "UPDATE steps SET checkpoint = replace(checkpoint, ?, ?)", (str(source.parents[1]), str(other_dir))
        )
        connection.exec_driver_sql(
            "UPDATE versions SET path = replace(path, ?, ?)", (str(source.parents[1]), str(other_dir))
        )
    fill(other, 2, first=4)
    work_off(make_loop(make_config(other_dir), other))
    config, store = new_run(run_dir, source)
    fill(store, 2, first=4)
    work_off(make_loop(config, store))
    assert [step.sample_ids for step in store.samples.steps()] == [(), ("t4", "t5")]
    assert weights(config.checkpoints_dir / "step-000002") == weights(other_dir / "checkpoints" / "step-000003")
    store.close()
    other.close()


@pytest.mark.parametrize("gone", [False, True])
def test_started_again_it_goes_on(run_dir: Path, source: Path, gone: bool) -> None:
    lent = run_dir.parent / "lent" / source.name
    shutil.copytree(source, lent)
    config, store = new_run(run_dir, lent)
    work_off(make_loop(config, store))
    fill(store, 2, first=4)
    if gone:
        shutil.rmtree(lent)
    work_off(make_loop(config, store))
    assert [step.step for step in store.samples.steps()] == [1, 2]
    work_off(make_loop(make_config(run_dir), store))  # and with `auto`
    assert len(store.samples.steps()) == 2
    other = make_config(run_dir, resume_from_checkpoint=str(source))
    with pytest.raises(ConfigError, match=r"has 2 steps: choose another --run-dir, or .* policy rollback"):
        make_loop(other, store).resume()
    store.close()


def test_killed_between_checkpoint_and_commit_it_begins_again(run_dir: Path, source: Path) -> None:
    config, store = new_run(run_dir, source)
    store.close()
    before = config.store_path.read_bytes()
    store = Store.open(config.store_path)
    make_loop(config, store).resume()
    store.close()
    for file in run_dir.glob("store.sqlite*"):
        file.unlink()
    config.store_path.write_bytes(before)  # what a kill before the commit leaves: the checkpoint and no step
    store = Store.open(config.store_path)
    work_off(make_loop(config, store))
    assert [step.step for step in store.samples.steps()] == [1]
    assert store.versions.serving().name == "policy-v1"
    store.close()


def test_killed_before_it_serves_it_is_published_by_the_next(run_dir: Path, source: Path) -> None:
    config, store = new_run(run_dir, source)
    store.close()
    assert die_at(config, "the engine to load policy-v1") == signal.SIGKILL
    store = Store.open(config.store_path)
    assert store.versions.serving().version == 0
    work_off(make_loop(config, store))
    assert store.versions.serving().name == "policy-v1"
    store.close()


def test_what_does_not_fit_is_an_error_at_the_start(run_dir: Path, source: Path) -> None:
    damaged = run_dir.parent / "damaged"
    shutil.copytree(source, damaged)
    (damaged / "trainer_state.pt").write_bytes(b"x")
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (source.parent / "step-000099", {}, "there is no checkpoint in"),
        (source / "adapter", {}, "there is no checkpoint in"),
        (damaged, {}, "is no whole checkpoint"),
        (source, {"lora": LoraConfig(rank=4, alpha=16.0)}, r"training\.lora\.alpha = 8, not 16"),
        (source, {"lora": LoraConfig(rank=8, alpha=8.0)}, r"training\.lora differs"),
    ]
    for place, training, says in cases:
        config, store = new_run(run_dir, place, **training)
        with pytest.raises(ConfigError, match=says):
            make_loop(config, store).resume()
        assert store.samples.steps() == []
        assert not config.checkpoints_dir.exists()
        store.close()


def test_another_base_is_warned_of(run_dir: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    moved = run_dir.parent / "moved"
    shutil.copytree(source, moved)
    about = moved / "adapter" / "adapter_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "base_model_name_or_path": "elsewhere"}))
    write_manifest(moved / "adapter", {"step": 2, "version": 2})
    write_manifest(moved, {"step": 2, "version": 2})
    config, store = new_run(run_dir, moved)
    make_loop(config, store).resume()
    assert "was trained over elsewhere, and here the base is tiny" in caplog.text
    store.close()


def test_every_nth_checkpoint_is_kept_for_good_unless_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, batch=1, keep_checkpoints=1, save_interval=2)
    store = Store.open(config.store_path)
    loop = make_loop(config, store)
    loop._candidates.publisher = RefusingPublisher(store, 2, 3)
    loop.resume()
    for number in range(7):
        fill(store, 1, first=number)
        assert loop.cycle()
    assert len(store.samples.steps()) == 7
    there = sorted(path.name for path in config.checkpoints_dir.iterdir())
    assert there == ["step-000003", "step-000004", "step-000006", "step-000007"]  # 3: the last refused one
    store.close()
