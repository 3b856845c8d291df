"""A process of its own on the store, for `test_processes`: `python -m tests.store.worker JOB PATH`.

It says "ready" on standard output, waits for a line on standard input, and does its job.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sqlalchemy import update

from openclaw_rl.store import Store
from openclaw_rl.store.database import Database
from openclaw_rl.store.schema import samples, turns
from openclaw_rl.store.transitions import move_turn
from openclaw_rl.types import TurnState
from tests.store.helpers import candidate, step_record, to_sample


def claim_all(path: Path) -> None:
    """Claim turns one by one, then samples two by two, until none is left; say which."""
    store = Store.open(path)
    while turns_claimed := store.turns.claim_for_judging(1, lease_s=60.0):
        print(turns_claimed[0][0].turn_id, flush=True)
    while samples_claimed := store.samples.claim(2, lease_s=60.0):
        for sample in samples_claimed:
            print(sample.turn_id, flush=True)


def half_a_transaction(path: Path) -> None:
    """Change two tables, say so, and never commit."""
    with Database(path).write() as connection:
        move_turn(connection, "t1", TurnState.AWAITING_NEXT_STATE)
        connection.execute(update(turns).where(turns.c.turn_id == "t2").values(state="sampled"))
        connection.execute(samples.delete())
        print("inside", flush=True)
        time.sleep(60)


def train_forever(path: Path) -> None:
    """New samples and committed steps, each a transaction, until killed; says the number of each step."""
    store = Store.open(path)
    store.samples.release_claims()
    done = len(store.samples.steps())
    for step in itertools.count(done + 1):
        to_sample(store, f"p{os.getpid()}a{step}", f"p{os.getpid()}b{step}")
        claimed = [sample.turn_id for sample in store.samples.claim(2, 60.0)]
        store.samples.commit_step(step_record(step, *claimed), candidate(step))
        print(step, flush=True)


def open_it(path: Path) -> None:
    """Open the store, whatever schema it has, and say which versions there are."""
    store = Store.open(path)
    print(*[version.version for version in store.versions.all()], flush=True)
    store.close()


JOBS: Mapping[str, Callable[[Path], None]] = {
    "claim_all": claim_all,
    "open": open_it,
    "half_a_transaction": half_a_transaction,
    "train_forever": train_forever,
}

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    JOBS[sys.argv[1]](Path(sys.argv[2]))
