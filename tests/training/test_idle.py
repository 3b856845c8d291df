"""The training loop while nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from openclaw_rl.config import RolloutConfig
from openclaw_rl.store import Store
from openclaw_rl.training import cycle
from openclaw_rl.training.cycle import POLL_S, TIMED_S, TrainingLoop
from openclaw_rl.types import SampleState
from tests.gateway.conftest import wait_until
from tests.training.support import tiny_config
from tests.training.test_cycle import fill, make_config, make_loop, set_pause


@contextmanager
def going_on(loop: TrainingLoop) -> Iterator[None]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop._stop.set()
        thread.join(30)
    assert not thread.is_alive()


def looks_of(store: Store) -> list[str]:
    """What is asked of the store from now on for samples: once in a cycle that finds too few."""
    looks: list[str] = []

    def see(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "min(samples.created_at)" in statement:
            looks.append(statement)

    event.listen(store._database._engine, "before_cursor_execute", see)
    return looks


def trained(store: Store) -> int:
    return store.status.counts().samples_by_state.get(SampleState.TRAINED.value, 0)


def test_a_batch_is_taken_at_once_and_between_batches_little_is_asked(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    outside, own = Store.open(config.store_path), Store.open(config.store_path)
    loop, looks = make_loop(config, own), looks_of(own)
    with going_on(loop):
        wait_until(lambda: bool(looks))
        before, begun = len(looks), time.monotonic()
        time.sleep(8 * POLL_S)
        assert len(looks) - before <= 1 + (time.monotonic() - begun) / TIMED_S, "each poll looked"
        fill(outside, 2)
        wait_until(lambda: trained(outside) == 2, 30.0)
    outside.close()
    own.close()


def test_a_batch_that_only_gets_old_is_taken(tmp_path: Path) -> None:
    config = make_config(tmp_path).model_copy(
        update={"rollout": RolloutConfig(batch_size=4, max_batch_wait_s=1.0), "training": tiny_config()}
    )
    outside, own = Store.open(config.store_path), Store.open(config.store_path)
    with going_on(make_loop(config, own)):
        fill(outside, 1)
        wait_until(lambda: trained(outside) == 1, 30.0)
    outside.close()
    own.close()


def test_what_failed_is_tried_again_when_its_pause_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when somebody looks anyway, which is never here."""
    monkeypatch.setattr(cycle, "TIMED_S", 3600.0)
    config = make_config(tmp_path)
    outside, own = Store.open(config.store_path), Store.open(config.store_path)
    loop = make_loop(config, own, fail=1)
    set_pause(loop, POLL_S)
    with going_on(loop):
        fill(outside, 2)
        wait_until(lambda: "publish_failures" in outside.status.counts().counters, 30.0)
        wait_until(lambda: outside.versions.serving().version == 1, 30.0)
    outside.close()
    own.close()
