"""Files of labelled cases: what is wrong in one is told by its line, and never taken for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.judging.cases import InvalidCase, case_from, load_cases

GOOD: dict[str, Any] = {
    "task": "a",
    "output": "b",
    "next_state": {"role": "user", "content": "Thanks."},
    "score": 1,
    "corrective": False,
}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (5, "not a JSON object"),
        ([GOOD], "not a JSON object"),
        ({**GOOD, "task": 1}, "task must be a text"),
        ({**GOOD, "output": None}, "output must be a text"),
        ({**GOOD, "next_state": []}, "next_state must be"),
        ({**GOOD, "next_state": ["no"]}, "next_state must be"),
        ({**GOOD, "corrective": "false"}, "corrective must be"),
        ({**GOOD, "score": 2}, "score must be"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: Any, said: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(InvalidCase, match=f"line 2: {said}"):
        load_cases(path)


def test_a_file_that_is_not_utf8_is_an_invalid_one(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidCase, match="not UTF-8 at byte 0"):
        load_cases(path)


def test_only_a_line_feed_ends_a_row(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(json.dumps({**GOOD, "output": "b\u2028c"}, ensure_ascii=False).encode() + b"\r\n\r\n")
    assert [case.output for case in load_cases(path)] == ["b\u2028c"]


def test_a_next_state_may_be_text_which_is_what_the_user_said() -> None:
    assert case_from({**GOOD, "next_state": "No."}).next_state == ({"role": "user", "content": "No."},)
