"""What every supervised process needs: here, its heartbeat."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.types import LoopName


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
