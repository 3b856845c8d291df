from __future__ import annotations

import pytest

from openclaw_rl.judging.cases import shipped_cases
from openclaw_rl.judging.text import content_text
from openclaw_rl.judging.tool_rules import tool_verdict, tools_verdict


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ("", 0),
        ("  \n", 0),
        ("null", 0),
        ("[]", 0),
        ("exit status: 0", 1),
        ("warning: error: old style\nexit code 0", 1),
        ("all good\nprocess exited with code 3", -1),
        ('{"error": null, "rows": [1]}', 1),
        ('{"error": "no"}', -1),
        ('{"isError": true}', -1),
        ('{"success": false}', -1),
        ('{"returncode": 2}', -1),
        ('{"status": "failed"}', -1),
        ("[1, 2]", 1),
        ("3 passed, 0 failed, no errors", 1),
        ("3 passed, 2 errors", -1),
        ("a.c:1:2: error: expected ';'", -1),
        ("ValueError: bad", -1),
        ("Traceback (most recent call last):\n  x", -1),
        ("404 Not Found", -1),
        ("The errors page was written.", 1),
    ],
)
def test_tool_verdict(content: str, verdict: int) -> None:
    assert tool_verdict(content) == verdict


def test_one_failure_outweighs_the_rest() -> None:
    assert tools_verdict(["fine", "exit code 1"]) == -1
    assert tools_verdict(["", "fine"]) == 1
    assert tools_verdict([""]) == 0


@pytest.mark.parametrize("name", ["calibration", "held_aside", "feedback"])
def test_on_the_shipped_cases(name: str) -> None:
    cases = [case for case in shipped_cases(name) if case.next_state[0].get("role") == "tool"]
    right = sum(tool_verdict(content_text(case.next_state[0])) == case.score for case in cases)
    assert len(cases) >= 10
    assert right >= 0.95 * len(cases)
