"""The user's own evaluation: what can be said of it before there is a version to evaluate is said at the start."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.evaluation import evaluated, load_evaluation
from openclaw_rl.training.trainer import StepOutcome

CODE = """
def score(version): return 1.0
def with_default(directory, tries=3): return 1.0
def none(): return 1.0
def two(version, base): return 1.0
async def later(version): return 1.0
def several(version): yield 1.0
class Score:
    def __call__(self, version): return 1.0
made = Score()
number = 1.0
"""


def loaded(tmp_path: Path, name: str) -> object:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    return load_evaluation(GateConfig(evaluation_path=f"{file}:{name}", min_evaluation=0.5))


@pytest.mark.parametrize("name", ["score", "with_default", "made"])
def test_what_fits(tmp_path: Path, name: str) -> None:
    assert callable(loaded(tmp_path, name))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scor", "did you mean 'score'"),
        ("none", "must take (version)"),
        ("two", "'base' is given by nobody"),
        ("later", "plain function that returns a number"),
        ("several", "plain function that returns a number"),
        ("Score", "is a class"),
        ("number", "is a float"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_start(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.gate\.evaluation_path") as caught:
        loaded(tmp_path, name)
    assert said in str(caught.value)


def test_a_file_that_raises_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no data')\n")
    config = GateConfig(evaluation_path=f"{tmp_path / 'broken.py'}:score", min_evaluation=0.5)
    with pytest.raises(ConfigError, match=r"RuntimeError \(broken\.py:2\): no data"):
        load_evaluation(config)


OUTCOME = StepOutcome(step=1, metrics={"loss": 0.5}, seconds=1.0)
CONFIG = GateConfig(evaluation_path="x:y", min_evaluation=0.5)


def busy() -> sqlite3.OperationalError:
    """As a database of the evaluation's own raises that another process holds."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


class Failing:
    """Raises so many times, then gives 0.75."""

    def __init__(self, times: int, error: BaseException) -> None:
        self.times, self.error, self.asked = times, error, 0

    def __call__(self, _version: Path) -> float:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return 0.75


@pytest.mark.parametrize(("times", "refused"), [(0, None), (1, None), (2, None), (3, "evaluation_raised_KeyError")])
def test_one_that_raises_is_asked_three_times_and_then_refuses(
    caplog: pytest.LogCaptureFixture, times: int, refused: str | None
) -> None:
    failing, pauses = Failing(times, KeyError("what a user wrote")), []
    outcome = evaluated(OUTCOME, failing, Path("v"), CONFIG, lambda: pauses.append(1))
    assert outcome.refused == refused
    assert outcome.metrics == ({"loss": 0.5} if refused else {"loss": 0.5, "evaluation": 0.75})
    assert (failing.asked, len(pauses)) == (min(times + 1, 3), min(times, 2))
    assert ("training.gate.evaluation_path raised KeyError (test_evaluation.py:" in caplog.text) == (times > 0)
    assert "what a user wrote" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "not yours", "data.json"), OSError(30, "read-only"), OperationalError("x", {}, busy())],
    ids=["permission", "read-only", "busy"],
)
def test_what_it_may_not_open_is_the_evaluations_own(error: Exception) -> None:
    """Waited for as the record is, it would hold everybody: the same batch would be trained again for ever."""
    failing = Failing(9, error)
    outcome = evaluated(OUTCOME, failing, Path("v"), CONFIG)
    assert (outcome.refused, failing.asked) == (f"evaluation_raised_{type(error).__name__}", 3)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(0)])
def test_whatever_it_raises_refuses_the_version_and_ends_nothing(error: BaseException) -> None:
    outcome = evaluated(OUTCOME, Failing(9, error), Path("v"), CONFIG)
    assert outcome.refused == f"evaluation_raised_{type(error).__name__}"


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "no space left"), OSError(5, "input/output error")])
def test_memory_and_disk_are_not_the_evaluations_fault(error: Exception) -> None:
    with pytest.raises(type(error)):
        evaluated(OUTCOME, Failing(1, error), Path("v"), CONFIG, lambda: None)


def test_without_one_there_is_none() -> None:
    assert load_evaluation(GateConfig()) is None
