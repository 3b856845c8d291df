"""`serving.on_update = "refuse"`: during an update new requests are refused, and running ones are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

from openclaw_rl.serving.engines.protocol import ChatEvent, ChatRequest, PromptRead, TokensDrawn
from openclaw_rl.serving.engines.replicas.engine import ReplicatedEngine
from openclaw_rl.serving.gateway.app import Services, _replicas
from openclaw_rl.serving.gateway.errors import from_engine
from openclaw_rl.serving.gateway.refusing import RefusingEngine, UpdateInProgress
from openclaw_rl.types import SamplingParams
from tests.gateway.fake_engine import FakeEngine

POLL_S = 0.005
REQUEST = ChatRequest(request_id="r", messages=(), sampling=SamplingParams(max_tokens=9), version=0)


class Endless(FakeEngine):
    """Writes until it is closed."""

    closed = False

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        try:
            yield PromptRead(prompt_ids=(1,))
            while True:
                await asyncio.sleep(0.001)
                yield TokensDrawn(ids=(2,), logprobs=(-1.0,), versions=(0,), text="a")
        finally:
            self.closed = True


def test_an_update_cuts_what_is_written_refuses_what_is_new_and_passes() -> None:
    async def main() -> None:
        inner, updating = Endless(), False
        engine = RefusingEngine(inner, lambda: updating, poll_s=POLL_S)
        got: list[ChatEvent] = []

        async def read() -> None:
            nonlocal updating
            async for event in engine.chat(REQUEST):
                got.append(event)
                updating = updating or len(got) == 5

        with pytest.raises(UpdateInProgress):
            await read()
        assert len(got) >= 5
        assert inner.closed
        with pytest.raises(UpdateInProgress) as refused:
            await anext(engine.chat(REQUEST))
        assert from_engine(refused.value).status == 503
        updating = False
        await asyncio.sleep(20 * POLL_S)
        events = engine.chat(REQUEST)
        assert isinstance(await anext(events), PromptRead)
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_replicas_are_seen_through_it() -> None:
    replicated = ReplicatedEngine({"http://one": FakeEngine(), "http://two": FakeEngine()})
    seen = [
        _replicas(cast(Services, SimpleNamespace(engine=engine)))
        for engine in (replicated, RefusingEngine(replicated, lambda: False))
    ]
    assert [one["url"] for one in seen[0]] == ["http://one", "http://two"]
    assert seen[0] == seen[1]
