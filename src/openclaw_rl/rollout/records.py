"""Conversation records (`records.enabled`): a line of JSON for each turn that was served, and for each judgement.

The rollout loop writes them, from what is committed. Lines are on disk before the store notes that they are; a
process that is killed in between finds them in the newest files when it starts again, and writes none twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.rollout.record_files import RecordFiles, RecordsLocked
from openclaw_rl.store import Store
from openclaw_rl.store.codec import unpack_ids
from openclaw_rl.store.recording import Growth, Row

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
BATCH = 64
"""Lines at once: between two batches the loop does its other work."""
LATE_S = 3600.0
"""A turn is committed at most this long after its request: `serving.request_timeout_s` and a wide margin."""


class ConversationRecords:
    """The one writer of a deployment's records."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._files = RecordFiles(config.records_dir, max_bytes=config.records.max_bytes, keep=config.records.keep)
        self._unsettled: set[tuple[str, int]] | None = None
        self._grown: Growth | None = None
        self._since = 0.0
        self._next_at = 0.0
        self._failing = False

    def write_due(self, now: float) -> int:
        """Write what is new, at most BATCH lines; how many. Nothing where records are off, or nothing grew.

        Where the files cannot be written, nothing else stops: it is said once, counted, and tried again.
        """
        if not self._config.records.enabled or now < self._next_at:
            return 0
        grown = self._store.recording.growth()
        if grown == self._grown:
            self._next_at = now + INTERVAL_S
            return 0
        try:
            lines = self._write(grown, now)
        except RecordsLocked:
            return 0  # a deletion is under way
        except OSError as error:
            self._next_at = now + INTERVAL_S
            self._store.status.count("records_failures")
            if not self._failing:
                logger.error("the conversation records cannot be written (%s)", type(error).__name__)
            self._failing = True
            return 0
        self._failing = False
        return lines

    def _write(self, grown: Growth, now: float) -> int:
        with self._files.locked(timeout_s=0.0):
            if self._unsettled is None:
                self._unsettled = self._found_again()
            since = 0.0 if self._grown is None or grown.imported != self._grown.imported else self._since
            fresh = self._store.recording.unwritten(since=since, limit=BATCH)
            marks = [(row["turn_id"], 0) for row in fresh.turns]
            marks += [(row["turn_id"], row["judgement_id"]) for row in fresh.judgements]
            lines = [turn_line(row) for row in fresh.turns] + [judgement_line(row) for row in fresh.judgements]
            unwritten = [line for mark, line in zip(marks, lines, strict=True) if mark not in self._unsettled]
            self._files.append(unwritten)
            self._store.recording.written(
                [row["turn_id"] for row in fresh.turns],
                [(row["turn_id"], row["judgement_id"]) for row in fresh.judgements],
            )
        if not marks:  # everything has its line
            self._grown, self._since, self._unsettled = grown, now - LATE_S, set()
            self._next_at = now + INTERVAL_S
        return len(unwritten)

    def _found_again(self) -> set[tuple[str, int]]:
        """The lines that a predecessor wrote last, as (turn id, judgement id; 0: the turn itself)."""
        if self._files.mend():
            logger.warning("the last line of the conversation records was torn, and is written anew")
        return {(line["turn_id"], line.get("judgement_id", 0)) for line in self._files.newest()}


def turn_line(row: Row) -> str:
    """The line of a turn."""
    return _line({
        "type": "turn",
        "session_id": row["session_id"],
        "turn_id": row["turn_id"],
        "parent_turn_id": row["parent_turn_id"],
        "client_session_id": row["client_session_id"],
        "turn_type": row["turn_type"],
        "at": row["served_at"],
        "model": row["model"],
        "versions": sorted(set(unpack_ids(row["versions"]))),
        "messages": row["messages"],
        "tools": row["tools"],
        "response": row["answer"],
        "finish_reason": row["finish_reason"],
    })  # fmt: skip


def judgement_line(row: Row) -> str:
    """The line of a judgement, with the next state that it judged by."""
    return _line({
        "type": "judgement",
        "session_id": row["session_id"],
        "turn_id": row["turn_id"],
        "judgement_id": row["judgement_id"],
        "at": row["created_at"],
        "judge": row["kind"],
        "outcome": row["outcome"],
        "score": row["score"],
        "hint": row["hint"],
        "details": row["details"],
        "next_state": row["next_state"],
    })  # fmt: skip


def _line(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, ensure_ascii=False)
