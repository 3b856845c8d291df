"""Every committed step is in every file exactly once, whatever was killed or torn; and every metric has a name."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.store import Store
from openclaw_rl.training.event_file import records, step_of
from openclaw_rl.training.gate import Readings
from openclaw_rl.training.gatekeeper import KnownAnswer
from openclaw_rl.training.metric_log import Events, JsonLines, MetricFile, MetricFiles, metric_files
from openclaw_rl.training.metric_names import BY_NAME, METRICS
from openclaw_rl.types import StepRecord
from tests.training.support import mixed_samples, tiny_trainer
from tests.training.test_cycle import die_at, fill, make_config, make_loop, work_off

BOTH = ("jsonl", "tensorboard")


def made(step: int, **metrics: float) -> StepRecord:
    return StepRecord(
        step=step,
        version=step,
        sample_ids=(f"t{step}",),
        metrics=metrics or {"loss": step / 4},
        checkpoint="",
        seconds=1.5,
        created_at=float(step),
    )


def steps_in(path: Path) -> list[int]:
    if path.suffix == ".jsonl":
        return [json.loads(line)["step"] for line in path.read_text().splitlines() if line]
    with path.open("rb") as file:
        return [step for _, payload in records(file) if (step := step_of(payload))]


# --- names -------------------------------------------------------------------------------------------------


def test_no_two_metrics_have_one_name() -> None:
    assert len(BY_NAME) == len(METRICS)


def test_every_metric_of_a_step_is_named_and_every_name_is_a_metric() -> None:
    trainer = tiny_trainer({"w_retry": 1.0, "tis_cap": 2.0, "entropy_coef": 0.01}, gate={})
    known = [KnownAnswer(prompt_ids=(1, 2), response_ids=(3,))]
    told = trainer.step(mixed_samples(trainer), hints=["hm"], known=known)
    untold = trainer.step(mixed_samples(trainer), known=known)
    by_the_user = Readings(loss=0.0, weights_finite=True, evaluation=1.0).metrics()  # `training.evaluation` adds it
    assert {*told.metrics, *untold.metrics, *by_the_user} == set(BY_NAME)


# --- one file ----------------------------------------------------------------------------------------------


def test_a_line_has_everything_of_a_step(tmp_path: Path) -> None:
    file = MetricFile(tmp_path / "m.jsonl", JsonLines())
    assert file.follow([made(1), made(2, kl=float("nan"), loss=0.5)], {2: "language"}) == 2
    assert [json.loads(line) for line in file.path.read_text().splitlines()] == [
        {"step": 1, "version": 1, "created_at": 1.0, "seconds": 1.5, "refused": None, "metrics": {"loss": 0.25}},
        {"step": 2, "version": 2, "created_at": 2.0, "seconds": 1.5, "refused": "language", "metrics": {"loss": 0.5}},
    ]


def test_an_event_has_every_metric(tmp_path: Path) -> None:
    file = MetricFile(tmp_path / "tensorboard" / "events", Events())
    file.follow([made(1, loss=0.25, kl=2.0)], {1: "kl_to_base"})
    with file.path.open("rb") as opened:
        (_, first), (_, event) = records(opened)
    assert first.endswith(b"brain.Event:2")
    for tag, value in {"loss": 0.25, "kl": 2.0, "seconds": 1.5, "refused": 1.0}.items():
        assert bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value) in event


@pytest.mark.parametrize("form", [JsonLines(), Events()], ids=["jsonl", "events"])
def test_wherever_it_is_torn_the_next_one_completes_it(tmp_path: Path, form: JsonLines | Events) -> None:
    path = tmp_path / "file.jsonl" if isinstance(form, JsonLines) else tmp_path / "events"
    steps = [made(1), made(2), made(3)]
    MetricFile(path, form).follow(steps, {})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        MetricFile(path, form).follow(steps, {})
        assert path.read_bytes() == whole
    again = MetricFile(path, form)
    assert again.follow(steps, {}) == 0
    assert again.follow([*steps, made(4)], {}) == 1
    assert steps_in(path) == [1, 2, 3, 4]


def test_what_a_failed_write_left_is_written_over(tmp_path: Path) -> None:
    file = MetricFile(tmp_path / "m.jsonl", JsonLines())
    file.follow([made(1)], {})
    with file.path.open("ab") as other:
        other.write(b'{"step": 2, "vers')  # as a full disk cuts it off, in a process that goes on
    file.follow([made(1), made(2)], {})
    assert steps_in(file.path) == [1, 2]


@pytest.mark.parametrize("form", [JsonLines(), Events()], ids=["jsonl", "events"])
@pytest.mark.parametrize("how", ["removed", "emptied", "cut", "front cut", "a blank line"])
def test_a_file_that_somebody_shortens_meanwhile_is_completed(
    tmp_path: Path, form: JsonLines | Events, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was filled up to where it once ended would be nobody's at the next start, which it would refuse."""
    file = MetricFile(tmp_path / ("m.jsonl" if isinstance(form, JsonLines) else "events"), form)
    file.follow([made(1), made(2)], {})
    size = file.path.stat().st_size
    if how == "removed":
        file.path.unlink()
    elif how == "a blank line":
        file.path.write_bytes(b"\n" if isinstance(form, JsonLines) else b"")
    elif how == "front cut":
        file.path.write_bytes(file.path.read_bytes()[3:])
    else:
        os.truncate(file.path, 0 if how == "emptied" else size - 3)
    if how == "front cut" and isinstance(form, JsonLines):  # it is nobody's: what is in it is not lost to us
        left = file.path.read_bytes()
        assert file.follow([made(1), made(2), made(3)], {}) == 0
        assert file.path.read_bytes() == left
        assert "is no step of a trainer: move the file away" in caplog.text
        file.path.unlink()
    assert file.follow([made(1), made(2), made(3)], {}) == (2 if how == "cut" else 3)
    assert steps_in(file.path) == [1, 2, 3]
    assert MetricFile(file.path, form).follow([made(1), made(2), made(3)], {}) == 0


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"epoch": 3}\n')
    with pytest.raises(ConfigError, match=r"line 1 of .*m\.jsonl is no step of a trainer"):
        MetricFile(path, JsonLines())
    assert path.read_text() == '{"epoch": 3}\n'


# --- in the loop -------------------------------------------------------------------------------------------


def paths_of(config: Config) -> list[Path]:
    followers = metric_files(config)
    return [follower.path for follower in followers if isinstance(follower, MetricFile)]


def test_a_loop_writes_each_step_and_what_is_missing_at_its_start(tmp_path: Path) -> None:
    config = make_config(tmp_path, log=BOTH)
    store = Store.open(config.store_path)
    fill(store, 4)
    work_off(make_loop(make_config(tmp_path, log=()), store))
    files = paths_of(config)
    assert not any(path.exists() for path in files)
    fill(store, 2, first=4)
    work_off(make_loop(config, store))
    assert [steps_in(path) for path in files] == [[1, 2, 3], [1, 2, 3]]
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["metrics"] for line in lines] == [dict(step.metrics) for step in store.samples.steps()]
    store.close()


def test_a_refused_step_is_there_with_its_reason(tmp_path: Path) -> None:
    config = make_config(tmp_path, gate={"max_kl_to_base": 1e-9})
    store = Store.open(config.store_path)
    fill(store, 2)
    work_off(make_loop(config, store))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["refused"] == "kl_to_base"
    store.close()


@pytest.mark.parametrize("at", ["committing step 1", "the engine to load policy-v1", "training step 2"])
def test_after_a_kill_each_step_is_there_once(tmp_path: Path, at: str) -> None:
    config = make_config(tmp_path, log=BOTH)
    store = Store.open(config.store_path)
    fill(store, 4)
    store.close()
    assert die_at(config, at) == signal.SIGKILL
    store = Store.open(config.store_path)
    work_off(make_loop(config, store))
    assert [steps_in(path) for path in paths_of(config)] == [[1, 2], [1, 2]]
    store.close()


def test_a_step_that_is_in_the_file_is_not_written_again(tmp_path: Path) -> None:
    file = MetricFile(tmp_path / "m.jsonl", JsonLines())
    file.follow([made(1)], {})
    before = file.path.read_bytes()
    assert file.follow([dataclasses.replace(made(1), seconds=9.0)], {}) == 0
    assert file.path.read_bytes() == before


def test_all_are_closed_whatever_becomes_of_one() -> None:
    closed: list[int] = []

    class File:
        def __init__(self, number: int) -> None:
            self.number = number

        def follow(self, steps: Sequence[StepRecord], refused: Mapping[int, str | None]) -> int:
            return 0

        def close(self) -> None:
            closed.append(self.number)
            if self.number == 2:
                raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"), MetricFiles([File(1), File(2), File(3)]):
        raise KeyError
    assert sorted(closed) == [1, 2, 3]
