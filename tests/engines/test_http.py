"""The whole way: client, HTTP, server. In a thread with the tiny model; and the scripted engine, in process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from openclaw_rl.config import Config
from openclaw_rl.serving.engines.embedded import server, wire
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    Engine,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    TokensDrawn,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.testing.engine_server import engine_server
from openclaw_rl.testing.scripted_engine import END_TOKEN, ScriptedEngine, logprob_of
from openclaw_rl.types import FinishReason, PolicyVersion
from tests.engines.support import ask, config_for, request, write_adapter
from tests.unreadable import FAILING, failing

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def served(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = config_for(tiny, port=port)
    config = config.model_copy(update={"run_dir": tmp_path_factory.mktemp("run")})
    stop = threading.Event()
    thread = threading.Thread(target=server.run, args=(config, stop))
    thread.start()
    try:
        asyncio.run(_until_ready(config))
        yield config
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


async def _until_ready(config: Config) -> None:
    engine = EmbeddedEngine.from_config(config)
    async with asyncio.timeout(60):
        while True:
            try:
                if (await engine.health()).ready:
                    break
            except EngineUnavailable:
                pass
            await asyncio.sleep(0.05)
    await engine.close()


def test_generation_score_and_versions_over_http(served: Config, adapters: dict[int, PolicyVersion]) -> None:
    async def main() -> None:
        engine = EmbeddedEngine.from_config(served)
        await engine.load_version(adapters[1])
        asked = request(version=1, temperature=1.0, seed=4, max_tokens=16)
        answer = await ask(engine, asked)
        assert answer.prompt == await engine.render(asked.messages, ())
        assert answer.finished.completion_tokens == len(answer.ids) == len(answer.logprobs)
        scored = await engine.score(ScoreRequest(ids=answer.prompt + answer.ids, start=len(answer.prompt), version=1))
        assert scored.logprobs == pytest.approx(answer.logprobs, abs=1e-4)
        assert (await engine.health()).loaded_versions == (0, 1)
        await engine.unload_version(1)
        with pytest.raises(UnknownVersion):
            await ask(engine, asked)
        await engine.close()

    asyncio.run(main())


@pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")
@pytest.mark.parametrize("name", ["manifest.json", "adapter/adapter_model.safetensors"])
def test_a_version_that_cannot_be_read_is_not_refused_for_good(
    served: Config, tiny: Path, tmp_path: Path, name: str
) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)

    async def main() -> None:
        engine = EmbeddedEngine.from_config(served)
        with failing(tmp_path / "step-9" / name), pytest.raises(UnreadableVersion, match=f"{name} cannot be read"):
            await engine.load_version(version)
        await engine.load_version(version)
        await engine.unload_version(version.version)
        await engine.close()

    asyncio.run(main())


def test_errors_arrive_as_what_they_are(served: Config) -> None:
    async def main() -> None:
        engine = EmbeddedEngine.from_config(served)
        with pytest.raises(InvalidEngineRequest) as caught:
            await ask(engine, request("long " * 600))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(InvalidEngineRequest):
            await engine.score(ScoreRequest(ids=(1,), start=1, version=0))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.engine.port}", trust_env=False) as http:
            assert (await http.post("/chat", content="{")).status_code == 400
            assert (await http.post("/chat", json={"sampling": {}})).status_code == 400
            assert (await http.post("/versions/load", json={"version": "x"})).status_code == 400
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 400),  # a page whose name resolves to loopback
        ({"Content-Type": "text/plain", "Origin": "https://evil.example"}, 400),  # what a page may send unasked
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_a_web_page_cannot_ask_the_engine(served: Config, headers: dict[str, str], status: int) -> None:
    body = '{"messages": [{"role": "user", "content": "hi"}], "tools": []}'
    url = f"http://127.0.0.1:{served.engine.port}/render"
    answer = httpx.post(url, content=body, headers={"Content-Type": "application/json"} | headers)
    assert answer.status_code == status


def test_a_client_that_leaves_cancels_its_generation(served: Config) -> None:
    async def main() -> None:
        engine = EmbeddedEngine.from_config(served)
        events = engine.chat(request(temperature=1.0, seed=1, max_tokens=460))
        for _ in range(3):
            await anext(events)
        assert (await engine.health()).active_requests == 1
        await events.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(1):
            while (await engine.health()).active_requests:  # noqa: ASYNC110 - over HTTP there is no event
                await asyncio.sleep(0.01)
        await engine.close()

    asyncio.run(main())


def test_nobody_there_is_unavailable() -> None:
    async def main() -> None:
        engine = EmbeddedEngine("http://127.0.0.1:9")
        with pytest.raises(EngineUnavailable):
            await engine.health()
        with pytest.raises(EngineUnavailable):
            await ask(engine, request())
        await engine.close()

    asyncio.run(main())


async def into(seen: list[ChatEvent], events: AsyncIterator[ChatEvent]) -> None:
    async for event in events:
        seen.append(event)


@asynccontextmanager
async def scripted(*script: dict[str, Any]) -> AsyncIterator[EmbeddedEngine]:
    with engine_server(ScriptedEngine(script)) as url:
        engine = EmbeddedEngine(url)
        try:
            yield engine
        finally:
            await engine.close()


def test_a_script_answers_by_what_the_user_said_and_calls_tools() -> None:
    async def main() -> None:
        async with scripted(
            {"on": "tool", "match": "rain", "text": "It rains."},
            {"match": "weather", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Bern"}}], "times": 1},
            {"text": "Something else"},
        ) as engine:
            call = await ask(engine, request("The weather?", tools=[WEATHER], max_tokens=200))
            assert call.finished.finish_reason is FinishReason.TOOL_CALLS
            assert call.text == ""
            assert call.tool_calls[0]["function"] == {"name": "get_weather", "arguments": '{"city": "Bern"}'}
            assert call.ids[-1] == END_TOKEN
            assert call.logprobs == tuple(logprob_of(token) for token in call.ids)
            asked = request(tools=[WEATHER], max_tokens=200)
            result = {"role": "tool", "tool_call_id": "a", "content": "rain"}
            object.__setattr__(asked, "messages", ({"role": "user", "content": "The weather?"}, result))
            assert (await ask(engine, asked)).text == "It rains."
            again = await ask(engine, request("The weather?", max_tokens=4))
            assert (again.text, again.finished.finish_reason) == ("Some", FinishReason.LENGTH)

    asyncio.run(main())


def test_a_script_can_misbehave() -> None:
    async def main() -> None:
        async with scripted(
            {"match": "none", "text": "ab", "logprobs": "none"},
            {"match": "nan", "text": "ab", "logprobs": "nan"},
            {"match": "count", "text": "ab", "extra_tokens": 2},
            {"match": "busy", "fail": 429},
            {"match": "break", "text": "abcdef", "fail": 500, "fail_after": 2},
        ) as engine:
            events = [event async for event in engine.chat(request("none"))]
            assert isinstance(events[0], PromptRead)
            drawn = [event for event in events if isinstance(event, TokensDrawn)]
            assert [logprob for event in drawn for logprob in event.logprobs] == [None] * 3
            assert all(math.isnan(logprob) for logprob in (await ask(engine, request("nan"))).logprobs)
            wrong = await ask(engine, request("count"))
            assert wrong.finished.completion_tokens == len(wrong.ids) + 2
            with pytest.raises(EngineOverloaded):
                await ask(engine, request("busy"))
            broken = engine.chat(request("break"))
            seen: list[ChatEvent] = []
            with pytest.raises(EngineError):
                await into(seen, broken)
            drawn = [event for event in seen if isinstance(event, TokensDrawn)]
            assert "".join(event.text for event in drawn) == "ab"
            assert not any(isinstance(event, Finished) for event in seen)

    asyncio.run(main())


def test_a_script_knows_versions_and_scores_as_it_answers() -> None:
    async def main() -> None:
        async with scripted({"text": "hello"}) as engine:
            with pytest.raises(UnknownVersion):
                await ask(engine, request(version=1))
            await engine.load_version(PolicyVersion(version=1, state="serving", path="x", step=1, created_at=0.0))  # type: ignore[arg-type]
            answer = await ask(engine, request(version=1))
            assert set(answer.versions) == {1}
            ids = answer.prompt + answer.ids
            scored = await engine.score(ScoreRequest(ids=ids, start=len(answer.prompt), version=1))
            assert scored.logprobs == answer.logprobs
            await engine.unload_version(1)
            assert (await engine.health()).loaded_versions == (0,)

    asyncio.run(main())


def test_a_client_that_dies_in_the_middle_of_its_request_leaves_no_error(
    served: Config, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.engine.port), timeout=10) as client:
            head = (
                "POST /score HTTP/1.1",
                "Host: 127.0.0.1",
                "Content-Type: application/json",
                "Content-Length: 999",
            )
            client.sendall("\r\n".join((*head, "", '{"ids": [1')).encode())
    health = httpx.get(f"http://127.0.0.1:{served.engine.port}/health", verify=False)
    assert health.json()["ready"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


class Slow:
    """An engine whose first event takes for ever; `ended` is set when it is not wanted any more."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    async def chat(self, _request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
            yield PromptRead(prompt_ids=())
        finally:
            self.ended.set()


def test_a_client_that_leaves_before_the_first_event_ends_it() -> None:
    engine = Slow()

    async def main(url: str) -> None:
        asking = EmbeddedEngine(url)
        waiting = asyncio.create_task(ask(asking, request()))
        assert await asyncio.to_thread(engine.begun.wait, 10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await asyncio.to_thread(engine.ended.wait, 10)
        await asking.close()

    with engine_server(cast(Engine, engine)) as url:
        asyncio.run(main(url))


def test_who_answers_and_that_nobody_else_may_go_over_the_wire() -> None:
    read = PromptRead(prompt_ids=(1, 2), version=3)
    assert list(wire.events_from_lines([wire.event_to_line(read).encode()])) == [read]
    asked = dataclasses.replace(request(version=3), pinned=True)
    assert wire.chat_request_from_json(json.loads(json.dumps(wire.chat_request_to_json(asked)))) == asked
