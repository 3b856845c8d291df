"""`SglangEngine` against a server that answers as SGLang does."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import MODEL_DIR, write_manifest
from openclaw_rl.serving.engines.embedded.app import serve
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang.client import SglangEngine
from openclaw_rl.types import PolicyVersion
from tests.engines.fake_sglang import DRAWN, FakeSglang, create_fake
from tests.engines.harness import Stream, answer
from tests.engines.support import request, until, version_of


@asynccontextmanager
async def engine_for(fake: FakeSglang, tiny: Path, **sections: Any) -> AsyncIterator[SglangEngine]:
    """An engine that is attached to the fake, which listens for the time of a block."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url, stop = f"http://127.0.0.1:{port}", threading.Event()
    listening = asyncio.create_task(serve(create_fake(fake), "127.0.0.1", port, stop, lambda: None))
    values = {"kind": "sglang", "urls": [url], "max_versions": 2, "context_length": 80, **sections.pop("engine", {})}
    config = Config.model_validate({"model": {"path": str(tiny)}, "engine": values, **sections})
    engine = SglangEngine.from_config(config, url)
    try:
        while True:
            try:
                await engine.health()
                break
            except EngineUnavailable:
                await asyncio.sleep(0.01)
        yield engine
    finally:
        await engine.close()
        stop.set()
        await listening


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> PolicyVersion:
    """Version 7, a whole model."""
    path = tmp_path_factory.mktemp("step-7") / MODEL_DIR
    load_causal_lm(tiny).save_pretrained(path)
    write_manifest(path, {})
    return version_of(path, 7)


def test_an_answer_is_what_sglang_drew(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def scenario() -> None:
        fake = FakeSglang()
        async with engine_for(fake, tiny) as engine:
            base = await answer(engine, request("Hi", max_tokens=3))
            assert (base.ids, base.versions, base.logprobs) == (DRAWN, (0,) * 3, (-0.5,) * 3)
            assert {"lora_path", "extra_key"}.isdisjoint(fake.generated[-1])
            await engine.load_version(adapters[1])
            adapted = await answer(engine, request("Hi", version=1, max_tokens=3))
            assert adapted.versions == (1,) * 3
            assert [fake.generated[-1]["lora_path"]] == list(fake.adapters)

    run(scenario)


def test_with_one_place_the_version_before_stays_beside_the_new_one(
    tiny: Path, adapters: dict[int, PolicyVersion]
) -> None:
    async def scenario() -> None:
        async with engine_for(FakeSglang(), tiny) as engine:
            for number in (1, 2, 3):
                await engine.load_version(adapters[number])
            assert (await engine.health()).loaded_versions == (0, 2, 3)

    run(scenario)


def test_a_request_that_waits_in_the_queue_has_begun(tiny: Path) -> None:
    """So that whoever holds other loads back until then does not hold them back through a queue."""

    async def scenario() -> None:
        fake = FakeSglang(holding=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            asked = request("Hi", max_tokens=3)
            events = engine.chat(asked)
            async with asyncio.timeout(5):
                assert await anext(events) == PromptRead(prompt_ids=await engine.render(asked.messages, ()))
            await events.aclose()  # type: ignore[attr-defined]
            await until(lambda: bool(fake.aborted))
            assert fake.aborted == [fake.generated[-1]["rid"]]

    run(scenario)


def test_more_than_there_is_room_for_are_refused_before_they_begin(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeSglang(holding=asyncio.Event())
        limits: dict[str, Any] = {"engine": {"max_parallel": 1}, "serving": {"max_queue": 1}}
        async with engine_for(fake, tiny, **limits) as engine:
            streams = [Stream(engine, request(max_tokens=3)) for _ in range(2)]
            await until(lambda: len(fake.generated) == 2)
            with pytest.raises(EngineOverloaded):
                await answer(engine, request())
            assert fake.holding is not None
            fake.holding.set()
            for stream in streams:
                await stream.end()
            await answer(engine, request(max_tokens=3))

    run(scenario)


def test_whoever_asks_for_whole_weights_that_were_replaced_is_told_who_answers(
    tiny: Path, whole: PolicyVersion
) -> None:
    async def scenario() -> None:
        fake = FakeSglang()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(whole)
            asked = request("Hi", version=0, max_tokens=3)
            events = [event async for event in engine.chat(asked)]
            assert isinstance(events[0], PromptRead)
            assert events[0].version == 7
            assert fake.generated[-1]["extra_key"] == fake.weights
            assert (await answer(engine, asked)).versions == (7,) * 3
            with pytest.raises(UnknownVersion):
                await answer(engine, dataclasses.replace(asked, pinned=True))
            ours = [event async for event in engine.chat(dataclasses.replace(asked, version=7, pinned=True))]
            assert isinstance(ours[0], PromptRead)
            assert ours[0].version is None

    run(scenario)


def test_while_weights_are_replaced_it_is_well_and_nobody_asks_it(tiny: Path, whole: PolicyVersion) -> None:
    async def scenario() -> None:
        fake = FakeSglang(updating=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            before = await engine.health()
            loading = asyncio.create_task(engine.load_version(whole))
            await until(lambda: fake.paused)
            fake.fails |= {path: EngineUnavailable("busy") for path in ("/server_info", "/v1/models", "/v1/loads")}
            assert await engine.health() == before
            fake.fails.clear()
            assert fake.updating is not None
            fake.updating.set()
            await loading
            assert (await engine.health()).loaded_versions == (0, 7), "the base is on its way out"

    run(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_adapter_draws_over_other_weights_is_not_told_as_its_versions(
    tiny: Path, adapters: dict[int, PolicyVersion], whole: PolicyVersion, fails: bool
) -> None:
    """A whole model takes the base's place, or its files were read in part and the way back failed, too."""

    async def scenario() -> None:
        fake = FakeSglang(after_first=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(adapters[1])
            stream = Stream(engine, request("Hi", version=1, max_tokens=3))
            await stream.reach(1)
            await replace(fake, engine, whole, fails=fails)
            assert fake.after_first is not None
            fake.after_first.set()
            await stream.end()
            assert (stream.ids, stream.versions) == (DRAWN, (1,) * 3), "the text goes on"
            assert stream.logprobs == (-0.5, None, None)

    run(scenario)


def test_what_is_drawn_after_a_failed_replacement_is_not_told_as_the_version_before(
    tiny: Path, whole: PolicyVersion
) -> None:
    async def scenario() -> None:
        fake = FakeSglang(after_first=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            stream = Stream(engine, request("Hi", max_tokens=3))
            await stream.reach(1)
            await replace(fake, engine, whole, fails=True)
            assert fake.after_first is not None
            fake.after_first.set()
            await stream.end()
            assert (stream.ids, stream.versions) == (DRAWN, (0,) * 3)
            assert stream.logprobs == (-0.5, None, None)
            await engine.load_version(whole)
            answered = await answer(engine, request("Hi", version=7, max_tokens=3))
            assert (answered.versions, answered.logprobs) == ((7,) * 3, (-0.5,) * 3)

    run(scenario)


async def replace(fake: FakeSglang, engine: SglangEngine, version: PolicyVersion, *, fails: bool) -> None:
    """Put a whole model in the place of what is there; or fail over it, so that nobody knows what is there."""
    if not fails:
        await engine.load_version(version)
        return
    fake.fails["/update_weights_from_disk"] = EngineError("Failed to update weights: no space left")
    with pytest.raises(EngineError, match="no space left"):
        await engine.load_version(version)
    del fake.fails["/update_weights_from_disk"]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_scores_of_other_weights_are_told_for_no_version(
    tiny: Path, adapters: dict[int, PolicyVersion], whole: PolicyVersion, version: int, fails: bool
) -> None:
    async def scenario() -> None:
        fake = FakeSglang()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(adapters[1])
            asked = ScoreRequest(ids=(7, 8, 9), start=2, version=version)
            assert (await engine.score(asked)).logprobs == (-0.09,)
            fake.holding = asyncio.Event()
            scoring = asyncio.create_task(engine.score(asked))
            await until(lambda: len(fake.generated) == 2)
            await replace(fake, engine, whole, fails=fails)
            fake.holding.set()
            with pytest.raises(UnknownVersion):
                await scoring

    run(scenario)


def test_a_server_that_draws_ahead_of_what_it_has_told_gets_no_whole_model(
    tiny: Path, adapters: dict[int, PolicyVersion], whole: PolicyVersion
) -> None:
    """With overlap a pass over the old weights is counted only after the pause, as if the new ones had drawn it."""

    async def scenario() -> None:
        fake = FakeSglang(info={"disable_overlap_schedule": False}, weights="somebody's")
        async with engine_for(fake, tiny) as engine:
            fake.asked.clear()
            with pytest.raises(InvalidEngineRequest, match="--disable-overlap-schedule"):
                await engine.load_version(whole)
            assert fake.asked == []
            await engine.load_version(adapters[1])
            assert (await engine.health()).loaded_versions == (0, 1), "over the base, which was put back"

    run(scenario)


def test_the_key_of_a_server_is_sent_with_every_question(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeSglang(key="k1")
        async with engine_for(fake, tiny, engine={"api_key": "k1"}) as engine:
            assert (await answer(engine, request(max_tokens=3))).ids == DRAWN
        with pytest.raises(EngineError, match=r"engine\.api_key: Unauthorized") as refused:
            async with engine_for(fake, tiny, engine={"api_key": "k2"}):
                pass
        assert not isinstance(refused.value, InvalidEngineRequest), "no client's fault, and no version's"

    run(scenario)
