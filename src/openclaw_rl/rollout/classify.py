"""Whether a served turn can be trained at all, decided before anybody waits for its feedback.

One table of checks; the first that holds gives the reason. What is decided here needs nothing but the turn itself,
so a turn that passes only lacks a next state and a judgement. Two things are known to the gateway alone, and it
records such turns as excluded: that another version than the one in service was asked for by name, and that the
engine's own count of tokens differs from the ids it sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.rollout.samples import USES_HINT
from openclaw_rl.types import ExclusionReason, FinishReason, Method, Turn, TurnType

BASE_NAME = "base"
"""The model name by which a client asks for the untrained base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """`holds(turn, policy_name)` is true where the turn is excluded for `reason`."""

    reason: ExclusionReason
    holds: Callable[[Turn, str], bool]


NOT_TOLD = frozenset({ExclusionReason.MISSING_TOKEN_IDS, ExclusionReason.MISSING_LOGPROBS})
"""What an upstream may leave out of every answer: such turns are judged and shown, and excluded only then."""


def tokens_at_fault(turn: Turn) -> ExclusionReason | None:
    """The reason why the tokens of `turn` cannot be trained, or None.

    An answer that says something had tokens: where there are none, they were not told.
    """
    reason = turn.tokens.untrainable_reason(reconstructed=turn.reconstructed)
    says_something = bool(turn.answer.get("content") or turn.answer.get("tool_calls"))
    if reason is ExclusionReason.EMPTY_RESPONSE and says_something:
        return ExclusionReason.MISSING_TOKEN_IDS
    return reason


def _tokens_fail_for(reason: ExclusionReason) -> Check:
    """A check that leaves the verdict on the tokens to `TokenRecord`, where samples are refused by the same rule."""

    def holds(turn: Turn, _policy: str) -> bool:
        return tokens_at_fault(turn) is reason

    return Check(reason=reason, holds=holds)


CHECKS: tuple[Check, ...] = (
    Check(
        reason=ExclusionReason.SIDE_TURN,
        holds=lambda turn, _policy: turn.request.turn_type is TurnType.SIDE,
    ),
    Check(
        reason=ExclusionReason.NOT_FROM_POLICY,
        holds=lambda turn, policy: turn.request.model == BASE_NAME != policy,
    ),
    Check(
        reason=ExclusionReason.AMBIGUOUS_PARENT,
        holds=lambda turn, _policy: turn.request.ambiguous,
    ),
    # Before the checks of tokens: an answer that was cut off may have none, and this is the better reason.
    Check(
        reason=ExclusionReason.ABORTED,
        holds=lambda turn, _policy: turn.finish_reason is FinishReason.ABORT,
    ),
    _tokens_fail_for(ExclusionReason.EMPTY_RESPONSE),
    _tokens_fail_for(ExclusionReason.MISSING_TOKEN_IDS),
    _tokens_fail_for(ExclusionReason.MISSING_LOGPROBS),
    _tokens_fail_for(ExclusionReason.NONFINITE_LOGPROBS),
    Check(
        reason=ExclusionReason.GREEDY,
        holds=lambda turn, _policy: turn.sampling.greedy,
    ),
    # Under top-p or top-k the trainer has to renormalise over the tokens that were kept, and so has to know them.
    Check(
        reason=ExclusionReason.TRUNCATED_SUPPORT,
        holds=lambda turn, _policy: (
            turn.sampling.truncated and not turn.reconstructed and not turn.tokens.kept_sets_known
        ),
    ),
)


def exclusion_of(turn: Turn, *, policy_name: str, method: Method | None = None) -> ExclusionReason | None:
    """Why `turn` cannot be trained, or None if it may wait for its next state.

    `policy_name` is the model name under which the serving policy answers (`model.served_name`). A `method` that
    knows only rewards has no use for a reconstructed turn; it is not even judged.
    """
    if turn.reconstructed and method is not None and method not in USES_HINT:
        return ExclusionReason.RECONSTRUCTED
    return next((check.reason for check in CHECKS if check.holds(turn, policy_name)), None)
