"""The mark of use, from which the trainer's window counts: also for what is not recorded, and while it lasts."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from pathlib import Path

import pytest

from openclaw_rl.serving.gateway.chat import Load
from openclaw_rl.serving.gateway.use import INTERVAL_S, UseMark
from openclaw_rl.types import LoopName
from tests.gateway.conftest import USER, Gateway, running, wait_until
from tests.gateway.fake_engine import FakeEngine, Said

IDLE = {"window": {"idle_s": 60.0}}
BODY = {"model": "policy", "messages": [USER]}
UNRECORDED = {"X-No-Train": "1"}


def marked(gateway: Gateway) -> float:
    """The time of the mark; 0 before the first."""
    path = gateway.config.last_use_path
    return path.stat().st_mtime if path.exists() else 0.0


def test_a_request_that_is_not_recorded_is_use(tmp_path: Path) -> None:
    with running(tmp_path / "run", training=IDLE) as gateway:
        assert marked(gateway) == 0.0
        began = time.time()
        assert gateway.post(BODY, headers=UNRECORDED).status_code == 200
        wait_until(lambda: marked(gateway) >= began - 0.05)
        assert gateway.store.status.last_request_at() is None


def test_an_answer_is_use_for_as_long_as_it_lasts_and_at_its_end(tmp_path: Path) -> None:
    slow = Said(text="one two three four", pause_s=2.5 * INTERVAL_S / 4)
    with running(tmp_path / "run", FakeEngine(say=lambda _: slow), training=IDLE) as gateway:
        began = time.time()
        asking = threading.Thread(target=gateway.post, args=(BODY,), kwargs={"headers": UNRECORDED})
        asking.start()
        wait_until(lambda: marked(gateway) >= began + 1.5 * INTERVAL_S)
        assert asking.is_alive()
        asking.join(20)
        ended = time.time()
        wait_until(lambda: marked(gateway) >= ended - 0.05)
        time.sleep(1.5 * INTERVAL_S)
        last = marked(gateway)
        time.sleep(1.5 * INTERVAL_S)
        assert marked(gateway) == last


def test_where_it_cannot_be_written_requests_are_served_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "last-use").symlink_to(run_dir / "gone" / "last-use")
    with caplog.at_level(logging.WARNING), running(run_dir, training=IDLE) as gateway:

        def failed() -> int:
            loops = {status.loop: status for status in gateway.store.status.loops()}
            said = loops[LoopName.GATEWAY].details.get("use_marks_failed") if LoopName.GATEWAY in loops else None
            return int(said or 0)

        for number in (1, 2):
            assert gateway.post(BODY, headers=UNRECORDED).status_code == 200
            wait_until(lambda least=number: failed() >= least)  # type: ignore[misc]
    assert caplog.text.count("the trainer is not told that the policy is used") == 1


def test_nothing_is_written_where_nobody_reads_it(tmp_path: Path) -> None:
    with running(tmp_path / "run") as gateway:
        assert gateway.post(BODY).status_code == 200
        time.sleep(0.2)
        assert not gateway.config.last_use_path.exists()


def test_it_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    class Counting(UseMark):
        """Notes when it writes."""

        def _touch(self) -> None:
            writes.append(time.monotonic())
            super()._touch()

    writes: list[float] = []

    async def busy() -> None:
        load = Load()
        marking = asyncio.create_task(Counting(tmp_path / "last-use", load).run())
        for _ in range(100):
            load.changed.set()
            await asyncio.sleep(0.015)
        marking.cancel()
        await asyncio.gather(marking, return_exceptions=True)

    asyncio.run(busy())
    assert 2 <= len(writes) <= 3
    assert all(later - earlier >= 0.9 * INTERVAL_S for earlier, later in itertools.pairwise(writes))
    assert (tmp_path / "last-use").exists()
