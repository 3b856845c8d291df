from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openclaw_rl.rollout.classify import CHECKS, exclusion_of
from openclaw_rl.types import ExclusionReason, FinishReason, SamplingParams, TokenRecord, Turn, TurnType
from tests.builders import POLICY, SAMPLING, TOKENS, make_request, make_turn

NO_TOKENS = TokenRecord(prompt_ids=(1,), response_ids=(), logprobs=(), versions=())


def _turn(reason: ExclusionReason) -> Turn:
    """A turn that is trainable but for one thing."""
    requests: dict[ExclusionReason, dict[str, Any]] = {
        ExclusionReason.SIDE_TURN: {"turn_type": TurnType.SIDE},
        ExclusionReason.NOT_FROM_POLICY: {"model": "base"},
        ExclusionReason.AMBIGUOUS_PARENT: {"ambiguous": True},
    }
    turns: dict[ExclusionReason, dict[str, Any]] = {
        ExclusionReason.ABORTED: {"finish_reason": FinishReason.ABORT, "tokens": NO_TOKENS},
        ExclusionReason.EMPTY_RESPONSE: {"tokens": NO_TOKENS, "answer": {"role": "assistant", "content": ""}},
        ExclusionReason.MISSING_TOKEN_IDS: {"tokens": replace(TOKENS, prompt_ids=())},
        ExclusionReason.MISSING_LOGPROBS: {"tokens": replace(TOKENS, logprobs=(-0.5, None))},
        ExclusionReason.NONFINITE_LOGPROBS: {"tokens": replace(TOKENS, logprobs=(-0.5, float("nan")))},
        ExclusionReason.GREEDY: {"sampling": replace(SAMPLING, temperature=0.009)},
        ExclusionReason.TRUNCATED_SUPPORT: {"sampling": replace(SAMPLING, top_p=0.99)},
    }
    return make_turn(request=make_request(**requests.get(reason, {})), **turns.get(reason, {}))


def test_a_plain_turn_may_be_trained() -> None:
    assert exclusion_of(make_turn(), policy_name=POLICY) is None
    cut_off = make_turn(finish_reason=FinishReason.LENGTH, tokens=TOKENS)
    assert exclusion_of(cut_off, policy_name=POLICY) is None
    by_version = make_turn(request=make_request(model="policy-v3"))
    assert exclusion_of(by_version, policy_name=POLICY) is None, "the gateway excludes a version out of service"
    named_base = make_turn(request=make_request(model="base"))
    assert exclusion_of(named_base, policy_name="base") is None, "here `base` is the policy's own name"


def test_an_answer_that_says_something_had_tokens_that_were_not_told() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    for answer in ({"role": "assistant", "content": "Yes."}, call):
        turn = make_turn(tokens=NO_TOKENS, answer=answer)
        assert exclusion_of(turn, policy_name=POLICY) is ExclusionReason.MISSING_TOKEN_IDS


@pytest.mark.parametrize("sampling", [replace(SAMPLING, top_p=0.9), replace(SAMPLING, top_k=40)])
def test_truncated_sampling_is_trained_where_every_kept_set_is_known(sampling: SamplingParams) -> None:
    known = replace(TOKENS, kept=((7, 1), (2, 8)))
    assert exclusion_of(make_turn(tokens=known, sampling=sampling), policy_name=POLICY) is None
    for kept in (None, ((7,), None), ((7, 1), (2, 3))):
        turn = make_turn(tokens=replace(TOKENS, kept=kept), sampling=sampling)
        assert exclusion_of(turn, policy_name=POLICY) is ExclusionReason.TRUNCATED_SUPPORT


@pytest.mark.parametrize("reason", [check.reason for check in CHECKS])
def test_each_check_gives_its_own_reason(reason: ExclusionReason) -> None:
    assert exclusion_of(_turn(reason), policy_name=POLICY) is reason


def test_every_reason_that_needs_no_feedback_is_checked_once() -> None:
    after_feedback = {
        ExclusionReason.NO_NEXT_STATE,
        ExclusionReason.JUDGE_FAILED,
        ExclusionReason.JUDGE_TIE,
        ExclusionReason.TOO_FEW_VALID_VOTES,
        ExclusionReason.NO_SIGNAL,
    }
    by_the_gateway = {
        ExclusionReason.TOKEN_COUNT_MISMATCH,
        ExclusionReason.NOT_DELIVERED,
        ExclusionReason.NO_OWNER,
    }
    imported = {ExclusionReason.RECONSTRUCTED, ExclusionReason.NOT_TRAINABLE}
    judged_only = {ExclusionReason.NOT_TRAINING}
    by_the_driver = {ExclusionReason.ROLLOUT_FAILED, ExclusionReason.ROLLOUT_DROPPED}
    elsewhere = after_feedback | by_the_gateway | by_the_driver | imported | judged_only
    reasons = [check.reason for check in CHECKS]
    assert len(reasons) == len(set(reasons))
    assert set(reasons) == set(ExclusionReason) - elsewhere


def test_the_first_check_that_holds_gives_the_reason() -> None:
    request = make_request(turn_type=TurnType.SIDE, model="base")
    turn = make_turn(request=request, tokens=NO_TOKENS, sampling=replace(SAMPLING, temperature=0.0))
    assert exclusion_of(turn, policy_name=POLICY) is ExclusionReason.SIDE_TURN
