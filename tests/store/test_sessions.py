from __future__ import annotations

import time

import pytest

from openclaw_rl.store import Store
from openclaw_rl.types import TurnState
from tests.builders import Conversation, make_request


def test_a_session_belongs_to_its_key(store: Store) -> None:
    store.turns.record_request(make_request("t1", session_id="s1", key_id="a"), client_session_id="mine")
    store.turns.record_request(make_request("t2", session_id="s2", key_id="b"), client_session_id="mine")
    assert store.sessions.find("a", "mine") == "s1"
    assert store.sessions.find("b", "mine") == "s2"
    assert store.sessions.find("a", "s1") == "s1"
    assert store.sessions.find("b", "s1") is None
    assert store.sessions.end("b", "s1", "test") is False
    with pytest.raises(PermissionError):
        store.turns.record_request(make_request("t3", session_id="s1", key_id="b"))
    assert store.status.counts().counters["requests"] == 2


def test_only_idle_sessions_end_and_only_once(store: Store) -> None:
    now = time.time()
    store.turns.record_request(make_request("t1", session_id="old", created_at=now - 100))
    store.turns.record_request(make_request("t2", session_id="new", created_at=now))
    assert store.sessions.end_idle(now - 200) == 0
    assert store.sessions.end_idle(now - 50) == 1
    assert store.sessions.end_idle(now - 50) == 0


def test_turns_without_feedback_are_found_when_their_session_ends(store: Store) -> None:
    talk = Conversation(store)
    talk.turn("t1")
    talk.turn("t2")
    store.turns.move("t1", TurnState.AWAITING_NEXT_STATE)
    assert store.turns.awaiting_in_ended_sessions() == []
    assert store.sessions.end("k", "s", "test") is True
    assert store.turns.awaiting_in_ended_sessions() == ["t1"], "t2 is not classified yet"
    talk.ask("t3", [{"role": "user", "content": "No."}], parent="t1")
    store.sessions.end("k", "s", "test")
    assert store.turns.awaiting_in_ended_sessions() == []
    assert [(turn_id, child.turn_id) for turn_id, child in store.turns.with_next_request()] == [("t1", "t3")]
