"""The benchmarks that can be run small, and what they compute."""

from __future__ import annotations

import json

import pytest
from benchmarks.__main__ import main
from benchmarks.memory import Trace, sparkline, verdict


def trace(*held: float) -> Trace:
    return Trace(sessions=[100 * place for place in range(len(held))], mib={"gateway": list(held)})


def test_memory_that_grows_without_end_is_seen() -> None:
    found = verdict(trace(*[50 + 0.2 * place for place in range(101)]))["gateway"]
    assert found["slope_mib_per_1000_sessions"] == 2.0
    assert found["growth_second_half_mib"] == 10.0
    assert found["levels_out"] is False


def test_memory_that_levels_out_is_seen_despite_a_jump() -> None:
    held = [50 + min(place, 40) * 0.5 for place in range(101)]
    held[90] += 20
    found = verdict(trace(*held))["gateway"]
    assert (found["start_mib"], found["half_mib"], found["end_mib"]) == (50.0, 70.0, 70.0)
    assert found["slope_mib_per_1000_sessions"] == 0.0
    assert found["levels_out"] is True


def test_a_curve_in_a_line() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert len(sparkline(list(range(1000)), width=50)) == 50


def test_the_memory_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--concurrent", "3", "--turns", "2", "--sequential", "4", "--lanes", "2"]
    assert main(["memory", *small]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)
    assert figures["turns_not_recorded"] == 0
    assert 10 < figures["gateway"]["end_mib"] < 2000
    assert 10 < figures["rollout"]["end_mib"] < 2000
    assert "rollout" in said.err
