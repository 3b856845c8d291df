"""The states that carriers pass through, the tables of what may follow what, and the other closed sets of words.

This module imports nothing of ours. One function applies a transition, `check_transition`; everything else asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class TurnState(StrEnum):
    """Where a turn is on its way from an answer to a sample."""

    SERVED = "served"
    AWAITING_NEXT_STATE = "awaiting_next_state"
    JUDGING = "judging"
    SAMPLED = "sampled"
    EXCLUDED = "excluded"


class SampleState(StrEnum):
    """Where a sample is on its way into a policy version."""

    READY = "ready"
    CLAIMED = "claimed"
    TRAINED = "trained"
    EXPIRED = "expired"
    REJECTED = "rejected"


class VersionState(StrEnum):
    """Where a policy version stands: not yet, now, no longer, or never in service."""

    CANDIDATE = "candidate"
    SERVING = "serving"
    RETIRED = "retired"
    REJECTED = "rejected"


TURN_TRANSITIONS: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.SERVED: frozenset({TurnState.AWAITING_NEXT_STATE, TurnState.EXCLUDED}),
    TurnState.AWAITING_NEXT_STATE: frozenset({TurnState.JUDGING, TurnState.EXCLUDED}),
    TurnState.JUDGING: frozenset({TurnState.SAMPLED, TurnState.EXCLUDED}),
    # Feedback or a next state came while the sample waited: it is withdrawn, and the turn judged anew.
    TurnState.SAMPLED: frozenset({TurnState.JUDGING}),
    # Feedback or a next state may come after the session seemed over.
    TurnState.EXCLUDED: frozenset({TurnState.JUDGING}),
}

SAMPLE_TRANSITIONS: Mapping[SampleState, frozenset[SampleState]] = {
    SampleState.READY: frozenset({SampleState.CLAIMED, SampleState.EXPIRED}),
    # Back to ready when the lease of a dead trainer runs out.
    SampleState.CLAIMED: frozenset({SampleState.TRAINED, SampleState.REJECTED, SampleState.READY}),
    SampleState.TRAINED: frozenset(),
    SampleState.EXPIRED: frozenset(),
    SampleState.REJECTED: frozenset(),
}

VERSION_TRANSITIONS: Mapping[VersionState, frozenset[VersionState]] = {
    VersionState.CANDIDATE: frozenset({VersionState.SERVING, VersionState.REJECTED}),
    VersionState.SERVING: frozenset({VersionState.RETIRED}),
    VersionState.RETIRED: frozenset({VersionState.SERVING}),
    VersionState.REJECTED: frozenset(),
}


S = TypeVar("S", bound=StrEnum)


class InvalidTransition(ValueError):
    """A state change that its table does not hold."""


def check_transition(table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """Return `new` if `table` allows `old` → `new`; the one place where that is decided.

    Raises:
        InvalidTransition: if the table does not hold the change.
    """
    if new not in table[old]:
        allowed = ", ".join(sorted(table[old])) or "nothing (final)"
        raise InvalidTransition(f"{type(old).__name__}: {old} may become {allowed}, not {new}")
    return new


# --- vocabulary --------------------------------------------------------------------------------------------


class TurnType(StrEnum):
    """`main` turns are the user's own; `side` turns (housekeeping of the client) are served, never trained."""

    MAIN = "main"
    SIDE = "side"


class Method(StrEnum):
    """How judgements become gradients (design: "The methods")."""

    BINARY_RL = "binary_rl"
    OPD = "opd"
    COMBINE = "combine"


class ExclusionReason(StrEnum):
    """Why a turn does not become a sample. Every excluded turn carries exactly one."""

    SIDE_TURN = "side_turn"
    NOT_FROM_POLICY = "not_from_policy"
    EMPTY_RESPONSE = "empty_response"
    MISSING_TOKEN_IDS = "missing_token_ids"
    MISSING_LOGPROBS = "missing_logprobs"
    NONFINITE_LOGPROBS = "nonfinite_logprobs"
    TOKEN_COUNT_MISMATCH = "token_count_mismatch"
    ABORTED = "aborted"
    GREEDY = "greedy"
    TRUNCATED_SUPPORT = "truncated_support"
    AMBIGUOUS_PARENT = "ambiguous_parent"
    NOT_DELIVERED = "not_delivered"
    NO_NEXT_STATE = "no_next_state"
    JUDGE_FAILED = "judge_failed"
    JUDGE_TIE = "judge_tie"
    TOO_FEW_VALID_VOTES = "too_few_valid_votes"
    NO_SIGNAL = "no_signal"
    RECONSTRUCTED = "reconstructed"
    NOT_TRAINABLE = "not_trainable"
    NOT_TRAINING = "not_training"
    ROLLOUT_FAILED = "rollout_failed"
    ROLLOUT_DROPPED = "rollout_dropped"


class JudgementOutcome(StrEnum):
    """How a judgement ended. Only SCORED carries a score; a score of 0 is a verdict, the others are not."""

    SCORED = "scored"
    TIE = "tie"
    TOO_FEW_VALID = "too_few_valid"
    ABSENT = "absent"
    FAILED = "failed"


class SignalKind(StrEnum):
    """What a user did instead of answering: feedback without words, as weak as a guess about people is."""

    REGENERATED = "regenerated"
    EDITED = "edited"
    ABANDONED = "abandoned"


class FinishReason(StrEnum):
    """Why generation ended, in the OpenAI words, plus ABORT for one that did not end by itself."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"


class LoopName(StrEnum):
    """The processes that `openclaw-rl up` supervises: the four loops, serving being two processes.

    The driver makes rollouts of tasks; without tasks there is none.
    """

    GATEWAY = "gateway"
    ENGINE = "engine"
    ROLLOUT = "rollout"
    JUDGING = "judging"
    TRAINING = "training"
    DRIVER = "driver"


# --- carriers ----------------------------------------------------------------------------------------------
