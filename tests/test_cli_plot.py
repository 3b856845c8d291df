"""`openclaw-rl plot`, on a store that a trainer filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.cli import main
from openclaw_rl.store import Store
from tests.training.test_cycle import fill, make_config, make_loop, work_off


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps; the first was refused by the gate."""
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)
    store = Store.open(tmp_path / "store.sqlite")
    for number, gate in ((0, {"max_kl_to_base": 1e-9}), (2, {})):
        fill(store, 2, first=number)
        work_off(make_loop(make_config(tmp_path, gate=gate), store))
    store.close()
    return tmp_path


def test_it_draws_what_there_is(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    assert main(["plot", "--run-dir", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"2 steps (1 refused) are drawn in {run_dir / 'learning.png'}\n"
    assert (run_dir / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "--run-dir", str(run_dir), "--out", str(run_dir / "x.png")]) == 0
    assert (run_dir / "x.png").read_bytes() == (run_dir / "learning.png").read_bytes()


def test_what_cannot_be_drawn_is_said(capsys: pytest.CaptureFixture[str], run_dir: Path, tmp_path: Path) -> None:
    assert main(["plot", "--run-dir", str(run_dir), "--out", str(run_dir / "nowhere" / "x.png")]) == 2
    assert "nowhere/x.png: No such file or directory" in capsys.readouterr().err
    assert main(["plot", "--run-dir", str(run_dir / "other")]) == 2
    assert "no deployment has run in" in capsys.readouterr().err
    (run_dir / "other").mkdir()
    Store.open(run_dir / "other" / "store.sqlite").close()
    assert main(["plot", "--run-dir", str(run_dir / "other")]) == 2
    assert "no step was taken in" in capsys.readouterr().err
