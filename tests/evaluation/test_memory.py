"""The peak of the memory of all processes."""

import subprocess
import sys
import time

from openclaw_rl.evaluation.memory import PeakMemory, process_memory_bytes, tree_memory_bytes

MIB = 2**20
HOLD = "import sys; block = b'x' * (64 * 2**20); print('held', flush=True); sys.stdin.read()"


def test_the_peak_holds_a_child_that_has_ended() -> None:
    with PeakMemory(interval_s=0.02) as memory:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        of_child = process_memory_bytes(child.pid)
        assert of_child > 60 * MIB
        deadline = time.monotonic() + 10.0
        # Our own share may shrink meanwhile: what counts is that some look at the tree saw as much as we do.
        while memory.gib * 1024 * MIB < (seen := tree_memory_bytes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate("")
    assert memory.gib * 1024 * MIB >= seen > of_child
    assert process_memory_bytes(child.pid) == 0
