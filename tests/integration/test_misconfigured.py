"""What cannot work is said in one sentence, once, and nothing is left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from openclaw_rl.supervision.state import Phase, process_alive, read_state

COMMAND = [sys.executable, "-m", "openclaw_rl.cli", "up"]


def test_up_without_the_model_says_so_and_ends(tmp_path: Path) -> None:
    """The engine and the trainer find out, whichever is first."""
    flags = {
        "run-dir": str(tmp_path / "run"),
        "model.path": str(tmp_path / "nowhere"),
        "serving.port": "0",
        "judge.kind": "scripted",
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    sentences = [line for line in ended.stdout.splitlines() if "cannot run with this configuration" in line]
    assert len(sentences) == 1
    loop, _, reason = sentences[0].partition(" cannot run with this configuration: ")
    assert loop in {"engine", "training"}
    assert reason == f"model.path '{tmp_path / 'nowhere'}' is no directory (nor 'smollm2')"
    assert "restarting" not in ended.stdout
    assert "Traceback" not in "".join(log.read_text() for log in (tmp_path / "run" / "logs").iterdir())
    state = read_state(tmp_path / "run")
    assert state is not None
    assert state.phase is Phase.STOPPED
    assert not any(child.pid and process_alive(child.pid, child.created_at) for child in state.children.values())
