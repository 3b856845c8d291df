"""Two real engines of each kind behind one adapter: one is killed, and comes back with the version in service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.protocol import ChatRequest, Engine, EngineUnavailable
from openclaw_rl.serving.engines.replicas.engine import ReplicaLost, ReplicatedEngine
from openclaw_rl.serving.engines.replicas.routing import preference
from openclaw_rl.serving.engines.vllm.launch import find_python
from openclaw_rl.supervision.ports import engine_addresses
from openclaw_rl.types import PolicyVersion
from tests.engines.contract import scored
from tests.engines.harness import EngineHarness, Stream, answer, assert_close, contract_config, free_port, until
from tests.engines.support import REQUIRED, STORY, not_installed, request
from tests.engines.test_sglang import ON_CPU
from tests.engines.test_sglang import PYTHON as SGLANG_PYTHON

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1500)]
START_S = 600.0
RETURN_S = 400.0
KINDS = ("embedded", "vllm", "sglang")
OWN: dict[str, dict[str, Any]] = {
    "embedded": {},
    "vllm": {"vllm": {"start_timeout_s": START_S}},
    "sglang": {"sglang": {"python": str(SGLANG_PYTHON)}, "extra_args": ON_CPU},
}


class PairHarness(EngineHarness):
    """Two of one kind, as the pool of replicas runs them."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the two processes."""
        return tuple(engine_addresses(self.config))

    def session_of(self, url: str) -> str:
        """A session that stays at that one while both are there."""
        return next(name for name in map(str, range(1000)) if next(iter(preference(name, self.urls))) == url)

    def kill_behind(self, url: str) -> int:
        """SIGKILL what computes behind an address, with all that it has started; the pid that it had."""
        assert self._process is not None
        number = str(self.urls.index(url))
        workers = psutil.Process(self._process.pid).children()
        (worker,) = [one for one in workers if one.cmdline()[3:4] == [number]]
        computes = worker if self.config.engine.kind == "embedded" else worker.children()[0]
        if computes is worker:
            worker.kill()
        else:
            os.killpg(computes.pid, signal.SIGKILL)
        return computes.pid


def why_not(kind: str, harness: EngineHarness) -> str | None:
    """Why this kind cannot be had here."""
    if kind == "sglang" and not SGLANG_PYTHON.is_file():
        return "no SGLang is here: make sglang-test-venv"
    try:
        if kind == "vllm":
            find_python(harness.config)
    except ConfigError as error:
        return str(error)
    return None


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairHarness]:
    kind = request.param
    if kind == "embedded" and os.environ.get(REQUIRED):
        pytest.skip("two embedded engines are tested in the stage of the real model")
    model = resolve_model(ModelConfig())
    ports = (free_port(), free_port())
    config = contract_config(
        tmp_path_factory.mktemp(kind), model, kind=kind, replicas=2, port=ports[0], replica_ports=ports, **OWN[kind]
    )
    config.logs_dir.mkdir(parents=True)
    harness = PairHarness(config, model, start_timeout_s=START_S)
    if reason := why_not(kind, harness):
        not_installed(reason)
    with harness:
        yield harness


def of_session(session: str, version: int, text: str = STORY, **sampling: Any) -> ChatRequest:
    """A request of that session."""
    asked = request(text, version=version, **sampling)
    return ChatRequest(
        request_id=f"r-{session}",
        session_id=session,
        messages=asked.messages,
        tools=asked.tools,
        sampling=asked.sampling,
        version=version,
    )


def states(engine: Engine) -> dict[str, str]:
    """How each of the two is."""
    assert isinstance(engine, ReplicatedEngine)
    return {one.url: one.state for one in engine.report()}


async def both_ready(engine: Engine) -> bool:
    """Look at them, and whether both take requests."""
    try:
        await engine.health()
    except EngineUnavailable:
        return False
    return set(states(engine).values()) == {"ready"}


async def exact_from(pair: PairHarness, engine: Engine, url: str, version: PolicyVersion) -> None:
    """The session of one of them is answered by that one, with this version's own log-probabilities."""
    stream = Stream(engine, of_session(pair.session_of(url), version.version, "Name a river.", temperature=1.0))
    await asyncio.sleep(0)  # so that it is sent
    assert isinstance(engine, ReplicatedEngine)
    assert {one.url: one.requests for one in engine.report()}[url] == 1
    await stream.end()
    assert set(stream.versions) == {version.version}
    assert_close(stream.logprobs, pair.transformers(version, stream), pair.bounds.transformers)


def test_a_version_is_on_both_and_a_killed_one_has_it_again_before_its_sessions_return(pair: PairHarness) -> None:
    version = pair.lora()
    number = version.version

    async def scenario(engine: Engine) -> None:
        await until(lambda: both_ready(engine), within_s=START_S)
        await engine.load_version(version)
        for url in pair.urls:
            await exact_from(pair, engine, url, version)
        told = await answer(engine, of_session("scored", number, "Name a river.", temperature=1.0))
        scores = (await engine.score(scored(told, version=number))).logprobs
        assert_close(scores, told.logprobs, pair.bounds.same)

        lost, stays = pair.urls
        streams = [
            Stream(engine, of_session(pair.session_of(url), number, temperature=warmth, max_tokens=120))
            for url, warmth in ((lost, 0.0), (stays, 1.0))
        ]
        for stream in streams:
            await stream.reach(2)
        pair.kill_behind(lost)
        with pytest.raises(ReplicaLost):
            await streams[0].task
        moved = await answer(engine, of_session(pair.session_of(lost), number, "Name a river.", max_tokens=8))
        assert set(moved.versions) == {number}
        whole = await streams[1].end()
        assert set(whole.versions) == {number}
        assert_close(whole.logprobs, pair.transformers(version, whole), pair.bounds.transformers)
        assert states(engine)[lost].startswith("away")

        await until(lambda: both_ready(engine), within_s=RETURN_S)
        await exact_from(pair, engine, lost, version)

    pair.run(scenario, within_s=START_S + RETURN_S)
