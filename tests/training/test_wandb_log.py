"""Metrics to W&B, by a fake of the package that keeps what it is told; the real one is not needed."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.metric_names import METRICS
from openclaw_rl.training.wandb_log import WandbLog, load_wandb
from openclaw_rl.types import StepRecord


class FakeWandb:
    """Stands in for the module `wandb`: `init` gives a run whose `log` writes to a list, or fails when told to."""

    class Error(Exception):
        pass

    class MailboxClosedError(Exception):
        """Of the package's own, and no `Error` of its."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.fails: Exception | None = None
        self.finished = 0
        self.torn_down = 0

    def init(self, **options: Any) -> FakeWandb:
        self.begun.append(options)
        return self

    def log(self, values: dict[str, float], *, step: int, commit: bool) -> None:
        assert commit, "what is not committed is lost by a kill"
        if self.fails is not None:
            raise self.fails
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1

    def teardown(self) -> None:
        self.torn_down += 1


def config(run_dir: Path) -> Config:
    return Config.model_validate({"run_dir": run_dir, "training": {"log": ["wandb"]}})


def step(number: int, **metrics: float) -> StepRecord:
    return StepRecord(
        step=number,
        version=number,
        sample_ids=("t",),
        metrics=metrics,
        checkpoint="c",
        seconds=1.5,
        teacher={},
        created_at=1000.0 + number,
    )


def test_each_step_is_logged_once_with_its_number_also_after_a_restart(tmp_path: Path) -> None:
    fake = FakeWandb()
    first = WandbLog(config(tmp_path), fake)
    assert first.follow([step(1, loss=0.5)], {}) == 1
    assert first.follow([step(1, loss=0.5), step(2, loss=0.25, kl=float("nan"))], {2: "kl"}) == 1
    again = WandbLog(config(tmp_path), fake)
    assert again.follow([step(1, loss=0.5), step(2, loss=0.25), step(3, loss=0.1)], {2: "kl"}) == 1
    assert fake.logged == [
        (1, {"loss": 0.5, "seconds": 1.5, "refused": 0.0}),
        (2, {"loss": 0.25, "seconds": 1.5, "refused": 1.0}),
        (3, {"loss": 0.1, "seconds": 1.5, "refused": 0.0}),
    ]
    one, two = fake.begun
    assert one["id"] == two["id"]
    assert (one["mode"], one["resume"], one["project"]) == ("offline", "allow", "openclaw-rl")


def test_a_run_that_was_begun_is_ended_and_no_other(tmp_path: Path) -> None:
    fake = FakeWandb()
    log = WandbLog(config(tmp_path), fake)
    log.close()
    assert fake.finished == 0
    log.follow([step(1)], {})
    log.close()
    log.close()
    assert fake.finished == 1


def test_a_stop_neither_fails_by_it_nor_waits_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Raising(FakeWandb):
        def finish(self) -> None:
            raise self.Error("no")

    log = WandbLog(config(tmp_path), Raising())
    log.follow([step(1)], {})
    log.close()
    assert "did not take the end of the run (Error)" in caplog.text
    released = threading.Event()

    class Hanging(FakeWandb):
        def finish(self) -> None:
            released.wait(60)

    slow = WandbLog(
        Config.model_validate(
            {
                "run_dir": tmp_path / "slow",
                "training": {"log": ["wandb"]},
                "supervisor": {"shutdown_timeout_s": 0.2},
            }
        ),
        Hanging(),
    )
    slow.follow([step(1)], {})
    began = time.monotonic()
    slow.close()
    assert time.monotonic() - began < 30
    assert "did not take what it still holds within 0.1 s" in caplog.text
    released.set()


def test_nothing_new_begins_no_run_and_units_are_those_of_the_one_module(tmp_path: Path) -> None:
    fake = FakeWandb()
    log = WandbLog(config(tmp_path), fake)
    assert log.follow([], {}) == 0
    assert fake.begun == []
    log.follow([step(1)], {})
    told = fake.begun[0]["config"]
    assert told["units"] == {metric.name: metric.unit for metric in METRICS}
    assert str(tmp_path) not in json.dumps(told)


@pytest.mark.parametrize(
    "error", [FakeWandb.Error("no"), FakeWandb.MailboxClosedError("closed"), BrokenPipeError(32, "broken pipe")]
)
def test_what_is_refused_is_tried_again_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    fake = FakeWandb()
    log = WandbLog(config(tmp_path), fake)
    fake.fails = error
    assert log.follow([step(1), step(2)], {}) == 0
    assert f"W&B did not take step 1 ({type(error).__name__})" in caplog.text
    fake.fails = None
    assert log.follow([step(1), step(2)], {}) == 2
    assert [number for number, _ in fake.logged] == [1, 2]
    assert fake.torn_down == 1


def test_a_service_that_ended_is_begun_anew_and_the_same_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class OneService(FakeWandb):
        """As the package does: `init` gives the run that it has, until it is told to let go of its service."""

        dead = False

        def log(self, values: dict[str, float], *, step: int, commit: bool) -> None:
            if self.dead:
                raise self.MailboxClosedError
            super().log(values, step=step, commit=commit)

        def teardown(self) -> None:
            self.dead = False
            raise SystemExit(9)  # what the package does where its service was killed

    fake = OneService()
    log = WandbLog(config(tmp_path), fake)
    assert log.follow([step(1)], {}) == 1
    fake.dead = True
    assert log.follow([step(1), step(2)], {}) == 0
    assert "did not take the end of its service (SystemExit)" in caplog.text
    assert log.follow([step(1), step(2)], {}) == 1
    assert [number for number, _ in fake.logged] == [1, 2]
    assert len({one["id"] for one in fake.begun}) == 1
    assert len(fake.begun) == 2


def test_a_kill_while_a_step_is_logged_never_logs_it_twice(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Dying(FakeWandb):
        def log(self, values: dict[str, float], *, step: int, commit: bool) -> None:
            super().log(values, step=step, commit=commit)
            raise Killed

    dying = Dying()
    with pytest.raises(Killed):
        WandbLog(config(tmp_path), dying).follow([step(1)], {})
    fake = FakeWandb()
    assert WandbLog(config(tmp_path), fake).follow([step(1), step(2)], {}) == 1
    assert [number for number, _ in [*dying.logged, *fake.logged]] == [1, 2]


def test_a_file_of_somebody_elses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "openclaw-rl.json").write_text("[]")
    with pytest.raises(ConfigError, match="move the file away"):
        WandbLog(config(tmp_path), FakeWandb())


def test_without_the_package_the_error_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"the extra `wandb`"):
        load_wandb("no_such_package_of_ours")


def test_settings_of_wandb_without_wandb_are_an_error() -> None:
    with pytest.raises(ValueError, match="does nothing"):
        Config.model_validate({"training": {"wandb_mode": "online"}})
