"""What every engine promises where it is asked for too much, or left alone: the first part of `contract.py`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    EngineError,
    EngineOverloaded,
    InvalidEngineRequest,
    ScoreRequest,
    UnknownVersion,
)
from openclaw_rl.types import FinishReason, PolicyVersion, SamplingParams
from tests.engines.harness import EngineHarness, Stream, answer, assert_close, record, until
from tests.engines.over_http import CHAT, client_of, is_ready
from tests.engines.support import STORY, request

ROOM = 6
"""Tokens that a story which nearly fills the context is left: fewer than anybody tells one in."""


def told_by(version: PolicyVersion | None, **sampling: Any) -> ChatRequest:
    """The same story, told by a version; None: by the base."""
    return request(STORY, version=0 if version is None else version.version, **{"temperature": 1.0, **sampling})


class LimitsContract:
    """The promises. See the module."""

    # --- too long ----------------------------------------------------------------------------------------------

    def test_a_prompt_that_is_too_long_is_refused_by_name(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> None:
            length = (await engine.health()).context_length
            with pytest.raises(InvalidEngineRequest) as caught:
                await answer(engine, request("long " * (length + 10)))
            assert (caught.value.status, caught.value.param) == (400, "messages")
            assert caught.value.code == "context_length_exceeded"
            if engine.capabilities.score:
                with pytest.raises(InvalidEngineRequest):
                    await engine.score(ScoreRequest(ids=(1,) * (length + 1), start=1, version=0))

        harness.run(scenario)

    def test_an_answer_ends_where_the_context_does(self, harness: EngineHarness) -> None:
        """`max_tokens` is what the context leaves, and not one more or less."""
        room = harness.config.engine.context_length - len(harness.rendered(request(STORY)))
        asked = request("long " * (room - ROOM) + STORY, max_tokens=10_000)

        async def scenario(engine: Engine) -> Stream:
            await engine.health()  # as whoever serves it has done before: an upstream tells its context so
            return await answer(engine, asked)

        stream = harness.run(scenario)
        assert stream.finished is not None
        assert stream.finished.finish_reason is FinishReason.LENGTH
        assert len(stream.ids) == ROOM == stream.finished.completion_tokens
        assert len(stream.prompt) + len(stream.ids) == harness.config.engine.context_length
        assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    # --- at fault ----------------------------------------------------------------------------------------------

    def test_a_content_part_that_is_not_text_is_refused_by_name(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> None:
            image = {"type": "image_url", "image_url": {"url": "data:,"}}
            asked = ChatRequest(
                request_id="r",
                messages=({"role": "user", "content": [image]},),
                sampling=SamplingParams(max_tokens=4),
                version=0,
            )
            with pytest.raises(InvalidEngineRequest) as caught:
                await answer(engine, asked)
            assert caught.value.param == "messages[0].content[0]"

        harness.run(scenario)

    def test_bad_scores_and_unknown_versions_are_refused(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=987))
            if engine.capabilities.score:
                for bad in (
                    ScoreRequest(ids=(1,), start=1, version=0),
                    ScoreRequest(ids=(1, 2, 3), start=0, version=0),
                    ScoreRequest(ids=(1, 10**7), start=1, version=0),
                ):
                    with pytest.raises(InvalidEngineRequest):
                        await engine.score(bad)

        harness.run(scenario)

    # --- left alone --------------------------------------------------------------------------------------------

    def test_a_client_that_leaves_ends_its_generation(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> float:
            streams = [Stream(engine, request(STORY, temperature=1.0, max_tokens=400)) for _ in range(3)]
            for stream in streams:
                await stream.reach(3)
            await until(lambda: has_requests(engine, 3), within_s=10)  # SGLang's count comes a while after
            for stream in streams:
                await stream.leave()
            return await until(lambda: has_requests(engine, 0), within_s=10)

        assert harness.run(scenario) < 5.0

    def test_a_client_that_hangs_up_on_the_gateway_ends_its_generation(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """From the client's connection to the engine's own count of what it is at."""

        async def scenario(engine: Engine) -> float:
            with record(tmp_path) as store:
                async with harness.gateway(store, engine) as url, client_of(url) as http:
                    await until(lambda: is_ready(http), within_s=20)
                    body = {"model": "policy", "stream": True, "temperature": 1.0, "max_tokens": 400}
                    said = [{"role": "user", "content": STORY}]
                    async with http.stream("POST", CHAT, json={**body, "messages": said}) as response:
                        assert response.status_code == 200
                        lines, pieces = response.aiter_lines(), 0
                        while pieces < 4:
                            pieces += '"content":"' in await anext(lines)
                        await until(lambda: has_requests(engine, 1), within_s=10)
                    return await until(lambda: has_requests(engine, 0), within_s=10)

        assert harness.run(scenario) < 5.0

    # --- too many ----------------------------------------------------------------------------------------------

    def test_a_full_queue_refuses_and_those_in_it_are_answered(self, harness: EngineHarness) -> None:
        if not harness.has_queue:
            pytest.skip("this adapter leaves it to its upstream how many may wait")
        parallel, queue = harness.config.engine.max_parallel, harness.config.serving.max_queue
        asked = request(STORY, max_tokens=48)

        async def scenario(engine: Engine) -> list[Stream]:
            streams: list[Stream] = []
            for more, expected in ((parallel, (parallel, 0)), (queue, (parallel, queue))):
                streams += [Stream(engine, asked) for _ in range(more)]

                async def counted(expected: tuple[int, int] = expected) -> bool:
                    health = await engine.health()
                    return (health.active_requests, health.queued_requests) == expected

                await until(counted, within_s=60)
            with pytest.raises(EngineOverloaded):
                await answer(engine, asked)
            assert not any(stream.finished for stream in streams), "there was room again: this shows nothing"
            return [await stream.end() for stream in streams]

        for stream in harness.run(scenario):
            assert stream.finished is not None
            assert stream.finished.completion_tokens == len(stream.ids) > 0
            assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    def test_a_version_in_use_makes_no_room_and_one_that_nobody_uses_does(self, harness: EngineHarness) -> None:
        """All places taken by versions that answer: another gets the place of the one whose answer ends first, though
        others were used longer ago."""
        *versions, late = [harness.lora() for _ in range(harness.config.engine.max_versions + 1)]

        async def scenario(engine: Engine) -> tuple[list[Stream], Stream]:
            streams = []
            for version in versions:
                await engine.load_version(version)
                streams.append(Stream(engine, told_by(version, temperature=0.0, max_tokens=400)))
                await streams[-1].reach(2)
            if harness.bounds_versions:
                with pytest.raises(EngineOverloaded):
                    await engine.load_version(late)
                assert late.version not in (await engine.health()).loaded_versions
            else:
                await engine.load_version(late)
            kept = {version.version for version in versions}
            assert kept <= set((await engine.health()).loaded_versions)
            await streams[1].leave()

            async def made_room() -> bool:
                with contextlib.suppress(EngineOverloaded):  # the end of the answer is still on its way
                    await engine.load_version(late)
                loaded = set((await engine.health()).loaded_versions)
                return loaded - {0} == kept - {versions[1].version} | {late.version}

            await until(made_room, within_s=30)
            for stream in (streams[0], *streams[2:]):
                await stream.reach(len(stream.ids) + 4)
            new = await answer(engine, told_by(late, max_tokens=8))
            for stream in streams:
                await stream.leave()
            return streams, new

        streams, new = harness.run(scenario)
        for version, stream in zip((*versions, late), (*streams, new), strict=True):
            assert set(stream.versions) == {version.version}
            assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    # --- without a distribution --------------------------------------------------------------------------------

    def test_a_version_without_a_distribution_gives_an_error_or_no_number(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> tuple[Stream, Stream, Stream | None]:
            broken = harness.lora(scale=1e36)
            await engine.load_version(broken)
            other = Stream(engine, request(STORY, max_tokens=24))
            await other.reach(2)
            failed = None
            with contextlib.suppress(EngineError):
                failed = await answer(engine, request(version=broken.version, max_tokens=4))
            await engine.unload_version(broken.version)
            await other.end()
            assert (await engine.health()).ready
            return other, await answer(engine, request(STORY, max_tokens=24)), failed

        other, after, failed = harness.run(scenario)
        assert failed is None or all(logprob is None for logprob in failed.logprobs)
        for stream in (other, after):
            assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)


async def has_requests(engine: Engine, count: int) -> bool:
    """Whether the engine says that it has so many requests, at work or waiting."""
    health = await engine.health()
    return health.active_requests + health.queued_requests == count
