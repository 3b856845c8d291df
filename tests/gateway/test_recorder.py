"""The recorder alone: what it believes to be in the record is what was committed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from openclaw_rl.serving.gateway.guard import StoreDown
from openclaw_rl.serving.gateway.recorder import Arrival, Recorder
from openclaw_rl.store import Store
from openclaw_rl.store.schema import requests
from tests.builders import make_turn, user
from tests.outages import Trouble


def arrival(turn_id: str) -> Arrival:
    return Arrival(
        turn_id=turn_id,
        key_id="k",
        client_session_id="mine",
        turn_type=None,
        messages=(user("What is a poem?"),),
        tools=(),
        session_done=False,
        model="policy",
        created_at=0.0,
    )


def status_of(store: Store, turn_id: str) -> tuple[str, str | None]:
    with store._database.read() as connection:
        row = connection.execute(requests.select().where(requests.c.turn_id == turn_id)).one()
    return row.status, row.error


def test_an_end_that_was_undone_with_its_transaction_is_written_once_the_record_is_back(tmp_path: Path) -> None:
    """The turn's own write went well, the next job of the same transaction met the full disk: both are undone."""
    store = Store.open(tmp_path / "store.sqlite")
    recorder, hold = Recorder(store), threading.Event()

    trouble = Trouble(store)

    def meet_trouble() -> None:
        trouble.begin("unwritable")
        store.status.count("never")

    async def main() -> None:
        await recorder.start()
        opened = await recorder.open(arrival("t1"))
        assert opened is not None
        first = asyncio.create_task(recorder.guard.run(lambda: hold.wait(5)))
        await asyncio.sleep(0.05)
        recorded = asyncio.create_task(recorder.turn(make_turn(request=opened.request), opened))
        await asyncio.sleep(0)  # it is queued, and next to it:
        failing = asyncio.create_task(recorder.guard.run(meet_trouble))
        await asyncio.sleep(0.05)
        hold.set()
        assert await first
        assert not await recorded
        with pytest.raises(StoreDown):
            await failing
        trouble.mend()
        await recorder.guard.probe()
        assert recorder.guard.problem is None
        await recorder.close()

    asyncio.run(main())
    assert status_of(store, "t1") == ("failed", "not_recorded")
    assert store.status.counts().counters["turns_not_recorded_unwritable"] == 1
    store.close()
