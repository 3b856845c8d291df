"""Ledger entries written by hand."""

from __future__ import annotations

from typing import Any

from openclaw_rl.evaluation.ledger import Entry, Ledger, Purpose


def make_entry(**values: Any) -> Entry:
    """An answered first try of interaction 0, unless told otherwise."""
    defaults: dict[str, Any] = {
        "purpose": Purpose.QUESTION,
        "model": "policy",
        "session": "demo-000",
        "question": "What is a poem?",
        "interaction": 0,
        "attempt": 1,
        "sent_at": 100.0,
        "opened_at": 100.1,
        "ended_at": 101.0,
        "turn_id": "t0",
        "version": 0,
        "status": 200,
        "chunk_times": [100.2, 100.4],
        "text": "A poem.",
        "finish_reason": "stop",
    }
    return Entry(**{**defaults, **values})


def make_ledger(*entries: Entry) -> Ledger:
    """A ledger of these entries."""
    ledger = Ledger()
    for entry in entries:
        ledger.add(entry)
    return ledger
