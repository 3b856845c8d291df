from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.types import (
    SAMPLE_TRANSITIONS,
    TURN_TRANSITIONS,
    VERSION_TRANSITIONS,
    ExclusionReason,
    FinishReason,
    InvalidTransition,
    JudgementOutcome,
    PolicyVersion,
    RetryDemonstration,
    Sample,
    SampleState,
    SamplingParams,
    TokenRecord,
    TurnState,
    VersionState,
    check_transition,
)
from tests.builders import SAMPLING, TOKENS, make_judgement, make_request, make_turn, user

TABLES: list[Any] = [
    pytest.param(TurnState, TURN_TRANSITIONS, TurnState.SERVED, id="turn"),
    pytest.param(SampleState, SAMPLE_TRANSITIONS, SampleState.READY, id="sample"),
    pytest.param(VersionState, VERSION_TRANSITIONS, VersionState.CANDIDATE, id="version"),
]

# The design's sentence on states, written out once more by hand.
EXPECTED = {
    "turn": {
        ("served", "awaiting_next_state"),
        ("served", "excluded"),
        ("awaiting_next_state", "judging"),
        ("awaiting_next_state", "excluded"),
        ("judging", "sampled"),
        ("judging", "excluded"),
        ("excluded", "judging"),
        ("sampled", "judging"),
    },
    "sample": {
        ("ready", "claimed"),
        ("ready", "expired"),
        ("claimed", "trained"),
        ("claimed", "rejected"),
        ("claimed", "ready"),
    },
    "version": {
        ("candidate", "serving"),
        ("candidate", "rejected"),
        ("serving", "retired"),
        ("retired", "serving"),
    },
}


@pytest.mark.parametrize(("states", "table", "start"), TABLES)
def test_every_state_is_in_its_table_and_reachable(states: type[StrEnum], table: Any, start: StrEnum) -> None:
    assert set(table) == set(states)
    reached, frontier = {start}, {start}
    while frontier:
        frontier = {new for old in frontier for new in table[old]} - reached
        reached |= frontier
    assert reached == set(states)


@pytest.mark.parametrize(("table", "name"), [(p.values[1], p.id) for p in TABLES])
def test_tables_hold_exactly_the_changes_of_the_design(table: Any, name: str) -> None:
    assert {(old.value, new.value) for old in table for new in table[old]} == EXPECTED[name]


@given(data=st.data(), which=st.sampled_from(["turn", "sample", "version"]))
def test_no_walk_leaves_the_table(data: st.DataObject, which: str) -> None:
    states, table, state = next(p.values for p in TABLES if p.id == which)
    for wanted in data.draw(st.lists(st.sampled_from(list(states)), max_size=12)):
        if (state.value, wanted.value) in EXPECTED[which]:
            state = check_transition(table, state, wanted)
            assert state is wanted
        else:
            with pytest.raises(InvalidTransition, match=wanted.value):
                check_transition(table, state, wanted)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (TOKENS, None),
        (
            TokenRecord(prompt_ids=(1,), response_ids=(), logprobs=(), versions=()),
            ExclusionReason.EMPTY_RESPONSE,
        ),
        (
            TokenRecord(prompt_ids=(), response_ids=(1,), logprobs=(-1.0,), versions=(0,)),
            ExclusionReason.MISSING_TOKEN_IDS,
        ),
        (
            TokenRecord(prompt_ids=(1,), response_ids=(1, 2), logprobs=(-1.0, None), versions=(0, 0)),
            ExclusionReason.MISSING_LOGPROBS,
        ),
        (
            TokenRecord(prompt_ids=(1,), response_ids=(1,), logprobs=(math.nan,), versions=(0,)),
            ExclusionReason.NONFINITE_LOGPROBS,
        ),
        (
            TokenRecord(prompt_ids=(1,), response_ids=(1,), logprobs=(-math.inf,), versions=(0,)),
            ExclusionReason.NONFINITE_LOGPROBS,
        ),
        (TokenRecord(prompt_ids=(1,), response_ids=(1,), logprobs=(0.0,), versions=(0,)), None),
    ],
)
def test_tokens_say_why_they_cannot_be_trained(tokens: TokenRecord, reason: ExclusionReason | None) -> None:
    assert tokens.untrainable_reason() is reason


def test_token_arrays_have_one_length() -> None:
    with pytest.raises(ValueError, match="one length"):
        TokenRecord(prompt_ids=(1,), response_ids=(1, 2), logprobs=(-1.0,), versions=(0, 0))


@pytest.mark.parametrize(
    "values",
    [{"temperature": -0.1}, {"temperature": 2.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"max_tokens": 0}],
)
def test_sampling_refuses_what_no_engine_could_do(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        SamplingParams(**{"max_tokens": 1, **values})


def test_a_request_needs_messages_and_a_parent_for_new_ones() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        make_request(messages=())
    with pytest.raises(ValueError, match="parent"):
        make_request(new_messages=(user("no"),))


def test_a_turn_has_a_reason_exactly_when_excluded() -> None:
    with pytest.raises(ValueError, match="reason"):
        make_turn(state=TurnState.EXCLUDED)
    with pytest.raises(ValueError, match="reason"):
        make_turn(reason=ExclusionReason.GREEDY)
    turn = make_turn("t9", state=TurnState.EXCLUDED, reason=ExclusionReason.GREEDY)
    assert (turn.turn_id, turn.reason) == ("t9", ExclusionReason.GREEDY)


@pytest.mark.parametrize("outcome", [o for o in JudgementOutcome if o is not JudgementOutcome.SCORED])
def test_only_a_scored_judgement_has_a_score(outcome: JudgementOutcome) -> None:
    assert make_judgement(outcome=outcome).score is None
    with pytest.raises(ValueError, match="score goes with"):
        make_judgement(score=None)


@pytest.mark.parametrize("score", [1.01, -1.01, math.nan])
def test_scores_lie_between_minus_one_and_one(score: float) -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        make_judgement(score=score)


def test_a_hint_is_text() -> None:
    with pytest.raises(ValueError, match="hint"):
        make_judgement(hint="  ")


def _sample(**values: Any) -> Sample:
    defaults: dict[str, Any] = {
        "turn_id": "t1",
        "session_id": "s",
        "messages": (user("hi"),),
        "tools": (),
        "tokens": TOKENS,
        "sampling": SAMPLING,
        "finish_reason": FinishReason.STOP,
        "reward": 1.0,
        "hint": None,
        "created_at": 0.0,
    }
    return Sample(**{**defaults, **values})


def test_a_sample_has_a_signal_and_trainable_tokens() -> None:
    assert _sample().logprobs == (-0.5, -1.25)
    with pytest.raises(ValueError, match="a reward, a hint or a retry"):
        _sample(reward=None)
    bad = TokenRecord(prompt_ids=(1,), response_ids=(1,), logprobs=(None,), versions=(0,))
    with pytest.raises(ValueError, match="missing_logprobs"):
        _sample(tokens=bad)


def test_a_retry_is_a_signal_and_rides_on_the_accepted_turn() -> None:
    retry = RetryDemonstration(turn_id="t1", response_ids=(7, 8), prompt_turn_id="t0", prompt_ids=(1,))
    assert _sample(reward=None, retry=retry).retry is retry
    with pytest.raises(ValueError, match="rides on"):
        _sample(turn_id="t2", retry=retry)
    with pytest.raises(ValueError, match="another turn"):
        RetryDemonstration(turn_id="t1", response_ids=(7,), prompt_turn_id="t1", prompt_ids=(1,))
    with pytest.raises(ValueError, match="a prompt and a response"):
        RetryDemonstration(turn_id="t1", response_ids=(), prompt_turn_id="t0", prompt_ids=(1,))


def test_version_names_are_of_their_own() -> None:
    version = PolicyVersion(version=12, state=VersionState.CANDIDATE, path="p", step=12, created_at=0.0)
    base = PolicyVersion(version=0, state=VersionState.SERVING, path=None, step=0, created_at=0.0)
    assert (version.name, base.name) == ("policy-v12", "base")
