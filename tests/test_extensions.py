"""Loading what the user names: both forms, and every way to name it wrongly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_attribute, load_checked


def test_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("calls = []\n\ndef double(x):\n    return 2 * x\n")
    assert load_attribute("math:sqrt", option="training.x") is math.sqrt
    assert load_attribute(f"{tmp_path}/mine.py:double", option="training.x")(4) == 8
    monkeypatch.chdir(tmp_path)
    assert load_attribute("mine.py:double", option="training.x")(4) == 8


def test_a_file_runs_once_for_all_options_that_name_it(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text("import dataclasses\n\n@dataclasses.dataclass\nclass State:\n    n: int = 0\n\nstate = State()\n")
    first = load_attribute(f"{file}:state", option="a")
    assert load_attribute(f"{file}:state", option="b") is first


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("math", "expected 'module:attribute'"),
        ("math:", "expected 'module:attribute'"),
        (":sqrt", "expected 'module:attribute'"),
        ("math:no such", "expected 'module:attribute'"),
        ("math:sqrtt", "did you mean 'sqrt'"),
        ("no_such_module_of_ours:x", "no module 'no_such_module_of_ours'"),
        ("no_such_file.py:x", "no file no_such_file.py"),
    ],
)
def test_wrong_names_say_what_is_wrong(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.x") as caught:
        load_attribute(path, option="training.x")
    assert said in str(caught.value)


@pytest.mark.parametrize("statement", ["raise RuntimeError('2')", "import sys; sys.exit(2)"])
def test_for_a_start_up_all_that_the_users_code_raises_is_one_sentence(tmp_path: Path, statement: str) -> None:
    """Also what would end the process without a word, as a script does that was not meant to be imported."""
    (tmp_path / "broken.py").write_text(f"\n{statement}\n")
    kind = "RuntimeError" if "Runtime" in statement else "SystemExit"
    with pytest.raises(ConfigError, match=rf"^training\.x = .*: {kind} \(broken\.py:2\): 2$"):
        load_checked(f"{tmp_path}/broken.py:x", option="training.x")


def test_what_the_users_code_raises_is_not_dressed_up(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_of_theirs\n")
    for _ in range(2):  # and a failed load leaves nothing half-made behind
        with pytest.raises(ModuleNotFoundError, match="no_such_module_of_theirs"):
            load_attribute(f"{tmp_path}/broken.py:x", option="training.x")
