"""Retry, sibling or neither; and what a repeated or changed question shows about the answer before it."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.rollout.attempts import FIRST, Attempt, EarlierRequest, classify_attempt, signals_shown
from openclaw_rl.types import SignalKind, TurnType


def earlier(turn_id: str = "e", status: str = "served", **values: Any) -> EarlierRequest:
    defaults: dict[str, Any] = {
        "session_id": "s",
        "turn_type": TurnType.MAIN,
        "body_hash": "body",
        "idempotency_key": None,
        "created_at": 1.0,
    }
    return EarlierRequest(turn_id=turn_id, status=status, **{**defaults, **values})


def classify(*found: EarlierRequest, retry_count: int = 0, key: str | None = None, known: bool = True) -> Attempt:
    return classify_attempt(found, retry_count=retry_count, idempotency_key=key, session_known=known)


RETRY = Attempt(retry_of="e", session_id="s")
SIBLING = Attempt(sibling_of="e")


@pytest.mark.parametrize("status", ["failed", "cancelled", "undelivered"])
@pytest.mark.parametrize("known", [True, False])
def test_what_was_lost_is_retried(status: str, known: bool) -> None:
    assert classify(earlier(status=status), known=known) == RETRY


@pytest.mark.parametrize("status", ["served", "open"])
def test_what_was_answered_or_is_being_answered_gets_a_sibling(status: str) -> None:
    assert classify(earlier(status=status)) == SIBLING
    assert classify(earlier(status=status), known=False) == FIRST


def test_the_client_can_call_it_a_retry() -> None:
    assert classify(earlier(), retry_count=1) == RETRY
    assert classify(earlier(idempotency_key="x"), key="x", known=False) == RETRY
    assert classify(earlier(idempotency_key="x"), key="y") == SIBLING
    assert classify(earlier(), key="y") == SIBLING


def test_a_key_finds_its_own_attempt_among_several() -> None:
    assert classify(earlier("late"), earlier("e", idempotency_key="x"), key="x") == RETRY


def test_only_the_latest_attempt_counts() -> None:
    assert classify(earlier("e"), earlier("older", "failed")) == SIBLING
    assert classify(earlier("e", "failed"), earlier("older")) == RETRY


def test_a_retry_count_without_an_earlier_attempt_is_a_first_attempt() -> None:
    assert classify(retry_count=3) == FIRST


def test_signals() -> None:
    same, other = earlier("e"), earlier("o", body_hash="other")
    assert signals_shown(SIBLING, [same], [same, other], "body") == [(SignalKind.REGENERATED, "e")]
    assert signals_shown(RETRY, [same], [same, other], "body") == []
    assert signals_shown(FIRST, [], [other], "body") == [(SignalKind.EDITED, "o")]
    assert signals_shown(FIRST, [], [], "body") == []


@pytest.mark.parametrize("status", ["open", "failed", "cancelled"])
def test_no_signal_about_an_answer_that_was_not_there(status: str) -> None:
    assert signals_shown(SIBLING, [earlier(status=status)], [], "body") == []
    assert signals_shown(FIRST, [], [earlier(status=status, body_hash="other")], "body") == []


def test_side_turns_are_no_question_that_was_edited() -> None:
    assert signals_shown(FIRST, [], [earlier(turn_type=TurnType.SIDE, body_hash="other")], "body") == []
