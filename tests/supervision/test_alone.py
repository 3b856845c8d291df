"""One process per loop and directory, however the one before it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from openclaw_rl.supervision.alone import alone
from openclaw_rl.types import LoopName

HOLDER = """
import sys, threading
from pathlib import Path
from openclaw_rl.supervision.alone import alone
from openclaw_rl.types import LoopName
with alone(Path(sys.argv[1]), LoopName.TRAINING, threading.Event()) as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


def test_a_process_waits_for_the_one_before_it_even_if_that_is_killed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        with alone(tmp_path, LoopName.ROLLOUT, threading.Event()) as ours:  # another loop has nothing to wait for
            assert ours

        killed_at: list[float] = []

        def kill() -> None:
            killed_at.append(time.monotonic())
            holder.kill()

        threading.Timer(0.3, kill).start()
        with alone(tmp_path, LoopName.TRAINING, threading.Event()) as ours:
            taken_at = time.monotonic()
            assert ours
        assert taken_at >= killed_at[0]


def test_who_is_told_to_stop_waits_no_longer(tmp_path: Path) -> None:
    stop = threading.Event()
    with alone(tmp_path, LoopName.ENGINE, threading.Event()) as first:
        assert first
        threading.Timer(0.2, stop.set).start()
        with alone(tmp_path, LoopName.ENGINE, stop) as second:
            assert not second
    with alone(tmp_path, LoopName.ENGINE, threading.Event()) as third:
        assert third


FORKER = """
import os, sys, threading, time
from pathlib import Path
from openclaw_rl.supervision.alone import alone
from openclaw_rl.types import LoopName
with alone(Path(sys.argv[1]), LoopName.TRAINING, threading.Event()):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print("forked", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_what_it_forked_keeps_nobody_waiting(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKER, str(tmp_path)], stdout=subprocess.DEVNULL, start_new_session=True
    ) as gone:
        gone.wait(20)
        begin = time.monotonic()
        with alone(tmp_path, LoopName.TRAINING, threading.Event()) as ours:
            assert ours
        assert time.monotonic() - begin < 10.0
        os.killpg(gone.pid, signal.SIGKILL)
