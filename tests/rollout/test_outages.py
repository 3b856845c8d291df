"""The rollout loop over a record that is down for a while."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.rollout.loop import RolloutLoop
from openclaw_rl.store import Store
from openclaw_rl.types import TurnState
from tests.builders import Conversation, state_of
from tests.gateway.conftest import wait_until
from tests.outages import Trouble, locked


@pytest.mark.parametrize("kind", ["locked", "unwritable"])
def test_it_waits_and_goes_on(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store.sqlite"
    outside = Store.open(path)
    Conversation(outside).turn("t1")
    store = Store.open(path, patience_s=0.1)
    stop = threading.Event()
    loop = RolloutLoop(Config(run_dir=tmp_path), store, stop)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - the test fails with it, on its own thread
            failures.append(error)

    thread = threading.Thread(target=work)
    trouble = Trouble(store)
    if kind == "locked":
        with locked(path):
            thread.start()
            wait_until(lambda: loop.waits_for_the_record)
    else:
        trouble.begin(kind)
        thread.start()
        wait_until(lambda: loop.waits_for_the_record)
        trouble.mend()
    wait_until(lambda: state_of(outside, "t1") == (TurnState.AWAITING_NEXT_STATE, None))
    wait_until(lambda: not loop.waits_for_the_record)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert failures == []
    store.close()
    outside.close()
