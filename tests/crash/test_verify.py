"""The comparison finds what is planted: a crash test that cannot fail would show nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from benchmarks.crash import report
from benchmarks.crash.killer import Kill
from benchmarks.crash.ledger import Accepted
from benchmarks.crash.look import Record
from benchmarks.crash.plan import CYCLE, Moment, Target, draw
from benchmarks.crash.verify import Findings, verify

from openclaw_rl.training.checkpoint import save_checkpoint
from tests.training.support import tiny_trainer

FIRST = Accepted(
    turn_id="a", conversation="c", text="one", version=0, follows=None, asked_again=False, began_at=1.0, ended_at=2.0
)
SECOND = dataclasses.replace(FIRST, turn_id="b", text="two", version=1, follows="a", began_at=3.0, ended_at=4.0)


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Two turns of one conversation; the first was trained, the second was the last."""
    trainer = tiny_trainer()
    trainer.restore(dataclasses.replace(trainer.state(), step=1, trained=("a",)))
    checkpoint = save_checkpoint(trainer, tmp_path_factory.mktemp("checkpoints"))
    return Record(
        turns={"a": ("sampled", None, answer("one")), "b": ("excluded", "no_next_state", answer("two"))},
        pairs={"a": (b"p1", b"r1"), "b": (b"p2", b"r2")},
        samples={"a": "trained"},
        steps=[{"step": 1, "version": 1, "sample_ids": ["a"], "checkpoint": str(checkpoint)}],
        versions={0: ("retired", None), 1: ("serving", None)},
        counters={},
    )


def test_a_record_without_fault_is_found_good(good: Record) -> None:
    findings = verify([FIRST, SECOND], good)
    assert findings.good, findings
    assert findings.ends == Counter({"sample trained": 1, "excluded no_next_state": 1})


LOST: dict[str, tuple[dict[str, Any], str]] = {
    "not there": ({"turns": {"b": ("excluded", "no_next_state", answer("two"))}}, "is not in the record"),
    "other words": (
        {"turns": {"a": ("sampled", None, answer("uno")), "b": ("excluded", "no_next_state", answer("two"))}},
        "holds another answer",
    ),
    "stuck": (
        {"turns": {"a": ("judging", None, answer("one")), "b": ("excluded", "no_next_state", answer("two"))}},
        "is left judging",
    ),
    "waits in vain": (
        {"turns": {"a": ("awaiting_next_state", None, answer("one")), "b": ("served", None, answer("two"))}},
        "waits for a next state that its client sent",
    ),
    "feedback lost": (
        {"turns": {"a": ("excluded", "no_next_state", answer("one")), "b": ("excluded", "no_signal", answer("two"))}},
        "was excluded as no_next_state, though its client answered it",
    ),
    "undelivered": (
        {"turns": {"a": ("excluded", "not_delivered", answer("one")), "b": ("excluded", "no_signal", answer("two"))}},
        "was excluded as not_delivered",
    ),
    "claimed": ({"samples": {"a": "claimed"}}, "its sample is left claimed"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_turn_is_found(good: Record, case: str) -> None:
    changed, words = LOST[case]
    findings = verify([FIRST, SECOND], dataclasses.replace(good, **changed))
    assert any(words in line for line in findings.lost), findings


def test_what_a_client_asked_for_again_may_count_as_not_delivered(good: Record) -> None:
    turns = {**good.turns, "a": ("excluded", "not_delivered", answer("one"))}
    again = dataclasses.replace(FIRST, asked_again=True)
    assert not verify([again, SECOND], dataclasses.replace(good, turns=turns)).lost


def test_what_was_trained_twice_is_found(good: Record) -> None:
    step = good.steps[0]
    twice = dataclasses.replace(good, steps=[step, {**step, "step": 2}])
    assert verify([FIRST], twice).trained_twice == ["turn a is in 2 steps' samples"]
    under_another_name = dataclasses.replace(
        good,
        samples={"a": "trained", "b": "trained"},
        pairs={"a": (b"p", b"r"), "b": (b"p", b"r")},
        steps=[{**step, "sample_ids": ["a", "b"]}],
    )
    assert verify([FIRST], under_another_name).trained_twice == ["one prompt and answer were trained 2 times"]


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "a gap in the steps": ({"step": 2}, "the steps are numbered [2]"),
    "samples of no step": ({"sample_ids": []}, "1 samples are in a step and not trained"),
    "no checkpoint": ({"checkpoint": "/nowhere"}, "the last checkpoint cannot be resumed from"),
    "another checkpoint": ({"sample_ids": ["b"]}, "is not the checkpoint that step 1 committed"),
    "not in service": ({"version": 7}, "version [1] serves, and the last good step made version 7"),
}


@pytest.mark.parametrize("case", OTHER)
def test_what_else_is_amiss_is_found(good: Record, case: str) -> None:
    changed, words = OTHER[case]
    findings = verify([FIRST, SECOND], dataclasses.replace(good, steps=[{**good.steps[0], **changed}]))
    assert any(words in line for line in findings.other), findings


def test_a_step_that_the_gate_refused_is_no_fault_and_its_samples_are_spent(good: Record) -> None:
    refused = {**good.steps[0], "step": 2, "version": 2, "sample_ids": ["b"]}
    turns = {**good.turns, "b": ("sampled", None, answer("two"))}
    versions = {**good.versions, 2: ("rejected", "language")}
    record = dataclasses.replace(
        good,
        turns=turns,
        samples={"a": "trained", "b": "rejected"},
        steps=[refused | {"step": 1, "version": 2}, {**good.steps[0], "step": 2, "version": 1}],
        versions=versions,
    )
    other = verify([FIRST, SECOND], record).other
    assert [line for line in other if "checkpoint" not in line] == []
    waiting = dataclasses.replace(record, samples={"a": "trained", "b": "ready"})
    assert "a sample of a step that the gate refused is not rejected" in verify([FIRST, SECOND], waiting).other
    by_engine = dataclasses.replace(record, versions={**versions, 2: ("rejected", "engine")})
    assert "version 2 was rejected: engine" in verify([FIRST, SECOND], by_engine).other


def test_a_version_that_goes_back_is_found(good: Record) -> None:
    later = dataclasses.replace(SECOND, version=0, began_at=5.0, ended_at=6.0, turn_id="b")
    newer = dataclasses.replace(FIRST, version=3)
    assert "turn b was answered by version 0 after 3" in verify([newer, later], good).other
    overlapping = dataclasses.replace(later, began_at=1.5)
    assert not any("after 3" in line for line in verify([newer, overlapping], good).other)


def test_the_plan_is_even_and_the_same_for_a_seed() -> None:
    plan = draw(200, seed=0)
    assert sum(map(len, plan.values())) == 200
    assert all(len(planned) >= 30 for planned in plan.values())
    assert plan == draw(200, seed=0) != draw(200, seed=1)
    for target, planned in plan.items():
        assert {one.moment for one in planned} == set(CYCLE[target])
    assert all(one.delay_s == 0.0 for one in plan[Target.TRAINING] if one.moment is Moment.WRITTEN)


def test_the_last_line_has_the_numbers_that_were_found() -> None:
    kills = [
        Kill(target=Target.ENGINE, at=0.0, loading=False, hit="in the middle of a stream", worked_after_s=4.0),
        Kill(target=Target.ENGINE, at=9.0, loading=True, hit=None, interrupted=True),
    ]
    shown = report.figures(kills, Findings(lost=["x", "y"], trained_twice=["z"], other=[]), {"seed": 3})
    assert report.last_line(shown) == "kills=2 lost=2 trained_twice=1"
    assert shown["amiss"] == ["x", "y", "z"]
    row = shown["processes"]["engine"]
    assert (row["kills"], row["while_loading"], row["median_s_until_it_worked"], row["killed_again_before"]) == (
        2,
        1,
        4.0,
        1,
    )
    assert "AMISS: z" in report.table(shown)
