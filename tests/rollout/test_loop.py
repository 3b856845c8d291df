from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from openclaw_rl.config import Config, RolloutConfig, TrainingConfig
from openclaw_rl.rollout.loop import STEPS, run, run_pass
from openclaw_rl.store import Store
from openclaw_rl.types import (
    ExclusionReason,
    FinishReason,
    JudgementOutcome,
    LoopName,
    Method,
    TokenRecord,
    TurnState,
    TurnType,
)
from tests.builders import TOKENS, Conversation, make_judgement, make_turn, state_of, tool, user

AWAITING = (TurnState.AWAITING_NEXT_STATE, None)
JUDGING = (TurnState.JUDGING, None)
SAMPLED = (TurnState.SAMPLED, None)


def excluded(reason: str) -> tuple[TurnState, str]:
    return TurnState.EXCLUDED, reason


def settle(store: Store, config: Config, now: float | None = None) -> list[dict[str, int]]:
    """Run passes until nothing moves; the moves of each pass that moved something."""
    passes: list[dict[str, int]] = []
    while any((moved := run_pass(store, config, now or time.time())).values()):
        passes.append(moved)
        assert len(passes) < 10
    return passes


def everything(store: Store) -> tuple[Any, ...]:
    """All that the loop may change."""
    counts = store.status.counts()
    turns = [turn for session in ("s", "z") for turn in store.turns.of_session(session)]
    return counts, turns, store.samples.ready()


def check_sums(store: Store) -> None:
    """Every turn is in exactly one state, every excluded one has one reason, every sampled one is one sample."""
    counts = store.status.counts()
    by_state = counts.turns_by_state
    assert sum(by_state.values()) == counts.counters.get("turns_served", 0)
    assert sum(counts.turns_by_reason.values()) == by_state.get("excluded", 0)
    assert sum(counts.samples_by_state.values()) == by_state.get("sampled", 0)


def test_a_chain_gets_its_next_states_and_becomes_samples(store: Store, config: Config, talk: Conversation) -> None:
    t1, t2, t3 = talk.chain("What is a poem?", "Too long.", "Good. And a novel?")
    settle(store, config)
    assert [state_of(store, turn) for turn in (t1, t2, t3)] == [JUDGING, JUDGING, AWAITING]
    turns = {turn.turn_id: turn for turn in store.turns.of_session("s")}
    assert turns[t1].next_state == (user("Too long."),)
    assert turns[t2].next_state == (user("Good. And a novel?"),)
    assert turns[t3].next_state is None

    store.turns.record_judgement(make_judgement(t1, -1.0, hint="Be short."))
    store.turns.record_judgement(make_judgement(t2, 1.0))
    settle(store, config)
    assert [state_of(store, turn) for turn in (t1, t2, t3)] == [SAMPLED, SAMPLED, AWAITING]
    first, second = store.samples.claim(8, 60.0)
    assert (first.turn_id, first.reward, first.hint) == (t1, -1.0, "Be short.")
    assert (second.turn_id, second.reward, second.hint) == (t2, 1.0, None)
    assert first.tokens == TOKENS
    check_sums(store)


def test_a_next_state_is_judged_while_the_next_answer_is_generated(
    store: Store, config: Config, talk: Conversation
) -> None:
    talk.turn("t1")
    talk.ask("t2", [user("No.")], parent="t1")  # not answered yet, and never will be
    settle(store, config)
    assert state_of(store, "t1") == JUDGING
    store.turns.record_failure("t2", status="cancelled", error="client went away")
    store.turns.record_judgement(make_judgement("t1", -1.0))
    settle(store, config)
    assert state_of(store, "t1") == SAMPLED


def test_all_results_of_parallel_tools_are_the_next_state(store: Store, config: Config, talk: Conversation) -> None:
    results = [tool("4", "a"), tool("", "b"), {"role": "system", "content": "note"}]
    talk.turn("t1")
    talk.turn("t2", results, parent="t1")
    settle(store, config)
    turn = store.turns.get("t1")
    assert turn is not None
    assert turn.next_state == tuple(results)


@pytest.mark.parametrize(
    ("request_values", "turn_values", "reason"),
    [
        ({"turn_type": TurnType.SIDE}, {}, "side_turn"),
        ({"model": "base"}, {}, "not_from_policy"),
        ({}, {"state": TurnState.EXCLUDED, "reason": ExclusionReason.NOT_FROM_POLICY}, "not_from_policy"),
        ({"ambiguous": True}, {}, "ambiguous_parent"),
        ({}, {"finish_reason": FinishReason.ABORT}, "aborted"),
        (
            {},
            {
                "tokens": replace(TOKENS, response_ids=(), logprobs=(), versions=()),
                "answer": {"role": "assistant", "content": ""},
            },
            "empty_response",
        ),
        ({}, {"tokens": replace(TOKENS, prompt_ids=())}, "missing_token_ids"),
        ({}, {"state": TurnState.EXCLUDED, "reason": ExclusionReason.TOKEN_COUNT_MISMATCH}, "token_count_mismatch"),
        ({}, {"tokens": replace(TOKENS, logprobs=(None, -1.0))}, "missing_logprobs"),
        ({}, {"tokens": replace(TOKENS, logprobs=(float("nan"), -1.0))}, "nonfinite_logprobs"),
        ({}, {"sampling": replace(make_turn().sampling, temperature=0.0)}, "greedy"),
        ({}, {"sampling": replace(make_turn().sampling, top_p=0.9)}, "truncated_support"),
    ],
)
def test_what_cannot_be_trained_is_excluded_at_once_and_stays_so(
    store: Store,
    config: Config,
    talk: Conversation,
    request_values: dict[str, Any],
    turn_values: dict[str, Any],
    reason: str,
) -> None:
    talk.answer(talk.ask("t1", **request_values), **turn_values)
    talk.turn("t2", [user("Good.")], parent="t1")
    settle(store, config)
    assert state_of(store, "t1") == excluded(reason)
    assert store.status.counts().turns_by_reason == {reason: 1}
    assert store.status.counts().counters[f"turns_excluded_{reason}"] == 1
    check_sums(store)


def test_a_done_session_leaves_its_last_turn_without_a_next_state(
    store: Store, config: Config, talk: Conversation
) -> None:
    talk.turn("t1")
    talk.turn("t2", [user("Good, that was all.")], parent="t1", session_done=True)
    settle(store, config)
    assert state_of(store, "t1") == JUDGING
    assert state_of(store, "t2") == excluded("no_next_state")
    check_sums(store)


def test_an_idle_session_ends_and_a_late_child_is_still_feedback(
    store: Store, config: Config, talk: Conversation
) -> None:
    talk.turn("t1")
    settle(store, config, time.time() + config.rollout.idle_timeout_s - 60)
    assert state_of(store, "t1") == AWAITING
    settle(store, config, time.time() + config.rollout.idle_timeout_s + 60)
    assert state_of(store, "t1") == excluded("no_next_state")

    talk.turn("t2", [user("That was wrong.")], parent="t1")
    settle(store, config)
    assert [state_of(store, turn) for turn in ("t1", "t2")] == [JUDGING, AWAITING]
    store.turns.record_judgement(make_judgement("t1", -1.0))
    settle(store, config)
    assert state_of(store, "t1") == SAMPLED
    check_sums(store)


def test_a_new_request_opens_an_ended_session_again(store: Store, config: Config, talk: Conversation) -> None:
    talk.turn("t1", session_done=True)
    talk.ask("t2", model="base")  # not t1's child: a fresh start under the same session id
    settle(store, config)
    assert state_of(store, "t1") == AWAITING


def test_a_side_request_is_no_feedback_and_does_not_hold_its_parent_back(
    store: Store, config: Config, talk: Conversation
) -> None:
    talk.turn("t1")
    title = [user("Write a title for this conversation.")]
    talk.turn("t2", title, parent="t1", turn_type=TurnType.SIDE)
    settle(store, config)
    assert [state_of(store, turn) for turn in ("t1", "t2")] == [AWAITING, excluded("side_turn")]
    store.sessions.end("k", "s", "test")
    settle(store, config)
    assert state_of(store, "t1") == excluded("no_next_state")

    talk.turn("t3", [user("No.")], parent="t1")
    settle(store, config)
    turn = store.turns.get("t1")
    assert turn is not None
    assert (turn.state, turn.next_state) == (TurnState.JUDGING, (user("No."),))


def test_childless_turns_with_housekeeping_do_not_block_others(
    store: Store, config: Config, talk: Conversation
) -> None:
    for number in range(260):  # more than a step looks at in one pass
        talk.turn(f"old{number}", session_done=True)
        talk.turn(f"side{number}", [user("A title?")], parent=f"old{number}", turn_type=TurnType.SIDE)
    for _ in range(4):
        run_pass(store, config, time.time())
    talk.turn("t1")
    talk.turn("t2", [user("Good.")], parent="t1")
    settle(store, config)
    assert state_of(store, "t1") == JUDGING
    check_sums(store)


def test_the_first_child_gives_the_next_state_and_later_ones_are_branches(
    store: Store, config: Config, talk: Conversation
) -> None:
    talk.turn("t1")
    talk.turn("t2", [user("No.")], parent="t1")
    talk.turn("t3", [user("Great.")], parent="t1")
    settle(store, config)
    turn = store.turns.get("t1")
    assert turn is not None
    assert turn.next_state == (user("No."),)
    talk.turn("t4", [user("Hm.")], parent="t1")
    settle(store, config)
    again = store.turns.get("t1")
    assert again is not None
    assert again.next_state == (user("No."),)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (JudgementOutcome.TIE, "judge_tie"),
        (JudgementOutcome.TOO_FEW_VALID, "too_few_valid_votes"),
        (JudgementOutcome.FAILED, "judge_failed"),
        (JudgementOutcome.SCORED, "no_signal"),
    ],
)
def test_null_is_not_zero(
    store: Store, config: Config, talk: Conversation, outcome: JudgementOutcome, reason: str
) -> None:
    t1, _ = talk.chain("What is a poem?", "Hm.")
    settle(store, config)
    store.turns.record_judgement(make_judgement(t1, 0.0, outcome=outcome))
    settle(store, config)
    assert state_of(store, t1) == excluded(reason)
    assert store.samples.ready().count == 0
    check_sums(store)


def test_a_hint_counts_without_a_score_and_the_method_decides(
    store: Store, config: Config, talk: Conversation
) -> None:
    t1, t2, _ = talk.chain("What is a poem?", "Be brief.", "Good.")
    settle(store, config)
    store.turns.record_judgement(make_judgement(t1, hint="Be brief.", outcome=JudgementOutcome.TIE))
    store.turns.record_judgement(make_judgement(t2, 1.0))
    opd = config.model_copy(update={"training": TrainingConfig(method=Method.OPD)})
    settle(store, opd)
    assert [state_of(store, turn) for turn in (t1, t2)] == [SAMPLED, excluded("no_signal")]
    (sample,) = store.samples.claim(8, 60.0)
    assert (sample.reward, sample.hint) == (None, "Be brief.")


def _with_retries(config: Config) -> Config:
    return config.model_copy(update={"rollout": RolloutConfig(accepted_retry=True)})


def test_an_accepted_retry_demonstrates_the_first_prompt_once(
    store: Store, config: Config, talk: Conversation
) -> None:
    config = _with_retries(config)
    other = replace(TOKENS, prompt_ids=(1, 2, 3, 4), response_ids=(9, 9))
    talk.turn("t1")
    talk.turn("t2", [user("Too long: one sentence.")], parent="t1", tokens=other)
    talk.turn("t3", [user("Good.")], parent="t2")
    settle(store, config)
    store.turns.record_judgement(make_judgement("t2", 1.0))
    settle(store, config)
    assert state_of(store, "t2") == JUDGING, "the first try is still with the judge: wait for it"
    store.turns.record_judgement(make_judgement("t1", -1.0, hint="One sentence."))
    settle(store, config)
    samples = {sample.turn_id: sample for sample in store.samples.claim(8, 60.0)}
    assert set(samples) == {"t1", "t2"}
    assert samples["t1"].retry is None
    retry = samples["t2"].retry
    assert retry is not None
    assert (retry.turn_id, retry.response_ids) == ("t2", (9, 9))
    assert (retry.prompt_turn_id, retry.prompt_ids) == ("t1", TOKENS.prompt_ids)
    assert samples["t2"].tokens == other
    check_sums(store)


def test_without_the_option_there_is_no_demonstration(store: Store, config: Config, talk: Conversation) -> None:
    t1, t2, _ = talk.chain("What is a poem?", "One sentence.", "Good.")
    settle(store, config)
    store.turns.record_judgement(make_judgement(t1, -1.0, hint="One sentence."))
    store.turns.record_judgement(make_judgement(t2, 1.0))
    settle(store, config)
    assert [sample.retry for sample in store.samples.claim(8, 60.0)] == [None, None]


def _busy_store(store: Store) -> None:
    """Two sessions with a bit of everything, nothing of it settled."""
    one, two = Conversation(store, "s"), Conversation(store, "z")
    one.chain("What is a poem?", "Too long.", "Good.", "And a novel?")
    two.turn("z1")
    two.turn("z2", [user("title?")], parent="z1", turn_type=TurnType.SIDE)
    two.turn("z4", model="base")
    two.turn("z3", [user("No.")], parent="z1", session_done=True)


@pytest.mark.parametrize("judged", [False, True])
def test_every_step_twice_changes_nothing_more(store: Store, config: Config, judged: bool) -> None:
    _busy_store(store)
    if judged:
        settle(store, config)
        for turn, _ in store.turns.claim_for_judging(10, 60.0):
            store.turns.record_judgement(make_judgement(turn.turn_id, 1.0))
    for step in STEPS.values():
        while step(store, config, time.time()):
            pass
        before = everything(store)
        assert step(store, config, time.time()) == 0
        assert everything(store) == before
    check_sums(store)


def test_a_pass_that_ends_after_any_step_is_finished_by_the_next(store: Store, config: Config) -> None:
    _busy_store(store)
    for last in range(len(STEPS)):  # killed after the first step, then after the second, and so on
        for step in list(STEPS.values())[: last + 1]:
            step(store, config, time.time())
    settle(store, config)
    states = {turn.turn_id: state_of(store, turn.turn_id) for turn in store.turns.of_session("z")}
    assert states == {
        "z1": JUDGING,
        "z2": excluded("side_turn"),
        "z3": excluded("no_next_state"),
        "z4": excluded("not_from_policy"),
    }
    check_sums(store)


def test_the_loop_works_reports_warns_and_stops(
    store: Store, config: Config, talk: Conversation, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = RolloutConfig(poll_interval_s=0.01, warn_after_s=0.2)
    config = config.model_copy(update={"rollout": rollout})
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(config, stop))
    with caplog.at_level(logging.WARNING, logger="openclaw_rl.rollout.loop"):
        thread.start()
        t1, t2 = talk.chain("What is a poem?", "my secret words")
        deadline = time.time() + 10
        while time.time() < deadline and (len(caplog.records) < 2 or not _waits_for_judging(store)):
            time.sleep(0.02)
        stop.set()
        thread.join(timeout=5)
    assert not thread.is_alive()
    assert [state_of(store, turn) for turn in (t1, t2)] == [JUDGING, AWAITING]
    assert "1 turn waits for a next state, 1 is being judged; 0 of 8 samples" in caplog.text
    assert "secret" not in caplog.text
    assert _waits_for_judging(store)


def test_the_loop_says_nothing_where_there_is_nothing_to_do(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    rollout = RolloutConfig(poll_interval_s=0.01, warn_after_s=0.05)
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(config.model_copy(update={"rollout": rollout}), stop))
    with caplog.at_level(logging.WARNING, logger="openclaw_rl.rollout.loop"):
        thread.start()
        time.sleep(0.5)
        stop.set()
        thread.join(timeout=5)
    assert not thread.is_alive()
    assert caplog.records == []


def _waits_for_judging(store: Store) -> bool:
    said = [status.waiting_for or "" for status in store.status.loops() if status.loop is LoopName.ROLLOUT]
    return any("judging of 1 turn" in sentence for sentence in said)


@pytest.mark.parametrize("training", [True, False])
def test_an_upstream_that_tells_no_ids_is_judged_and_then_excluded_for_that(
    store: Store, config: Config, talk: Conversation, training: bool
) -> None:
    engine = {"kind": "openai", "urls": ["http://127.0.0.1:9/v1"], "upstream_model": "big"}
    upstream = Config.model_validate({"run_dir": config.run_dir, "engine": engine, "training": {"enabled": training}})
    untold = TokenRecord(prompt_ids=(), response_ids=(), logprobs=(), versions=())
    told_in_part = replace(TOKENS, logprobs=(None, -1.0))
    talk.turn("t1", tokens=untold)
    talk.turn("t2", [user("Too long.")], parent="t1", tokens=told_in_part)
    talk.turn("t3", [user("Good.")], parent="t2")
    talk.turn("t4", [user("Go on.")], parent="t3", tokens=untold)
    settle(store, upstream)
    assert [state_of(store, turn) for turn in ("t1", "t2", "t3", "t4")] == [JUDGING, JUDGING, JUDGING, AWAITING]
    for turn_id, score in (("t1", -1.0), ("t2", 0.0), ("t3", 1.0)):
        store.turns.record_judgement(make_judgement(turn_id, score, hint="Be short."))
    settle(store, upstream)
    assert state_of(store, "t1") == excluded("missing_token_ids")
    assert state_of(store, "t2") == excluded("missing_logprobs")
    assert state_of(store, "t3") == (SAMPLED if training else excluded("not_training"))
    check_sums(store)
