"""How a loop's process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openclaw_rl.supervision.child import code_of


@pytest.mark.parametrize(("said", "code"), [(None, 0), (2, 2), ("no such loop", 1)])
def test_the_code_that_is_raised_is_the_code(said: object, code: int) -> None:
    def end() -> int:
        raise SystemExit(said)

    assert code_of(end) == code


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()])
def test_what_else_is_raised_is_shown(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise error

    assert code_of(fail) == 1
    assert type(error).__name__ in capsys.readouterr().err


def test_a_thread_of_the_users_own_does_not_keep_a_dead_loop() -> None:
    script = """
import threading, time
from openclaw_rl.supervision.child import code_of
from openclaw_rl.supervision.process import leave
threading.Thread(target=time.sleep, args=(60,)).start()
leave(code_of(lambda: 1 // 0))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr
