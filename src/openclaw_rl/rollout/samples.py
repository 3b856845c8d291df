"""A judged turn becomes a sample, or is excluded for a reason: the dispatch table of the methods.

    what there is          binary_rl        opd              combine
    score ≠ 0 and hint     reward           hint             reward and hint
    hint only              excluded         hint             hint
    score ≠ 0 only         reward           excluded         reward
    neither                excluded         excluded         excluded

Null is not zero: no score, a failed judge, a tie and a score of 0 are told apart by the reason, and none of them is
ever a reward. A hint counts whatever became of the score.
"""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.types import (
    ENVIRONMENT,
    ExclusionReason,
    Judgement,
    JudgementOutcome,
    Method,
    RetryDemonstration,
    Sample,
    Turn,
)

USES_REWARD = frozenset({Method.BINARY_RL, Method.COMBINE})
USES_HINT = frozenset({Method.OPD, Method.COMBINE})

REASON_WITHOUT_SIGNAL: Mapping[JudgementOutcome, ExclusionReason] = {
    JudgementOutcome.SCORED: ExclusionReason.NO_SIGNAL,
    JudgementOutcome.TIE: ExclusionReason.JUDGE_TIE,
    JudgementOutcome.TOO_FEW_VALID: ExclusionReason.TOO_FEW_VALID_VOTES,
    JudgementOutcome.ABSENT: ExclusionReason.NO_SIGNAL,
    JudgementOutcome.FAILED: ExclusionReason.JUDGE_FAILED,
}
"""Why a judged turn without a signal is excluded. NO_SIGNAL: the judge did its work, and there is no score, or none
that the method has a use for."""


def reward_of(judgement: Judgement, method: Method) -> float | None:
    """The reward that `method` takes from a judgement, in [-1, 1] without 0, or None: a score of 0 gives no term."""
    if method not in USES_REWARD or not judgement.score:
        return None
    return judgement.score


def zero_counts(judgement: Judgement, method: Method) -> bool:
    """Whether it is an environment's reward of exactly 0: of a rollout, which is compared with others of its task."""
    return method in USES_REWARD and judgement.kind == ENVIRONMENT and judgement.score == 0.0


def hints_of(judgement: Judgement, method: Method) -> tuple[str, ...]:
    """The hint candidates that `method` takes from a judgement, whatever its outcome."""
    return judgement.hints if method in USES_HINT else ()


def build_sample(
    turn: Turn, judgement: Judgement, method: Method, *, retry: RetryDemonstration | None = None, now: float
) -> Sample | ExclusionReason:
    """The sample that `turn` becomes by `judgement` under `method`, or the reason why it becomes none.

    An accepted `retry` is a signal by itself. A reconstructed turn is distilled from only: a hint is its one signal,
    and a score by itself gives RECONSTRUCTED. `now` (seconds since the epoch) is when the sample starts to wait.

    Raises:
        ValueError: if the judgement is of another turn, or the tokens cannot be trained (`classify` sees to that).
    """
    if judgement.turn_id != turn.turn_id:
        raise ValueError(f"the judgement of turn {judgement.turn_id} says nothing about turn {turn.turn_id}")
    reward = reward_of(judgement, method)
    hints = hints_of(judgement, method)
    if turn.reconstructed:
        if not hints and reward is not None:
            return ExclusionReason.RECONSTRUCTED
        reward, retry = None, None
    if reward is None and not hints and retry is None:
        return REASON_WITHOUT_SIGNAL[judgement.outcome]
    return _sample(turn, reward=reward, hints=hints, retry=retry, now=now)


def kept_sample(turn: Turn, *, now: float) -> Sample:
    """The sample of `rollout.at_least_one`: a reward of 0, which fills a place in a batch.

    Without a baseline its policy gradient is 0; a running baseline makes it what it is worth against the average.
    """
    return _sample(turn, reward=0.0, hints=(), retry=None, now=now)


def _sample(
    turn: Turn, *, reward: float | None, hints: tuple[str, ...], retry: RetryDemonstration | None, now: float
) -> Sample:
    return Sample(
        turn_id=turn.turn_id,
        session_id=turn.request.session_id,
        messages=turn.request.messages,
        tools=turn.request.tools,
        tokens=turn.tokens,
        sampling=turn.sampling,
        finish_reason=turn.finish_reason,
        reward=reward,
        hint=hints[0] if hints else None,
        alternatives=hints[1:],
        retry=retry,
        reconstructed=turn.reconstructed,
        created_at=now,
    )
