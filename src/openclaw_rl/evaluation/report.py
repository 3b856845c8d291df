"""The figures of one run, for programs. Every key is always there; null means unknown, never zero."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoReport:
    """What a run of the demo came to.

    The first block is what other programs rely on. Scores are shares of the held-out questions, gaps are in
    milliseconds, `seconds` counts from the start of the command to the last score.
    """

    interactions: int
    answers: int
    updates: int
    seconds: float
    peak_memory_gib: float
    score_before: float | None
    score_after: float | None
    topical_before: float | None
    topical_after: float | None
    good_and_topical_after: float | None
    quality_nats_below_told_base: float | None
    judge_agreement: float | None
    refused_requests: int
    broken_streams: int
    lost_turns: int
    max_token_gap_ms_during_publish: float | None
    max_token_gap_ms_during_step: float | None
    max_token_gap_ms_otherwise: float | None
    method: str
    model: str
    seed: int
    checkpoint: str | None

    preference: str
    form_only: bool
    held_out_questions: int
    good_and_topical_before: float | None
    told_base_score: float | None
    told_base_topical: float | None
    told_base_nats_per_token: float | None
    policy_nats_per_token: float | None
    answers_by_attempt: Mapping[str, int]
    judged: Mapping[str, int]
    samples_by_state: Mapping[str, int]
    turns_by_state: Mapping[str, int]
    excluded_by_reason: Mapping[str, int]
    counters: Mapping[str, int]
    hints: int
    refused_versions: Mapping[str, str]
    """Versions that the gate, or the engine, refused, and why."""
    nats_below_told_base_by_version: Mapping[str, float]
    """The gate's own reading of each version, on a few answers to questions of the batch."""
    publishes: int
    publishes_with_open_stream: int
    token_gaps_counted: Mapping[str, int]
    median_first_token_ms: float | None
    preference_score_by_quarter: tuple[float | None, ...]
    restarts: Mapping[str, int]
    version_after: str | None
    """The version whose answers the scores after, and `checkpoint`, are of; null where the run did not get there."""
    version_at_end: str
    """The version in service when the run was over."""
    settled: bool
    """Whether all that could be learned was, before the questions were asked again."""
    settle_waited_s: float | None
    settle_standstill_s: float | None
    """How long that was waited for, and for how long at the end of the wait nothing had gone forward."""
    still_pending: tuple[str, ...]
    """What was on its way when the wait was given up."""
    run_dir: str
    plot: str | None
    phases_s: Mapping[str, float]
    sample_answers: tuple[Mapping[str, Any], ...] = field(default=())

    def as_json(self) -> str:
        """JSON with rounded figures; a figure that is not finite is null."""
        return json.dumps(_rounded(asdict(self)), indent=2, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the JSON, creating the directory if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.as_json(), encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Four decimals for floats, null for what is not finite, all the way down."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
