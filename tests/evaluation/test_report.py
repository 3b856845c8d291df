"""The report's keys are a contract with other programs."""

import json
from pathlib import Path

from openclaw_rl.evaluation.demo_options import DemoOptions
from openclaw_rl.evaluation.demo_results import closing_lines, curve_of, failures, gather_report, score_by_part
from openclaw_rl.evaluation.demo_run import RunResults
from openclaw_rl.evaluation.held_out import HeldOutAnswer, HeldOutResult
from openclaw_rl.evaluation.ledger import Ledger
from openclaw_rl.evaluation.questions import Question
from openclaw_rl.evaluation.report import DemoReport
from openclaw_rl.evaluation.settling import Settling
from openclaw_rl.evaluation.system_view import judge_scores, pending_work, read_system_state
from openclaw_rl.store import Store
from openclaw_rl.types import PolicyVersion, TurnState, VersionState
from tests.builders import Conversation, make_config, make_judgement
from tests.evaluation.entries import make_entry, make_ledger

PROMISED = {
    *("interactions", "answers", "updates", "seconds", "peak_memory_gib", "score_before", "score_after"),
    *("topical_before", "topical_after", "good_and_topical_after", "quality_nats_below_told_base"),
    *("judge_agreement", "refused_requests", "broken_streams", "lost_turns", "max_token_gap_ms_during_publish"),
    *("max_token_gap_ms_during_step", "max_token_gap_ms_otherwise", "method", "model", "seed", "checkpoint"),
}


def held_out(*satisfied: bool) -> HeldOutResult:
    question = Question(text="What is a tent?", subject_words=("camp",))
    return HeldOutResult(
        model="policy",
        answers=tuple(
            HeldOutAnswer(question=question, text="A camp.", finish_reason="stop", satisfied=good, on_topic=True)
            for good in satisfied
        ),
    )


def gather(tmp_path: Path, store: Store, ledger: Ledger, results: RunResults) -> DemoReport:
    return gather_report(
        DemoOptions(seed=3),
        make_config(tmp_path),
        store,
        ledger,
        results,
        seconds=12.5,
        peak_memory_gib=1.5,
        restarts={"training": 0},
        plot=None,
    )


def test_every_promised_key_is_there_from_the_start_and_unknown_is_null(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    report = json.loads(gather(tmp_path, store, make_ledger(), RunResults()).as_json())
    assert set(report) >= PROMISED
    unknown = {key for key in PROMISED if report[key] is None}
    assert unknown == {
        "score_before",
        "score_after",
        "topical_before",
        "topical_after",
        "good_and_topical_after",
        "quality_nats_below_told_base",
        "judge_agreement",
        "max_token_gap_ms_during_publish",
        "max_token_gap_ms_during_step",
        "max_token_gap_ms_otherwise",
        "checkpoint",
    }
    assert (report["method"], report["model"], report["seed"]) == ("combine", "smollm2", 3)
    store.close()


def test_the_figures_come_from_the_ledger_and_the_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    Conversation(store).chain("What is a poem?", "Shorter, please.", "Thanks.")
    for turn_id in ("s1", "s2"):
        store.turns.move(turn_id, TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state("s1", "s2", [{"role": "user", "content": "Shorter, please."}])
    store.turns.record_judgement(make_judgement("s1", score=-0.5, hint="Shorter, please."))
    ledger = make_ledger(
        make_entry(turn_id="s1", verdict=-1, reaction="Shorter, please.", satisfied=False),
        make_entry(turn_id="s2", attempt=2, verdict=1, reaction="Thanks.", satisfied=True),
        make_entry(turn_id="gone", interaction=1, satisfied=True, sent_at=200.0),
    )
    results = RunResults(
        before=held_out(False, False),
        after=held_out(True, False),
        told_base=held_out(True, True),
        told_base_nats=-0.75,
        policy_nats=-1.0,
    )
    report = gather(tmp_path, store, ledger, results)
    assert (report.interactions, report.answers, report.lost_turns) == (2, 3, 1)
    assert (report.score_before, report.score_after, report.good_and_topical_after) == (0.0, 0.5, 0.5)
    assert report.quality_nats_below_told_base == 0.25
    assert report.judge_agreement == 1.0
    assert report.hints == 1
    assert report.max_token_gap_ms_otherwise is not None
    assert report.answers_by_attempt == {"first": 2, "second": 1, "closing": 0}
    assert any("1 answers" in sentence for sentence in failures(report, DemoOptions(interactions=2)))
    assert any("Only 2 of 48" in sentence for sentence in failures(report, DemoOptions()))
    curve = curve_of("a run", ledger, judge_scores(store), results)
    assert (list(curve.satisfied), list(curve.rewards)) == ([False, True], [-0.5, None])
    assert any("0.25 nats" in line for line in closing_lines(report, results))
    store.close()


def test_a_run_that_was_not_waited_for_says_whose_answers_it_shows_and_what_is_missing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    adapter = tmp_path / "step-000005" / "adapter"
    version = PolicyVersion(
        version=5, state=VersionState.RETIRED, path=str(adapter), step=5, created_at=0.0, reason=None
    )
    settling = Settling(pending=("14 samples to be trained",), waited_s=400.0, still_s=300.0)
    results = RunResults(asked_after=version, settling=settling)
    report = gather(tmp_path, store, make_ledger(), results)
    assert (report.version_after, report.version_at_end, report.settled) == ("policy-v5", "base", False)
    assert (report.settle_waited_s, report.settle_standstill_s) == (400.0, 300.0)
    assert json.loads(report.as_json())["still_pending"] == ["14 samples to be trained"]
    lines = closing_lines(report, results)
    assert any("given up after 6 min 40 s" in line and "14 samples to be trained" in line for line in lines)
    assert any("those of policy-v5; by now base serves" in line for line in lines)
    assert lines[-1] == "checkpoint  none: that of policy-v5 was pruned meanwhile"
    adapter.mkdir(parents=True)
    report = gather(tmp_path, store, make_ledger(), results)
    assert closing_lines(report, results)[-1] == f"checkpoint  {adapter} (policy-v5)"
    store.close()


def test_figures_that_are_not_finite_are_null(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    results = RunResults(told_base_nats=float("nan"), policy_nats=-1.0)
    report = json.loads(gather(tmp_path, store, make_ledger(), results).as_json())
    assert report["told_base_nats_per_token"] is None
    store.close()


def test_what_is_still_on_its_way_is_named(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.sqlite")
    config = make_config(tmp_path)
    assert pending_work(store, config) == []
    conversation = Conversation(store)
    conversation.turn("a")
    assert pending_work(store, config) == ["1 answers to be looked at"]
    store.turns.move("a", TurnState.AWAITING_NEXT_STATE)
    assert pending_work(store, config) == []
    conversation.ask("b", [{"role": "user", "content": "Thanks."}], parent="a")
    assert pending_work(store, config) == ["1 next states to be recorded"]
    store.turns.set_next_state("a", "b", [{"role": "user", "content": "Thanks."}])
    assert pending_work(store, config) == ["1 answers to be judged"]
    state = read_system_state(store, config)
    assert state is not None
    assert (state.version, state.turns_by_state) == ("base", {"judging": 1})
    store.close()


def test_a_curve_in_parts() -> None:
    assert score_by_part([False, False, True, True], 2) == (0.0, 1.0)
    assert score_by_part([True], 2) == (None, 1.0)
    assert score_by_part([], 2) == (None, None)
