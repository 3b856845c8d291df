"""Loading what the user names: both forms, and every way to name it wrongly."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_attribute, load_checked, one_process


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


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("raise RuntimeError('2')", "RuntimeError"),
        ("import sys; sys.exit(2)", "SystemExit"),
        ("raise KeyboardInterrupt(2)", "KeyboardInterrupt"),
    ],
)
def test_for_a_start_up_all_that_the_users_code_raises_is_one_sentence(
    tmp_path: Path, statement: str, kind: str
) -> None:
    """Also what would end the process without a word, as a script does that was not meant to be imported."""
    (tmp_path / "broken.py").write_text(f"\n{statement}\n")
    with pytest.raises(ConfigError, match=rf"^training\.x = .*: {kind} \(broken\.py:2\): 2$"):
        load_checked(f"{tmp_path}/broken.py:x", option="training.x")


def test_what_the_users_code_raises_is_not_dressed_up(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_of_theirs\n")
    for _ in range(2):  # and a failed load leaves nothing half-made behind
        with pytest.raises(ModuleNotFoundError, match="no_such_module_of_theirs"):
            load_attribute(f"{tmp_path}/broken.py:x", option="training.x")


FORKING = """
import os, sys
from openclaw_rl.extensions import one_process
try:
    with one_process():
        child = os.fork()
        if child == 0:
            {statement}
except BaseException as error:
    print("came out:", type(error).__name__)
    raise
print("goes on", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("pass", 0),
        ("sys.exit(7)", 7),
        ("sys.exit()", 0),
        ("sys.exit('no')", 1),
        ("1 / 0", 1),
        ("sys.exit(2**40 + 3)", 3),
        ("os.close(2); int(str())", 1),
    ],
)
def test_a_child_that_the_users_code_forks_ends_where_that_code_does(statement: str, code: int) -> None:
    """It would be a second one of the loop that called it."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKING.format(statement=statement)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"goes on {code}\n"
    assert ("ZeroDivisionError" in ran.stderr) == ("/" in statement)


def test_what_the_users_code_raises_comes_out_where_nothing_was_forked() -> None:
    with pytest.raises(KeyboardInterrupt), one_process():
        raise KeyboardInterrupt
    assert os.getpid()
