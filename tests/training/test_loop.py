"""The training process before it has loaded anything."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from openclaw_rl.config import Config, ModelConfig, TrainingConfig
from openclaw_rl.store import Store
from openclaw_rl.store.deaths import Death
from openclaw_rl.training.loop import run
from openclaw_rl.types import LoopName, LoopStatus
from tests.training.test_cycle import fill


def test_it_closes_its_predecessors_spans_and_loads_nothing_once_told_to_stop(tmp_path: Path) -> None:
    no_model = ModelConfig(path=str(tmp_path / "nothing"))  # loading it would fail
    config = Config(run_dir=tmp_path, model=no_model, training=TrainingConfig(niceness=0))
    store = Store.open(config.store_path)
    fill(store, 2)
    store.samples.claim(1, 60.0)
    killed = [store.status.span(name) for name in ("training_step", "publish")]
    for span in killed:
        span.__enter__()
    died_at = time.time() + 5.0
    store.status.report(
        LoopStatus(
            loop=LoopName.TRAINING,
            pid=1,
            heartbeat_at=died_at,
            activity="training step 1: computing gradients",
            waiting_for=None,
            since=died_at,
            details={},
        )
    )
    stop = threading.Event()
    stop.set()
    run(config, stop)
    assert [(span.ended_at, span.details) for span in store.status.spans()] == [(died_at, {"aborted": True})] * 2
    assert store.deaths.of(["t0", "t1"]) == {"t0": [Death(place="computing gradients", number=1, alone=True)]}
    store.close()


def test_without_training_it_loads_nothing_and_says_so(tmp_path: Path) -> None:
    no_model = ModelConfig(path=str(tmp_path / "nothing"))  # loading it would fail
    training = TrainingConfig(niceness=0, enabled=False)
    config = Config(run_dir=tmp_path, model=no_model, training=training)
    store, stop = Store.open(config.store_path), threading.Event()
    thread = threading.Thread(target=run, args=(config, stop))
    thread.start()
    deadline = time.monotonic() + 10
    while not store.status.loops() and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    (said,) = store.status.loops()
    assert said.waiting_for is not None
    assert "training.enabled = false" in said.waiting_for
    store.close()
