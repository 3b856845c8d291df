"""Two servers that run already, as replicas: each has a process of ours, through which both get what one would."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.replicas.drains import DrainList
from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine
from openclaw_rl.supervision.ports import engine_addresses
from tests.engines.fake_vllm import FakeVllm, create_fake
from tests.engines.harness import EngineHarness, answer, contract_config, free_port, health_or_none, until
from tests.engines.support import request
from tests.engines.test_attached import listening


@pytest.fixture
def servers() -> Iterator[dict[str, FakeVllm]]:
    """Two fakes of vLLM, by the URL at which each listens."""
    with contextlib.ExitStack() as stack:
        fakes = [FakeVllm(), FakeVllm()]
        yield {stack.enter_context(listening(create_fake(fake))): fake for fake in fakes}


def test_both_get_the_version_and_are_known_by_their_own_urls(
    tiny: Path, tmp_path: Path, servers: dict[str, FakeVllm]
) -> None:
    ports = (free_port(), free_port())
    config = contract_config(
        tmp_path / "run", tiny, kind="vllm", urls=list(servers), port=ports[0], replica_ports=ports, context_length=80
    )
    config.logs_dir.mkdir(parents=True)
    harness = EngineHarness(config, tiny)
    version = harness.lora()
    url, fake = next(iter(servers.items()))

    async def scenario(engine: Engine) -> None:
        assert isinstance(engine, ReplicatedEngine)
        await until(lambda: both(engine), within_s=60)
        await engine.load_version(version)
        assert [len(one.adapters) for one in servers.values()] == [1, 1]
        for number in range(12):
            asked = dataclasses.replace(request(version=1, max_tokens=3), session_id=str(number))
            assert set((await answer(engine, asked)).versions) == {1}
        assert all(one.asked for one in servers.values())

        DrainList(config.run_dir).write(frozenset({url}))
        await engine.health()
        before = len(fake.asked)
        for number in range(12):
            await answer(engine, dataclasses.replace(request(version=1), session_id=str(number)))
        assert len(fake.asked) == before

    async def both(engine: ReplicatedEngine) -> bool:
        await health_or_none(engine)
        return [one.state for one in engine.report()] == ["ready", "ready"]

    with harness:
        assert tuple(engine_addresses(harness.config)) == tuple(servers)
        harness.run(scenario)
