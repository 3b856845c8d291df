"""The page on rollout says what the code does, where a table can be compared."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw_rl.rollout.classify import CHECKS
from openclaw_rl.types import TURN_TRANSITIONS, ExclusionReason, TurnState

PAGE = (Path(__file__).parents[2] / "docs" / "02-rollout.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    _, found, rest = PAGE.partition(f"## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def test_the_table_of_reasons_holds_each_reason_once_in_the_order_of_the_checks() -> None:
    reasons = re.findall(r"^\| `(\w+)` \|", section("Why a turn is excluded"), flags=re.MULTILINE)
    assert sorted(reasons) == sorted(reason.value for reason in ExclusionReason)
    checked = [check.reason.value for check in CHECKS]
    assert [reason for reason in reasons if reason in checked] == checked


def test_the_table_of_states_holds_exactly_the_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("The states of a turn"), flags=re.MULTILINE)
    changes = {(TurnState(old), TurnState(new)) for old, new in rows}
    assert len(rows) == len(changes)
    assert changes == {(old, new) for old, allowed in TURN_TRANSITIONS.items() for new in allowed}
