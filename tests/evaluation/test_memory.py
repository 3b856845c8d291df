"""The peak of the memory of all processes."""

import subprocess
import sys
import time

from openclaw_rl.evaluation.memory import PeakMemory, process_memory_bytes, tree_memory_bytes

MIB = 2**20
HOLD = "import sys; block = b'x' * (64 * 2**20); print('held', flush=True); sys.stdin.read()"


def test_the_peak_holds_a_child_that_has_ended() -> None:
    before = tree_memory_bytes()
    assert before > MIB
    with PeakMemory(interval_s=0.02) as memory:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        deadline = time.monotonic() + 10.0
        while memory.gib * 1024 < before / MIB + 60 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate("")
    assert memory.gib * 1024 >= before / MIB + 60
    assert process_memory_bytes(child.pid) == 0
