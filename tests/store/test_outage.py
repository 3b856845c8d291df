"""What SQLite and the system say of a record that cannot be used, and loops that wait for it."""

from __future__ import annotations

import errno
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from openclaw_rl.store import Store
from openclaw_rl.store.outage import Outage, Patience, StoppedInOutage, outage_of
from tests.builders import Conversation, make_request
from tests.outages import KINDS, Trouble, locked

ROOT = Path(__file__).parents[2]

FILL_THE_DISK = """
import pathlib, resource, sys
from openclaw_rl.store import Store
from openclaw_rl.store.outage import outage_of
from tests.builders import make_request, user

store = Store.open(pathlib.Path(sys.argv[1]))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
written = 0
try:
    for number in range(100):
        store.turns.record_request(make_request(f"t{number}", messages=(user("x" * 100_000),)))
        written += 1
except Exception as error:
    print(outage_of(error), flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
store.turns.record_request(make_request("after"))
print(written, store.status.counts().counters["requests"])
store.close()
"""


def provoke(store: Store) -> BaseException:
    big = make_request("t1", messages=({"role": "user", "content": "x" * 100_000},))
    with pytest.raises(OperationalError) as caught:
        store.turns.record_request(big)
    return caught.value


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_sqlite_says_is_understood_and_undone(store: Store, kind: str) -> None:
    trouble = Trouble(store)
    trouble.begin(kind)
    assert outage_of(provoke(store)) == Outage(kind)
    trouble.mend()
    assert store.status.counts().sessions == 0
    Conversation(store).turn("t1")


def test_a_lock_is_waited_for_as_long_as_was_said(path: Path) -> None:
    Store.open(path).close()
    store = Store.open(path, patience_s=0.2)
    with locked(path):
        begun = time.monotonic()
        assert outage_of(provoke(store)) is Outage.LOCKED
        assert 0.15 < time.monotonic() - begun < 3.0
        assert store.status.counts().sessions == 0, "reading needs no lock"
    store.close()


def test_a_full_disk_of_the_system_is_an_outage_and_ends(tmp_path: Path) -> None:
    """The limit of the size of files, which the system enforces as it does the size of a disk."""
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path / "store.sqlite")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    outage, written, counted = done.stdout.split()
    assert outage in {Outage.DISK_FULL, Outage.IO_ERROR}
    assert 0 < int(written) < 100
    assert int(counted) == int(written) + 1, "all that was said to be written, and what came after"


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (OSError(errno.ENOSPC, "no space"), Outage.DISK_FULL),
        (OSError(errno.EDQUOT, "quota"), Outage.DISK_FULL),
        (PermissionError(errno.EACCES, "no"), Outage.UNWRITABLE),
        (OSError(errno.EIO, "disk"), Outage.IO_ERROR),
        (FileNotFoundError(errno.ENOENT, "gone"), None),
        (OSError("no number"), None),
        (ValueError("a fault of ours"), None),
        (IntegrityError("INSERT", {}, sqlite3.IntegrityError("UNIQUE")), None),
        (OperationalError("SELECT", {}, sqlite3.OperationalError("no such table")), None),
    ],
)
def test_what_is_an_outage_and_what_is_not(error: BaseException, outage: Outage | None) -> None:
    assert outage_of(error) is outage


def test_a_damaged_file_is_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Exception, match="not a database") as caught:
        Store.open(path)
    assert outage_of(caught.value) is Outage.DAMAGED


def test_patience_says_it_once_and_does_it_in_the_end(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store.open(path).close()
    store = Store.open(path, patience_s=0.05)
    told: list[str] = []
    patience = Patience(threading.Event(), told.append, pause_s=0.02, max_pause_s=0.05)
    with caplog.at_level(logging.WARNING), locked(path) as lock:
        threading.Timer(0.5, lock.release).start()
        patience.until_done(lambda: store.status.count("mine"))
    assert store.status.counts().counters["mine"] == 1
    assert len(told) > 2
    assert set(told) == {"the record to be usable again: another process holds its lock"}
    said = [entry.levelname for entry in caplog.records if entry.name == "openclaw_rl.store.outage"]
    assert said == ["ERROR", "WARNING"], "once that it is down, once that it is back"
    store.close()


def test_patience_ends_with_the_process(path: Path) -> None:
    Store.open(path).close()
    store = Store.open(path, patience_s=0.05)
    stop = threading.Event()
    patience = Patience(stop, lambda _: None, pause_s=20.0)
    with locked(path):
        threading.Timer(0.3, stop.set).start()
        begun = time.monotonic()
        with pytest.raises(StoppedInOutage):
            patience.until_done(lambda: store.status.count("mine"))
        assert time.monotonic() - begun < 5.0
    store.close()


def test_patience_has_none_with_faults(store: Store) -> None:
    patience = Patience(threading.Event(), lambda _: None)
    with pytest.raises(IntegrityError):
        patience.until_done(lambda: _twice(store))


def _twice(store: Store) -> None:
    for _ in range(2):
        store.turns.record_request(make_request("same"))
