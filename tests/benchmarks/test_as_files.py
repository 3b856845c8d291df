"""Each benchmark runs as a file, from wherever one is, and is the one that its file is named for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = sorted(path.name for path in BENCHMARKS.glob("*.py") if "\ndef add_arguments(" in path.read_text("utf-8"))


def test_all_are_here() -> None:
    assert {"engine.py", "gateway.py", "training.py", "update.py"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_runs_as_a_file(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python -m benchmarks {name.removesuffix('.py')} ")
