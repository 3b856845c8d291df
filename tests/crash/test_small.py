"""A small crash test: one kill of each process, and everything that the long one compares."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.crash import report
from benchmarks.crash.plan import Target
from benchmarks.crash.run import Options, crash_test


@pytest.mark.real_model
def test_one_kill_of_each_process_loses_nothing_and_trains_nothing_twice(tmp_path: Path) -> None:
    shown = crash_test(Options(kills=len(Target), seed=1, clients=3), tmp_path)
    assert shown["amiss"] == [], report.table(shown)
    assert report.last_line(shown) == "kills=6 lost=0 trained_twice=0"
    assert {name: row["kills"] for name, row in shown["processes"].items()} == {target.value: 1 for target in Target}
    assert shown["accepted_turns"] > 0
    assert shown["samples_trained"] > 0
