"""What the record and the disk say, seen from outside: plain SQL on connections that are closed again at once.

A connection that stayed open would keep SQLite's log in use, and hide what the next process finds after all others
were killed.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.crash.plan import Moment, Target
from openclaw_rl.training.checkpoint import checkpoint_path

WORKED_SINCE = {
    Target.ROLLOUT: "SELECT 1 FROM turns WHERE state IN ('awaiting_next_state', 'judging', 'sampled') "
    "AND state_since > ? LIMIT 1",
    Target.JUDGING: "SELECT 1 FROM judgements WHERE created_at > ? LIMIT 1",
    Target.TRAINING: "SELECT 1 FROM versions WHERE state = 'serving' AND state_since > ? LIMIT 1",
}
"""What shows that a loop has done something since a moment. The gateway and the engine show it to the clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a loop last said of itself."""

    pid: int
    activity: str
    heartbeat_at: float

    @property
    def loading(self) -> bool:
        """Whether its process has started and cannot work yet."""
        return self.activity.startswith(("loading", "resuming"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What verification reads.

    `turns`: id → (state, reason, answer); `pairs`: id → (prompt, response), packed; `samples`: id → state;
    `versions`: number → (state, why it was rejected).
    """

    turns: dict[str, tuple[str, str | None, dict[str, Any]]]
    pairs: dict[str, tuple[bytes, bytes]]
    samples: dict[str, str]
    steps: list[dict[str, Any]]
    versions: dict[int, tuple[str, str | None]]
    counters: dict[str, int]


class Look:
    """The run directory of a deployment, from outside."""

    def __init__(self, run_dir: Path) -> None:
        self._store = run_dir / "store.sqlite"
        self._checkpoints = run_dir / "checkpoints"

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One view of the record."""
        with contextlib.closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True, timeout=10)) as connection:
            yield connection

    def said(self) -> dict[Target, Said]:
        """What each loop last said; nothing where there is no record yet."""
        if not self._store.exists():
            return {}
        with self.reading() as connection:
            try:
                rows = connection.execute("SELECT loop, pid, activity, heartbeat_at FROM loops").fetchall()
            except sqlite3.OperationalError:  # the tables are being made
                return {}
        return {Target(row[0]): Said(pid=row[1], activity=row[2], heartbeat_at=row[3]) for row in rows}

    def worked_since(self, target: Target, moment: float) -> bool:
        """Whether the rollout, judging or training loop has done something since `moment`."""
        with self.reading() as connection:
            return connection.execute(WORKED_SINCE[target], (moment,)).fetchone() is not None

    def judging_now(self) -> int:
        """Turns that a judge holds."""
        return self._number(
            "SELECT count(*) FROM turns t WHERE state = 'judging' AND judge_lease_until > ? AND NOT EXISTS "
            "(SELECT 1 FROM judgements j WHERE j.turn_id = t.turn_id AND j.created_at >= t.state_since)",
            time.time(),
        )

    def rollout_waiting(self) -> int:
        """Turns that the rollout loop has to move now."""
        return self._number(
            "SELECT count(*) FROM turns t WHERE state = 'served' OR (state = 'judging' AND EXISTS "
            "(SELECT 1 FROM judgements j WHERE j.turn_id = t.turn_id AND j.created_at >= t.state_since))"
        )

    def unfinished(self) -> dict[str, int]:
        """What still has to move before everything has settled, by name."""
        with_child = (
            "SELECT count(*) FROM turns t WHERE state = 'awaiting_next_state' AND EXISTS "
            "(SELECT 1 FROM requests r WHERE r.parent_turn_id = t.turn_id AND r.brings_feedback)"
        )
        found = {
            "turns served or in judging": self._number(
                "SELECT count(*) FROM turns WHERE state IN ('served', 'judging')"
            ),
            "turns whose next state is there": self._number(with_child),
            "samples": self._number("SELECT count(*) FROM samples WHERE state IN ('ready', 'claimed')"),
            "versions not published": self._number("SELECT count(*) FROM versions WHERE state = 'candidate'"),
        }
        return {name: number for name, number in found.items() if number}

    def trainer_at(self) -> Moment | None:
        """Where in a step the trainer is, None where it is in none. The latest sign counts."""
        with self.reading() as connection:
            last = connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
            row = connection.execute("SELECT activity FROM loops WHERE loop = 'training'").fetchone()
            candidates = connection.execute("SELECT count(*) FROM versions WHERE state = 'candidate'").fetchone()[0]
        if candidates:
            return Moment.COMMITTED
        activity = row[0] if row else ""
        if checkpoint_path(self._checkpoints, last + 1).exists():
            return Moment.WRITTEN
        if activity.startswith(("writing", "committing")):
            return Moment.WRITING
        return Moment.STEP if activity.startswith("training step") else None

    def record(self) -> Record:
        """Everything that verification needs."""
        with self.reading() as connection:
            turns = connection.execute("SELECT turn_id, state, reason, answer, prompt_ids, response_ids FROM turns")
            rows = turns.fetchall()
            steps = connection.execute("SELECT step, version, sample_ids, checkpoint FROM steps ORDER BY step")
            versions = connection.execute("SELECT version, state, reason FROM versions")
            return Record(
                turns={row[0]: (row[1], row[2], json.loads(row[3])) for row in rows},
                pairs={row[0]: (row[4], row[5]) for row in rows},
                steps=[
                    {"step": row[0], "version": row[1], "sample_ids": json.loads(row[2]), "checkpoint": row[3]}
                    for row in steps
                ],
                samples=dict(connection.execute("SELECT turn_id, state FROM samples").fetchall()),
                versions={row[0]: (row[1], row[2]) for row in versions.fetchall()},
                counters=dict(connection.execute("SELECT name, value FROM counters").fetchall()),
            )

    def integrity(self) -> str:
        """SQLite's own check: `ok`, or what is wrong."""
        with self.reading() as connection:
            return str(connection.execute("PRAGMA integrity_check").fetchone()[0])

    def _number(self, query: str, *values: float) -> int:
        with self.reading() as connection:
            return int(connection.execute(query, values).fetchone()[0])
