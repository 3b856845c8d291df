"""The writing thread: what waits together is one transaction, and one job's failure is not another's."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from openclaw_rl.serving.gateway.writer import Writer
from openclaw_rl.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


async def run(writer: Writer, work: Callable[[], Any]) -> Any:
    return await writer.submit(work).done


def counted(store: Store) -> dict[str, int]:
    return dict(store.status.counts().counters)


def test_jobs_run_in_order_and_are_committed_when_their_callers_go_on(store: Store) -> None:
    ran: list[int] = []

    async def main() -> None:
        writer = Writer(store)

        def job(number: int) -> int:
            ran.append(number)
            store.status.count("jobs")
            return number

        async def ask(number: int) -> None:
            assert await run(writer, lambda: job(number)) == number
            assert (await asyncio.to_thread(counted, store))["jobs"] > number

        await asyncio.gather(*map(ask, range(100)))
        await writer.close()

    asyncio.run(main())
    assert ran == list(range(100))
    assert counted(store)["jobs"] == 100


def test_those_that_wait_together_are_one_transaction(store: Store) -> None:
    seen: list[int] = []

    async def main() -> None:
        writer, hold = Writer(store), threading.Event()
        first = asyncio.ensure_future(run(writer, hold.wait))
        await asyncio.sleep(0.05)

        def job() -> None:
            store.status.count("jobs")
            # Another connection sees only what was committed.
            seen.append(sqlite3.connect(store_path).execute("SELECT count(*) FROM counters").fetchone()[0])

        others = [asyncio.create_task(run(writer, job)) for _ in range(5)]
        await asyncio.sleep(0.05)
        hold.set()
        await asyncio.gather(first, *others)
        await writer.close()

    store_path = store._database.path
    asyncio.run(main())
    assert seen == [0] * 5
    assert counted(store)["jobs"] == 5


def test_a_job_that_fails_leaves_nothing_and_the_others_are_written(store: Store) -> None:
    async def main() -> list[object]:
        writer, hold = Writer(store), threading.Event()
        first = asyncio.ensure_future(run(writer, hold.wait))
        await asyncio.sleep(0.05)

        def good() -> str:
            store.status.count("good")
            return "written"

        def bad() -> None:
            store.status.count("bad")
            raise ValueError("no stored form")

        waiting = [asyncio.create_task(run(writer, job)) for job in (good, bad, good)]
        await asyncio.sleep(0.05)
        hold.set()
        await first
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await writer.close()
        return list(outcomes)

    before, failed, after = asyncio.run(main())
    assert (before, after) == ("written", "written")
    assert isinstance(failed, ValueError)
    assert counted(store) == {"good": 2}


def test_a_store_that_is_locked_fails_all_of_them_after_one_wait(store: Store, tmp_path: Path) -> None:
    async def main() -> list[object]:
        writer = Writer(store)
        # The writer's connection is made by its first job.
        await run(writer, lambda: None)
        await run(writer, lambda: store._database._own_connection().exec_driver_sql("PRAGMA busy_timeout=200"))
        other = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        jobs = [run(writer, lambda: store.status.count("jobs")) for _ in range(20)]
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        assert loop.time() - begin < 2.0  # 20 waits would be 4 s
        other.execute("ROLLBACK")
        await run(writer, lambda: store.status.count("jobs"))
        await writer.close()
        return list(outcomes)

    outcomes = asyncio.run(main())
    assert len(outcomes) == 20
    assert all(isinstance(outcome, OperationalError) for outcome in outcomes)
    assert counted(store)["jobs"] == 1


def test_a_caller_that_is_cancelled_does_not_take_its_write_with_it(store: Store) -> None:
    async def main() -> None:
        writer, hold = Writer(store), threading.Event()
        first = asyncio.ensure_future(run(writer, hold.wait))
        gone = asyncio.create_task(run(writer, lambda: store.status.count("jobs")))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        hold.set()
        await first
        await writer.close()

    asyncio.run(main())
    assert counted(store) == {"jobs": 1}
