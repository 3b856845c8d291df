"""What a user did instead of answering, as a weighted addition to a score. All weights are 0 unless set otherwise."""

from __future__ import annotations

import time
from dataclasses import replace

from openclaw_rl.config import SignalWeights
from openclaw_rl.types import Judgement, JudgementOutcome, Turn

BY_SIGNALS = "signals"
"""The kind of a judgement that rests on signals alone."""


def addition(turn: Turn, weights: SignalWeights) -> float:
    """The sum of the weights of the kinds of signals that this turn has, each kind once."""
    return float(sum(getattr(weights, kind) for kind in {signal.kind.value for signal in turn.signals}))


def weighed(judgement: Judgement, turn: Turn, weights: SignalWeights) -> Judgement:
    """The judgement with what the signals add to its score, within [-1, 1]; no score stays none."""
    if not turn.signals:
        return judgement
    details = {**judgement.details, "signals": sorted({signal.kind.value for signal in turn.signals})}
    added = addition(turn, weights)
    if judgement.score is None or not added:
        return replace(judgement, details=details)
    return replace(judgement, score=max(-1.0, min(1.0, judgement.score + added)), details=details)


def by_signals_alone(turn: Turn, weights: SignalWeights) -> Judgement:
    """The judgement of a turn that nobody reacted to in words."""
    return Judgement(
        turn_id=turn.turn_id,
        kind=BY_SIGNALS,
        outcome=JudgementOutcome.SCORED,
        score=max(-1.0, min(1.0, addition(turn, weights))),
        hint=None,
        prompt_version=BY_SIGNALS,
        latency_s=0.0,
        details={"signals": sorted({signal.kind.value for signal in turn.signals})},
        created_at=time.time(),
    )
