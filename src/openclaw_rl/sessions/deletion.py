"""Deleting sessions from everything that is ours: the store, down to its bytes, and the conversation records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.rollout.record_files import RecordFiles
from openclaw_rl.store import Store
from openclaw_rl.store.archive import TrainedVersion
from openclaw_rl.store.erasure import Deleted
from openclaw_rl.supervision.state import read_state


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What was deleted: rows, lines of the records, and the versions that were trained on it before."""

    deleted: Deleted
    lines: int
    trained: tuple[TrainedVersion, ...]


def delete_sessions(store: Store, config: Config, session_ids: Sequence[str]) -> Outcome:
    """Delete these sessions and all that came of them; beside a deployment that runs, too.

    The lock of the records is held from before the rows go until the lines are gone, so that their writer, which
    holds it while it reads turns and writes lines, cannot bring back what it read a moment ago.

    Raises:
        BeingTrained: nothing was deleted; a step that runs holds samples of them.
        NotScrubbed: the rows and lines are gone; their bytes are still in the store's file.
        RecordsLocked: nothing was deleted; the records could not be locked.
    """
    trained = store.archive.trained_into(session_ids)
    state = read_state(config.run_dir)
    files = RecordFiles(config.records_dir)
    with files.locked():
        deleted = store.erasure.delete(session_ids, trainer_lives=state is not None and state.alive)
        lines = files.without(frozenset(session_ids))
    store.erasure.scrub()
    return Outcome(deleted=deleted, lines=lines, trained=tuple(trained))
