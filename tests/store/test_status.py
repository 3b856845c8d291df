"""Spans that nobody is left to close."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import pytest

from openclaw_rl.store import Store
from openclaw_rl.types import LoopName, LoopStatus


def leave_open(store: Store, name: str) -> AbstractContextManager[None]:
    """A span as a killed process leaves it, as long as the caller holds what is returned."""
    span = store.status.span(name, step=3)
    span.__enter__()
    return span


def heard_at(store: Store, at: float) -> None:
    store.status.report(
        LoopStatus(
            loop=LoopName.TRAINING, pid=1, heartbeat_at=at, activity="a step", waiting_for=None, since=at, details={}
        )
    )


def test_a_killed_loops_spans_end_when_it_was_last_heard_of(store: Store) -> None:
    with store.status.span("training_step", step=2):
        pass
    held = [leave_open(store, "training_step"), leave_open(store, "of another loop")]
    whole, cut, other = store.status.spans()
    heard_at(store, cut.started_at + 7.0)
    assert store.status.abort_spans(("training_step", "publish"), LoopName.TRAINING) == 1
    assert store.status.abort_spans(("training_step", "publish"), LoopName.TRAINING) == 0
    after = store.status.spans()
    assert (after[0], after[2]) == (whole, other)
    assert after[1].ended_at == pytest.approx(cut.started_at + 7.0)
    assert after[1].details == {"step": 3, "aborted": True}
    assert len(held) == 2


def test_no_span_ends_before_it_began_and_without_a_heartbeat_it_ends_now(store: Store) -> None:
    held = [leave_open(store, "publish")]
    assert store.status.abort_spans(("publish",), LoopName.TRAINING) == 1
    (span,) = store.status.spans()
    assert span.ended_at == pytest.approx(time.time(), abs=5.0)
    heard_at(store, 1.0)
    held.append(leave_open(store, "publish"))
    store.status.abort_spans(("publish",), LoopName.TRAINING)
    assert store.status.spans()[1].ended_at == store.status.spans()[1].started_at
