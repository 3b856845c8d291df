"""How long a reader waits between two tokens: while a version is published, while the trainer steps, otherwise.

Pure functions. The wait for the first token is not a gap: it depends on the queue and the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from openclaw_rl.store.status import Span

TRAINING_STEP = "training_step"
PUBLISH = "publish"


def overlaps(span: Span, start: float, end: float) -> bool:
    """Whether any moment of the span lies inside (start, end); a span that has not ended goes on for ever."""
    return span.started_at < end and (span.ended_at is None or span.ended_at > start)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenGaps:
    """The longest gap of each kind (milliseconds; None where there was none), and how many there were."""

    publish_ms: float | None
    step_ms: float | None
    otherwise_ms: float | None
    publish_count: int
    step_count: int
    otherwise_count: int


def token_gaps(streams: Iterable[Sequence[float]], spans: Iterable[Span]) -> TokenGaps:
    """Sort every gap between neighbouring chunks of a stream by what went on during it.

    A gap that overlaps a publish counts there, even if a step overlaps it too; one that overlaps only a step
    counts there.

    Args:
        streams: for each stream the arrival times (seconds) of its chunks with text, ascending.
        spans: the `training_step` and `publish` spans, in the same clock.
    """
    sorted_out = sorted_gaps(streams, spans)
    return TokenGaps(
        publish_ms=_longest_ms(sorted_out.publish),
        step_ms=_longest_ms(sorted_out.step),
        otherwise_ms=_longest_ms(sorted_out.otherwise),
        publish_count=len(sorted_out.publish),
        step_count=len(sorted_out.step),
        otherwise_count=len(sorted_out.otherwise),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SortedGaps:
    """Every gap (seconds), by what went on during it."""

    publish: list[float]
    step: list[float]
    otherwise: list[float]


def sorted_gaps(streams: Iterable[Sequence[float]], spans: Iterable[Span]) -> SortedGaps:
    """All gaps, sorted as `token_gaps` says; arguments as there."""
    spans = tuple(spans)
    publishes = [span for span in spans if span.name == PUBLISH]
    steps = [span for span in spans if span.name == TRAINING_STEP]
    gaps = SortedGaps(publish=[], step=[], otherwise=[])
    for times in streams:
        for start, end in pairwise(times):
            if any(overlaps(span, start, end) for span in publishes):
                gaps.publish.append(end - start)
            elif any(overlaps(span, start, end) for span in steps):
                gaps.step.append(end - start)
            else:
                gaps.otherwise.append(end - start)
    return gaps


def spans_with_open_stream(spans: Iterable[Span], streams: Iterable[tuple[float, float]]) -> int:
    """How many spans had at least one stream (opened, ended) open at some moment of theirs."""
    streams = tuple(streams)
    return sum(any(overlaps(span, opened, ended) for opened, ended in streams) for span in spans)


def _longest_ms(gaps: list[float]) -> float | None:
    """The longest of some gaps (seconds) in milliseconds."""
    return 1000.0 * max(gaps) if gaps else None
