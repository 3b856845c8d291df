"""What every supervised process needs: its heartbeat, and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from openclaw_rl.store import Store
from openclaw_rl.supervision.process import HEARTBEAT_INTERVAL_S, LoopReporter, begin_beside
from openclaw_rl.types import LoopName, LoopStatus


def test_a_heartbeat_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.sqlite"
    store = Store.open(path)
    reporter = LoopReporter(store, LoopName.ENGINE)
    reporter.waiting("a request")
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE loops RENAME TO elsewhere")
    with caplog.at_level(logging.WARNING):
        reporter.working("generating")
        reporter.waiting("a request")
    assert len(caplog.records) == 1
    with sqlite3.connect(path) as other:
        other.execute("ALTER TABLE elsewhere RENAME TO loops")
    reporter.working("generating")
    assert [status.activity for status in store.status.loops()] == ["generating"]
    store.close()


def test_of_two_threads_the_last_word_is_the_last_written() -> None:
    """A stop that is said while a slow disk takes the word before it must not be overwritten by that."""
    entered, go, written = threading.Event(), threading.Event(), []

    class SlowStatus:
        def report(self, status: LoopStatus) -> None:
            if status.activity == "training step 1":
                entered.set()
                assert go.wait(10)
            written.append(status.activity)

    reporter = LoopReporter(cast(Store, SimpleNamespace(status=SlowStatus())), LoopName.TRAINING)
    first, second = (
        threading.Thread(target=reporter.working, args=(words,)) for words in ("training step 1", "stopping")
    )
    first.start()
    assert entered.wait(10)
    second.start()
    second.join(0.3)
    go.set()
    for thread in (first, second):
        thread.join(10)
        assert not thread.is_alive()
    assert written == ["training step 1", "stopping"]


def test_one_word_of_several_threads_is_not_written_once_more_by_each_that_waited() -> None:
    """A record that is locked takes ten seconds for each: a pool of judges would outlast the time for a stop."""
    entered, go, written = threading.Event(), threading.Event(), []

    class LockedStatus:
        def report(self, status: LoopStatus) -> None:
            written.append(status.waiting_for)
            entered.set()
            assert go.wait(10)

    reporter = LoopReporter(cast(Store, SimpleNamespace(status=LockedStatus())), LoopName.JUDGING)
    threads = [threading.Thread(target=reporter.waiting, args=("the record",)) for _ in range(4)]
    threads[0].start()
    assert entered.wait(10)
    time.sleep(HEARTBEAT_INTERVAL_S + 0.1)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.3)
    go.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert written == ["the record"]


LOADING = """
import time
from openclaw_rl.supervision.process import ending_at_once, stop_event
stop = stop_event()
with ending_at_once():
    print("loading", flush=True)
    if {loads}:
        time.sleep(60)
print("working", flush=True)
stop.wait(60)
print("put away", flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("loads", "said"), [(True, ""), (False, "put away")])
def test_told_to_stop_it_ends_at_once_while_it_loads_and_in_order_after(
    sent: signal.Signals, loads: bool, said: str
) -> None:
    code = LOADING.format(loads=loads)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "loading"
        assert loads or process.stdout.readline().strip() == "working"
        process.send_signal(sent)
        try:
            rest, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest.strip()) == (0, said)


LEAVING = """
import atexit, logging, sys, threading, time
from openclaw_rl.supervision.process import leave
atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()
logging.basicConfig(stream=sys.stdout)
print("put away")
logging.error("told")
leave(3)
"""


def test_who_has_put_everything_away_leaves_without_taking_the_interpreter_apart() -> None:
    left = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=30)
    assert (left.returncode, left.stdout.split()) == (3, ["put", "away", "ERROR:root:told"])


def test_an_event_loop_does_not_wait_at_its_end_for_what_was_begun_beside_it() -> None:
    forever = threading.Event()

    async def main() -> None:
        loading = begin_beside(forever.wait)
        await asyncio.wait({loading}, timeout=0.05)
        assert not loading.done()
        loading.cancel()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join(10)
    ended = not thread.is_alive()
    forever.set()
    assert ended


def test_what_was_begun_beside_an_event_loop_gives_its_outcome_to_who_asks() -> None:
    async def main() -> None:
        assert await begin_beside(lambda: "loaded") == "loaded"
        with pytest.raises(OSError, match="no such model"):
            await begin_beside(failing)

    def failing() -> None:
        raise OSError("no such model")

    asyncio.run(main())


GIVING_WAY = """
import os
from openclaw_rl.supervision.process import AUTOGROUP, give_way
before = os.nice(0)
give_way(7)
print(os.nice(0) == min(before + 7, 19), AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else 7)
"""


def test_a_process_gives_way_with_its_session_which_is_what_counts_between_sessions() -> None:
    code = [sys.executable, "-c", GIVING_WAY]
    told = subprocess.run(code, capture_output=True, text=True, timeout=60, start_new_session=True, check=True)
    assert told.stdout.split() == ["True", "7"], told.stderr
