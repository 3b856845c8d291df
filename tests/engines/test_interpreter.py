"""The Python of vLLM and SGLang, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.interpreter import ENVIRONMENTS, check_python, python_for

KINDS = sorted(ENVIRONMENTS)


def config_of(kind: str, **engine: Any) -> Config:
    return Config.model_validate({"engine": {"kind": kind, **engine}})


def missing(kind: str, sources: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        python_for(kind, config_of(kind), sources=sources)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_each_folder_that_was_looked_in_is_named_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, sources = tmp_path / "here", tmp_path / "sources"
    here.mkdir()
    monkeypatch.chdir(here)
    assert f" in {here} or {sources}; or set engine.{kind}.python" in missing(kind, sources)
    assert f" in {here}; or set engine.{kind}.python" in missing(kind, here)
    with pytest.raises(ConfigError, match="is no program"):
        python_for(kind, config_of(kind, **{kind: {"python": str(here)}}))
    python = here / ENVIRONMENTS[kind].python
    python.parent.mkdir(parents=True)
    python.touch(mode=0o700)
    assert python_for(kind, config_of(kind), sources=sources) == python


@pytest.mark.parametrize("kind", KINDS)
def test_up_names_what_is_missing_and_creates_nothing(kind: str, tmp_path: Path) -> None:
    run_dir, nowhere = tmp_path / "run", tmp_path / "python"
    command = [sys.executable, "-m", "openclaw_rl.cli", "up", "--run-dir", str(run_dir), "--engine.kind", kind]
    ended = subprocess.run(
        [*command, f"--engine.{kind}.python", str(nowhere)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr == f"openclaw-rl: engine.{kind}.python {nowhere} is no program\n"
    assert not run_dir.exists()


def test_an_engine_that_runs_already_or_is_ours_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        monkeypatch.setitem(ENVIRONMENTS, kind, replace(ENVIRONMENTS[kind], python=Path("nowhere/python")))
        check_python(config_of(kind, urls=["http://127.0.0.1:1"]))
        with pytest.raises(ConfigError, match="needs nowhere/python"):
            check_python(config_of(kind))
    check_python(config_of("embedded"))
