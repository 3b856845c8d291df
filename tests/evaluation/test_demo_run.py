"""What the demo asks of whom; the system that it talks to is a fake of the API and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.evaluation.demo_options import DemoOptions
from openclaw_rl.evaluation.demo_run import DemoRun
from openclaw_rl.evaluation.ledger import Ledger
from openclaw_rl.evaluation.live_view import PhaseProgress
from openclaw_rl.evaluation.talker import talker
from openclaw_rl.store import Store
from tests.builders import make_config
from tests.evaluation.fake_api import FakeApi, serving
from tests.store.helpers import candidate, step_record, to_sample


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def publish(store: Store, number: int) -> None:
    """Train one sample in step `number`, and put what came of it into service."""
    store.samples.claim(1, lease_s=60)
    store.samples.commit_step(step_record(number, f"t{number}"), candidate(number))
    store.versions.serve(number)


def test_the_questions_after_are_all_asked_of_the_version_that_served_when_they_began(
    tmp_path: Path, store: Store
) -> None:
    to_sample(store, "t1", "t2")
    publish(store, 1)
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        asked.append(body["model"])
        if len(asked) == 2:  # the last samples were not waited for: an update comes in between
            publish(store, 2)
        return "A camp."

    async def go() -> DemoRun:
        options = DemoOptions(held_out=5, held_out_parallel=1, run_dir=tmp_path)
        deployment: Any = None
        engine: Any = None
        async with serving(FakeApi(answer, models=["policy", "base", "policy-v1"])) as api:
            ledger = Ledger()
            run = DemoRun(options, make_config(tmp_path), deployment, store, engine, ledger, PhaseProgress())
            async with talker(api.url, ledger=ledger, timeout_s=10.0) as client:
                await run._score_after(client)
            return run

    results = asyncio.run(go()).results
    assert asked == ["policy-v1"] * 5
    assert store.versions.serving().name == "policy-v2"
    assert results.asked_after is not None
    assert results.asked_after.name == "policy-v1"
