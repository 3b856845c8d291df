"""Which token gap counts where, computed by hand."""

import pytest

from openclaw_rl.evaluation.gaps import PUBLISH, TRAINING_STEP, spans_with_open_stream, token_gaps
from openclaw_rl.store.status import Span


def span(name: str, start: float, end: float | None) -> Span:
    return Span(name=name, started_at=start, ended_at=end, details={})


def test_each_gap_counts_by_what_went_on_during_it() -> None:
    streams = [
        [1.0, 1.1, 1.4, 2.0, 2.05],  # 100 ms free, 300 ms step, 600 ms step and publish, 50 ms free
        [1.45, 1.6],  # 150 ms step
    ]
    gaps = token_gaps(streams, [span(TRAINING_STEP, 1.2, 1.8), span(PUBLISH, 1.8, 1.9)])
    assert gaps.publish_ms == pytest.approx(600.0)
    assert gaps.step_ms == pytest.approx(300.0)
    assert gaps.otherwise_ms == pytest.approx(100.0)
    assert (gaps.publish_count, gaps.step_count, gaps.otherwise_count) == (1, 2, 2)


def test_touching_is_not_overlapping_and_an_unended_span_goes_on() -> None:
    assert token_gaps([[1.0, 2.0]], [span(PUBLISH, 2.0, 3.0), span(PUBLISH, 0.0, 1.0)]).publish_ms is None
    assert token_gaps([[1.0, 2.0]], [span(PUBLISH, 0.0, None)]).publish_ms == pytest.approx(1000.0)
    assert token_gaps([[1.0, 2.0]], [span(PUBLISH, 2.5, None)]).publish_ms is None


def test_a_span_inside_one_gap_is_found() -> None:
    assert token_gaps([[0.0, 10.0]], [span(PUBLISH, 4.0, 4.001)]).publish_ms == pytest.approx(10_000.0)


def test_other_spans_do_not_count_and_nothing_is_null_not_zero() -> None:
    gaps = token_gaps([[1.0, 1.5], [3.0], []], [span("judging", 0.0, 9.0)])
    assert gaps.otherwise_ms == pytest.approx(500.0)
    assert gaps.publish_ms is None
    assert gaps.step_ms is None
    assert token_gaps([], []).otherwise_ms is None


def test_publishes_under_an_open_stream() -> None:
    publishes = [span(PUBLISH, 1.0, 1.2), span(PUBLISH, 5.0, 5.1), span(PUBLISH, 8.0, 8.1)]
    assert spans_with_open_stream(publishes, [(0.5, 1.1), (5.05, 6.0), (8.1, 9.0)]) == 2
    assert spans_with_open_stream(publishes, []) == 0
