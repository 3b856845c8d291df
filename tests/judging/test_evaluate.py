from __future__ import annotations

import asyncio

import pytest

from openclaw_rl.judging.cases import Case, InvalidCase, parse_cases
from openclaw_rl.judging.evaluate import evaluate
from openclaw_rl.testing.scripted_judge import ScriptedJudge
from tests.builders import user


def case(text: str, score: int, corrective: bool = False, group: str | None = None) -> Case:
    return Case(task="t", output="o", next_state=(user(text),), score=score, corrective=corrective, group=group)


def test_the_report_by_hand() -> None:
    cases = [
        case("[good]", 1, group="a"),
        case("[bad] hint: Be short.", -1, corrective=True, group="a"),
        case("[bad] hint: Sing.", -1),
        case("[good]", -1, corrective=True),
        case("[neutral]", 1),
        case("[neutral]", 0),
        case("[tie]", 1),
        case("[fail] 好", -1),
    ]
    report = asyncio.run(evaluate(ScriptedJudge(), cases))
    assert report.overall.accuracy == 4 / 8
    assert report.overall.accuracy_signed == 3 / 7
    assert report.by_language["zh"].accuracy == 0.0
    assert report.by_language["en"].accuracy_signed == 3 / 6
    assert report.by_group["a"].accuracy_signed == 1.0
    assert (report.hint_precision, report.hint_recall) == (1 / 2, 1 / 2)
    assert report.confusion == {"1>1": 1, "-1>-1": 2, "-1>1": 1, "1>0": 1, "0>0": 1, "1>none": 1, "-1>none": 1}
    assert report.failures == {"tie": 1, "scripted": 1}
    assert report.misjudged == (3, 4, 6, 7)


def test_shares_of_nothing_are_absent() -> None:
    report = asyncio.run(evaluate(ScriptedJudge(), [case("[neutral]", 0)]))
    assert report.overall.accuracy_signed is None
    assert report.hint_precision is None
    assert report.hint_recall is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task": "t"}', "line 2: missing output"),
        ('{"task":"t","output":"o","next_state":{},"score":2,"corrective":false}', "score must be"),
        ("{", "line 2"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(InvalidCase, match=message):
        parse_cases(["", line])
