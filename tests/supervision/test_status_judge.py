"""What `status` says of the judge."""

from __future__ import annotations

import os
import time

from openclaw_rl.store.feedback import JudgeAgreement
from openclaw_rl.supervision.status_judge import judge_report
from openclaw_rl.types import LoopName, LoopStatus

NOBODY = JudgeAgreement(compared=0, agreed=0, opposed=0, unscored=0)
MOST = JudgeAgreement(compared=10, agreed=8, opposed=1, unscored=1)


def said(**details: object) -> LoopStatus:
    now = time.time()
    return LoopStatus(
        loop=LoopName.JUDGING,
        pid=os.getpid(),
        heartbeat_at=now,
        activity="waiting",
        waiting_for="a turn with a next state",
        since=now,
        details=details,
    )


def test_agreement_with_people() -> None:
    report = judge_report(MOST, said(kind="llm"))
    assert report.words() == ["llm, agrees on 8 of 10 answers that people rated (80%), against them on 1"]
    assert report.agreement == 0.8
    assert judge_report(NOBODY, None).words() == ["not seen yet, nobody has rated an answer that it judged"]
    assert judge_report(NOBODY, None).agreement is None


def test_a_warning_has_a_line_of_its_own() -> None:
    report = judge_report(NOBODY, said(kind="llm", warning="the last 50 scores are all about +0.00."))
    assert report.words()[1] == "warning: the last 50 scores are all about +0.00."


def test_an_outage_is_told_to_programs_too() -> None:
    report = judge_report(NOBODY, said(kind="llm", down_since=5.0, next_try_at=9.0))
    assert (report.down_since, report.next_try_at) == (5.0, 9.0)
