from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from openclaw_rl.store import Store
from openclaw_rl.store.rows import Fingerprint
from openclaw_rl.types import (
    TURN_TRANSITIONS,
    ExclusionReason,
    InvalidTransition,
    JudgementOutcome,
    TokenRecord,
    TurnState,
)
from tests.builders import (
    TOKENS,
    Conversation,
    make_judgement,
    make_request,
    make_turn,
    state_of,
    tool,
    user,
)
from tests.store.helpers import to_judging


def test_a_turn_comes_back_as_it_went_in(store: Store) -> None:
    odd = replace(TOKENS, logprobs=(None, -1.25), versions=(0, 3))
    request = make_request("t1", tools=({"type": "function"},), messages=(user("hé"), tool("4")), session_done=True)
    turn = make_turn(request=request, tokens=odd)
    store.turns.record_request(request)
    store.turns.record_turn(turn, context_hash="h")
    assert store.turns.get("t1") == turn
    assert store.turns.of_session("s") == [turn]
    assert store.turns.in_state(TurnState.SERVED) == [turn]
    assert store.turns.get("t2") is None


def test_a_request_is_answered_once(store: Store) -> None:
    talk = Conversation(store)
    request = talk.ask("t1")
    talk.answer(request)
    with pytest.raises(IntegrityError):
        talk.answer(request)
    assert store.status.counts().counters["turns_served"] == 1


def test_a_turn_needs_its_request(store: Store) -> None:
    with pytest.raises(IntegrityError):
        store.turns.record_turn(make_turn("t1"), context_hash="h")
    assert store.status.counts().turns_by_state == {}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(walk=st.lists(st.sampled_from(list(TurnState)), max_size=8))
def test_no_walk_through_the_store_leaves_the_table(store: Store, walk: list[TurnState]) -> None:
    turn_id = f"t{time.time_ns()}"
    Conversation(store).turn(turn_id)
    state = TurnState.SERVED
    for wanted in walk:
        reason = ExclusionReason.GREEDY if wanted is TurnState.EXCLUDED else None
        if wanted in TURN_TRANSITIONS[state]:
            store.turns.move(turn_id, wanted, reason=reason)
            state = wanted
        else:
            with pytest.raises(InvalidTransition):
                store.turns.move(turn_id, wanted, reason=reason)
        assert state_of(store, turn_id)[0] is state
        assert (state_of(store, turn_id)[1] is not None) == (state is TurnState.EXCLUDED)


def test_a_reason_goes_with_excluded_only_and_nothing_moves_without(store: Store) -> None:
    Conversation(store).turn("t1")
    with pytest.raises(ValueError, match="reason"):
        store.turns.move("t1", TurnState.EXCLUDED)
    with pytest.raises(ValueError, match="reason"):
        store.turns.move("t1", TurnState.AWAITING_NEXT_STATE, reason=ExclusionReason.GREEDY)
    assert state_of(store, "t1") == (TurnState.SERVED, None)


def test_a_failure_is_counted_once_and_never_after_an_answer(store: Store) -> None:
    talk = Conversation(store)
    talk.ask("t1")
    talk.turn("t2")
    store.turns.record_failure("t1", status="failed", error="engine_error")
    store.turns.record_failure("t1", status="cancelled", error="client")
    store.turns.record_failure("t2", status="cancelled", error="client")
    counters = store.status.counts().counters
    assert counters["requests_failed"] == 1
    assert "requests_cancelled" not in counters
    with pytest.raises(ValueError, match="failed or cancelled"):
        store.turns.record_failure("t1", status="lost", error="")


def test_parents_are_found_by_hash_within_one_key(store: Store) -> None:
    talk = Conversation(store)
    talk.turn("t1")
    talk.turn("t2")
    other = make_request("t3", key_id="other", session_id="other")
    store.turns.record_request(other)
    store.turns.record_turn(make_turn(request=other), context_hash="hash-t1")
    found = store.turns.find_parents("k", ["hash-t1", "hash-t2", "nowhere"])
    assert [candidate.turn_id for candidate in found] == ["t2", "t1"]
    assert store.turns.find_parents("k", []) == []


def test_a_claimed_turn_is_not_claimed_again_until_its_lease_ends(store: Store) -> None:
    to_judging(store, "t1", "t2")
    (first,) = store.turns.claim_for_judging(1, lease_s=60.0)
    assert (first[0].turn_id, first[1]) == ("t1", 0)
    assert [turn.turn_id for turn, _ in store.turns.claim_for_judging(8, lease_s=0.05)] == ["t2"]
    assert store.turns.claim_for_judging(8, lease_s=60.0) == []
    time.sleep(0.1)
    assert [(turn.turn_id, tries) for turn, tries in store.turns.claim_for_judging(8, lease_s=60.0)] == [("t2", 1)]


def test_a_released_turn_waits_for_its_pause(store: Store) -> None:
    to_judging(store, "t1")
    store.turns.claim_for_judging(1, lease_s=60.0)
    store.turns.release_from_judging("t1", retry_in_s=0.05)
    assert store.turns.claim_for_judging(1, lease_s=60.0) == []
    time.sleep(0.1)
    assert [tries for _, tries in store.turns.claim_for_judging(1, lease_s=60.0)] == [1]
    assert store.status.counts().counters["judge_retries"] == 1


def test_a_judged_turn_is_not_claimed_and_its_latest_judgement_counts(store: Store) -> None:
    to_judging(store, "t1", "t2")
    store.turns.record_judgement(make_judgement("t1", outcome=JudgementOutcome.TIE))
    time.sleep(0.01)
    store.turns.record_judgement(make_judgement("t1", -1.0))
    assert [turn.turn_id for turn, _ in store.turns.claim_for_judging(8, lease_s=60.0)] == ["t2"]
    ((turn, judgement),) = store.turns.judged()
    assert (turn.turn_id, judgement.score) == ("t1", -1.0)
    assert len(store.turns.judgements()) == 2
    assert store.status.counts().counters["judgements_tie"] == 1


def test_an_old_judgement_does_not_settle_a_turn_that_came_back(store: Store) -> None:
    to_judging(store, "t1")
    store.turns.record_judgement(make_judgement("t1", outcome=JudgementOutcome.FAILED))
    store.turns.move("t1", TurnState.EXCLUDED, reason=ExclusionReason.JUDGE_FAILED)
    time.sleep(0.01)
    store.turns.set_next_state("t1", "t2", [user("Once more: no.")])
    assert store.turns.judged() == []
    assert [(turn.turn_id, tries) for turn, tries in store.turns.claim_for_judging(8, 60.0)] == [("t1", 0)]


def test_an_exchange_is_a_turn_and_what_followed(store: Store) -> None:
    assert store.turns.exchange("t1") is None
    Conversation(store).turn("t1")
    plain = store.turns.exchange("t1")
    assert plain is not None
    assert (plain.next_turn_id, plain.judgement) == (None, None)
    store.turns.move("t1", TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state("t1", "t2", [user("No.")])
    store.turns.record_judgement(make_judgement("t1", 1.0))
    store.turns.record_judgement(make_judgement("t1", -1.0))
    exchange = store.turns.exchange("t1")
    assert exchange is not None
    assert exchange.turn == store.turns.get("t1")
    assert exchange.next_turn_id == "t2"
    assert exchange.judgement is not None
    assert exchange.judgement.score == -1.0


def test_answer_whose_end_did_not_arrive_is_undelivered_and_lives_on_until_it_is_retried(store: Store) -> None:
    talk = Conversation(store)
    talk.turn("t1")
    store.turns.move("t1", TurnState.AWAITING_NEXT_STATE)
    store.turns.record_failure("t1", status="cancelled", error="client_gone")
    assert state_of(store, "t1") == (TurnState.AWAITING_NEXT_STATE, None)
    counters = store.status.counts().counters
    assert (counters["requests_undelivered"], counters.get("requests_cancelled")) == (1, None)
    talk.ask("t2", retry_of="t1")
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "not_delivered")


def test_answer_that_comes_after_it_was_retried_is_not_delivered(store: Store) -> None:
    talk = Conversation(store)
    slow = talk.ask("t1")
    talk.turn("t2", retry_of="t1")
    talk.answer(slow)
    assert state_of(store, "t1") == (TurnState.EXCLUDED, "not_delivered")
    assert state_of(store, "t2") == (TurnState.SERVED, None)
    assert store.status.counts().counters["turns_excluded_not_delivered"] == 1


def test_answer_that_somebody_reacted_to_was_delivered_whatever_is_retried(store: Store) -> None:
    talk = Conversation(store)
    talk.turn("t1")
    store.turns.move("t1", TurnState.AWAITING_NEXT_STATE)
    store.turns.set_next_state("t1", "t2", [user("No.")])
    talk.ask("t3", retry_of="t1")
    assert state_of(store, "t1") == (TurnState.JUDGING, None)


def test_earlier_requests_are_found_by_their_messages(store: Store) -> None:
    prints = Fingerprint(body_hash="b", stem_hash="h", idempotency_key="i")
    for number, (session, key) in enumerate([("s", "k"), ("s", "k"), ("other", "k"), ("theirs", "k2")]):
        request = make_request(f"t{number}", session_id=session, key_id=key, created_at=float(number))
        store.turns.record_request(request, fingerprint=prints)

    def found(since: float) -> list[str]:
        return [one.turn_id for one in store.lineage.same_body("k", "b", since=since)]

    assert found(0.0) == ["t2", "t1", "t0"]
    assert found(2.0) == ["t2"]
    assert [one.turn_id for one in store.lineage.same_stem("s", "h")] == ["t1", "t0"]
    assert store.lineage.same_stem("s", "x") == store.lineage.same_body("k", "x", since=0.0) == []
    assert store.lineage.same_stem("s", "h")[0].idempotency_key == "i"


def test_kept_sets_come_back_with_the_turn(store: Store) -> None:
    talk = Conversation(store)
    kept = ((7, 1), None)
    talk.turn("t1", tokens=replace(TOKENS, kept=kept))
    talk.turn("t2")
    found = [store.turns.get(turn_id) for turn_id in ("t1", "t2")]
    assert [turn and turn.tokens.kept for turn in found] == [kept, None]


def test_prompts_that_extend_their_parents_tokens_are_one_chain(store: Store) -> None:
    def tokens(*prompt: int) -> TokenRecord:
        return replace(TOKENS, prompt_ids=prompt)  # the response is 7, 8

    talk = Conversation(store)
    talk.turn("t1", tokens=tokens(1, 2))
    talk.turn("t2", [user("a")], parent="t1", tokens=tokens(1, 2, 7, 8, 5))
    talk.turn("t3", [user("b")], parent="t2", tokens=tokens(1, 2, 7, 8, 5, 7, 8, 6))
    talk.turn("t4", [user("c")], parent="t3", tokens=tokens(1, 2, 9))
    talk.turn("t5", [user("d")], parent="t4", tokens=tokens(1, 2, 9, 7, 8))
    talk.turn("t6", [user("e")], parent="t1", tokens=tokens(1, 2, 7))
    assert store.turns.chains("s") == {"t1": ["t1", "t2", "t3"], "t4": ["t4", "t5"], "t6": ["t6"]}
    counters = store.status.counts().counters
    assert (counters["prompts_extending_parent"], counters["prompts_breaking_chain"]) == (3, 2)


def test_a_clock_that_is_set_back_does_not_hide_a_judgement(store: Store) -> None:
    to_judging(store, "t1")
    store.turns.record_judgement(replace(make_judgement("t1"), created_at=time.time() - 3600))
    assert store.turns.claim_for_judging(1, 60.0) == []
    assert [turn.turn_id for turn, _ in store.turns.judged()] == ["t1"]
