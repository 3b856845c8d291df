"""From the demo's options to a configuration."""

from pathlib import Path

import pytest

from openclaw_rl.config_sources import ConfigError, from_flags
from openclaw_rl.evaluation.demo_options import DemoOptions, demo_config, find_recipe, fresh_run_dir
from openclaw_rl.types import Method


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nlr = 1e-4\nmethod = 'opd'\n[rollout]\nbatch_size = 4\n", encoding="utf-8")
    return path


def test_flags_win_over_the_demo_which_wins_over_the_recipe(tmp_path: Path, recipe: Path) -> None:
    options = DemoOptions(
        method=Method.BINARY_RL,
        seed=7,
        recipe=recipe,
        run_dir=tmp_path / "run",
        settings=tuple(from_flags([("--lr", "5e-4"), ("--port", "8123")])),
    )
    config = demo_config(options, {"OPENCLAW_RL_TRAINING__LORA__RANK": "4"})
    assert (config.training.lr, config.training.lora.rank, config.rollout.batch_size) == (5e-4, 4, 4)
    assert (config.training.method, config.training.seed) == (Method.BINARY_RL, 7)
    assert (config.run_dir, config.serving.port) == (tmp_path / "run", 8123)


def test_by_itself_it_takes_a_free_port(tmp_path: Path, recipe: Path) -> None:
    assert demo_config(DemoOptions(recipe=recipe, run_dir=tmp_path), {}).serving.port == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"preference": "loud"}, "terse, warm"),
        ({"interactions": 0}, "at least 1"),
        ({"interactions": 100_000}, "question of its own"),
        ({"held_out": 0}, "between 1 and"),
        ({"threads": 0}, "at least 1"),
        ({"max_tokens": 0}, "at least 1"),
        ({"temperature": 0.0}, "at least 0.01"),
        ({"temperature": 0.009}, "at least 0.01"),
    ],
)
def test_options_that_cannot_be_honoured_are_errors(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DemoOptions(**values)  # type: ignore[arg-type]


def test_a_recipe_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no recipe such-a-thing"):
        find_recipe("such-a-thing.toml")


def test_each_run_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    first, second = fresh_run_dir(tmp_path), fresh_run_dir(tmp_path)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
