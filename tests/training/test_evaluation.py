"""The user's own evaluation: what can be said of it before there is a version to evaluate is said at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.evaluation import load_evaluation

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


def test_without_one_there_is_none() -> None:
    assert load_evaluation(GateConfig()) is None
