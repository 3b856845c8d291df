"""The adapter over real HTTP: against our own gateway, and against an upstream that fails as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.openai.client import OpenAIEngine, upstream_name
from openclaw_rl.serving.engines.openai.features import Features, LearnsFromAnswers
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.types import FinishReason, PolicyVersion, VersionState
from tests.engines.openai.upstream import EXACT, PLAIN, USAGE, Reply, Upstream, delta, exact, listening
from tests.engines.support import Answer, ask, request
from tests.gateway.conftest import running
from tests.gateway.fake_engine import FakeEngine, Said, call

T = TypeVar("T")


def using(url: str, body: Callable[[OpenAIEngine], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        engine = OpenAIEngine(url, **{"model": "big", **options})
        try:
            return await asyncio.wait_for(body(engine), 30)
        finally:
            await engine.close()

    return asyncio.run(main())


def answer(upstream: Upstream, **sampling: Any) -> Answer:
    return using(upstream.url, lambda engine: ask(engine, request(**{"temperature": 1.0, **sampling})))


def test_our_own_gateway_is_an_upstream_that_tells_everything(tmp_path: Path) -> None:
    said = Said(text="two words", tool_calls=tuple(call(0, "look", '{"at": "it"}')))
    with running(tmp_path / "run", FakeEngine(say=lambda _: said)) as gateway:

        async def talk(engine: OpenAIEngine) -> tuple[Answer, Features]:
            tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
            return await ask(engine, request(temperature=1.0, tools=tools)), engine.features

        got, features = using(f"{gateway.url}/v1", talk, model="policy")
        recorded = gateway.turn(gateway.requests()[-1]["turn_id"])
    assert got.prompt == (1, 2, 3) == recorded.tokens.prompt_ids
    assert got.ids == (10, 11, 500, 501) == recorded.tokens.response_ids
    assert got.logprobs == (-0.10, -0.11, -5.0, -5.01) == recorded.tokens.logprobs
    assert got.text == "two words"
    assert "".join(delta["function"].get("arguments", "") for delta in got.tool_calls) == '{"at": "it"}'
    assert got.finished.finish_reason is FinishReason.TOOL_CALLS
    assert (got.finished.prompt_tokens, got.finished.completion_tokens) == (3, 4)
    assert features.trainable


def test_an_upstream_that_refuses_what_we_add_is_asked_without_it_from_then_on() -> None:
    refused = Reply(status=400, body={"error": {"message": "Unrecognized request argument: return_token_ids"}})
    with listening(refused, PLAIN) as upstream:

        async def twice(engine: OpenAIEngine) -> tuple[Answer, Answer, Features]:
            return await ask(engine, request()), await ask(engine, request()), engine.features

        first, second, features = using(upstream.url, twice)
    assert first.text == second.text == "Good day."
    assert first.ids == ()
    assert ["return_token_ids" in body for body in upstream.asked] == [True, False, False]
    assert features.words() == "served and judged, not trainable: the upstream returns no token ids"
    assert not features.capabilities.logprobs


def test_a_refusal_that_is_the_clients_is_passed_on_and_nothing_is_given_up_for_it() -> None:
    wrong = Reply(status=400, body={"error": {"message": "stop?", "param": "stop", "code": "invalid_value"}})
    with listening(wrong, EXACT) as upstream:

        async def twice(engine: OpenAIEngine) -> Answer:
            with pytest.raises(InvalidEngineRequest) as refused:
                await ask(engine, request())
            assert (refused.value.param, refused.value.code) == ("stop", "invalid_value")
            return await ask(engine, request(temperature=1.0))

        assert using(upstream.url, twice).ids == (5, 6)
    assert all(body["return_token_ids"] for body in upstream.asked)


def test_raw_logprobs_are_those_of_the_draw_at_temperature_one_only() -> None:
    with listening(EXACT) as upstream:
        assert answer(upstream).logprobs == (-0.5, -0.6)
        assert answer(upstream, temperature=0.5).logprobs == ()
        processed = using(upstream.url, lambda engine: ask(engine, request(temperature=0.5)), raw_logprobs=False)
        assert processed.logprobs == (-0.5, -0.6)
        assert processed.ids == (5, 6)


def test_an_upstream_that_does_not_stream_is_read_whole() -> None:
    whole = {
        "choices": [{"message": {"content": "Good day."}, "finish_reason": "length"}],
        "usage": USAGE["usage"],
    }
    with listening(Reply(body=whole)) as upstream:
        got = answer(upstream)
    assert (got.text, got.finished.finish_reason, got.finished.completion_tokens) == ("Good day.", "length", 2)


def test_the_key_goes_with_each_request_and_to_nobody_else() -> None:
    with listening(PLAIN) as upstream:
        using(upstream.url, lambda engine: ask(engine, request()), api_key="sk-1")
        using(upstream.url, lambda engine: ask(engine, request()))
    assert upstream.keys == ["Bearer sk-1", None]


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(status=503, body={}), EngineUnavailable, "not available"),
        (Reply(status=500, body="<html>"), EngineError, "failed \\(500\\)"),
        (Reply(status=302, headers=(("location", "http://127.0.0.1:1/"),), body={}), EngineError, "302"),
        (Reply(events=[delta("Good ")], cut=True), EngineUnavailable, "lost"),
        (Reply(events=[delta("Good ")]), EngineError, "without finishing"),
        (Reply(events=["no json"]), EngineError, "not JSON"),
        (Reply(events=[delta("Good "), {"error": {"message": "out of memory"}}]), EngineError, "out of memory"),
    ],
)
def test_every_way_to_fail_has_its_words(reply: Reply, kind: type[EngineError], words: str) -> None:
    with listening(reply) as upstream, pytest.raises(kind, match=words):
        answer(upstream)


def test_nobody_there_and_nobody_answering() -> None:
    with listening() as upstream:
        gone = upstream.url
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        using(gone, lambda engine: ask(engine, request()))
    with listening(Reply(before_s=1.0, body={})) as upstream, pytest.raises(EngineError, match="took too long"):
        using(upstream.url, lambda engine: ask(engine, request()), request_timeout_s=0.2)


def test_closing_the_answer_closes_the_connection_upstream() -> None:
    endless = Reply(events=[exact("word ", 5)] * 400, pause_s=0.01)
    with listening(endless) as upstream:

        async def leave(engine: OpenAIEngine) -> None:
            async with contextlib.aclosing(engine.chat(request())) as events:  # type: ignore[type-var]
                async for _ in events:
                    break

        using(upstream.url, leave)
        end = time.monotonic() + 5
        while not upstream.left_early and time.monotonic() < end:
            time.sleep(0.01)
        assert upstream.left_early == 1


VERSION = PolicyVersion(version=2, state=VersionState.CANDIDATE, path="/runs/a/adapter", step=2, created_at=1.5)


def test_versions_are_loaded_under_a_name_of_this_deployment_and_seen_in_the_list() -> None:
    name = upstream_name(VERSION)
    assert name.startswith("policy-v2-")
    assert name != upstream_name(replace(VERSION, path="/runs/b/adapter"))
    with listening(EXACT, lora=Reply(body="Success")) as upstream:

        async def work(engine: OpenAIEngine) -> list[tuple[int, ...]]:
            with pytest.raises(UnknownVersion):
                await ask(engine, request(version=2))
            await engine.load_version(VERSION)
            await ask(engine, request(version=2))
            loaded = [(await engine.health()).loaded_versions]
            engine._look_due = 0.0  # it was restarted: its list is without the adapter
            loaded.append((await engine.health()).loaded_versions)
            upstream.models = Reply(body={"data": [{"id": "big"}, {"id": name}]})
            await engine.load_version(VERSION)
            await engine.unload_version(2)
            loaded.append((await engine.health()).loaded_versions)
            return loaded

        assert using(upstream.url, work) == [(0, 2), (0,), (0,)]
    assert upstream.asked[-1]["model"] == name
    assert upstream.loads == [{"lora_name": name, "lora_path": VERSION.path}, {"lora_name": name}]


def test_of_many_versions_the_last_few_are_left_there_and_none_that_answers() -> None:
    versions = {number: replace(VERSION, version=number) for number in range(1, 7)}
    slow = Reply(events=[exact("a ", 5) | {"prompt_token_ids": [1, 2]}, delta(finish="stop"), USAGE], pause_s=0.3)
    with listening(slow, lora=Reply(body="Success")) as upstream:

        async def work(engine: OpenAIEngine) -> tuple[tuple[int, ...], tuple[int, ...]]:
            for number in range(1, 6):
                await engine.load_version(versions[number])
            await ask(engine, request(version=2))
            talking = asyncio.create_task(ask(engine, request(version=1)))
            await asyncio.sleep(0.1)
            await engine.load_version(versions[6])
            during = await health_now(engine)
            await talking
            return during, await health_now(engine)

        async def health_now(engine: OpenAIEngine) -> tuple[int, ...]:
            upstream.models = listed(upstream)
            engine._look_due = 0.0
            return (await engine.health()).loaded_versions

        during, after = using(upstream.url, work, max_versions=2)
    assert during == (0, 1, 6), "the two used last; 2 was used before 1"
    assert after == (0, 1, 6)
    unloaded = [body["lora_name"] for body in upstream.loads if "lora_path" not in body]
    assert unloaded == [upstream_name(versions[number]) for number in (3, 4, 5, 2)], "the one used longest ago first"


def test_a_version_that_is_asked_for_while_another_is_unloaded_stays() -> None:
    versions = {number: replace(VERSION, version=number) for number in range(1, 5)}
    with listening(lora=Reply(body="Success")) as upstream:

        async def work(engine: OpenAIEngine) -> None:
            for version in versions.values():
                await engine.load_version(version)
            unload = engine.unload_version

            async def unloading(version: int) -> None:
                engine._users[2] = 1  # a request begins
                await unload(version)

            engine.unload_version = unloading  # type: ignore[method-assign]
            upstream.models = listed(upstream)
            await engine.health()

        using(upstream.url, work, max_versions=2)
    unloaded = [body["lora_name"] for body in upstream.loads if "lora_path" not in body]
    assert unloaded == [upstream_name(versions[1])]


def test_what_is_too_many_goes_also_where_the_list_was_just_looked_at() -> None:
    with listening(EXACT, lora=Reply(body="Success")) as upstream:

        async def work(engine: OpenAIEngine) -> tuple[int, ...]:
            for number in range(1, 5):
                await engine.load_version(replace(VERSION, version=number))
                upstream.models = listed(upstream)
            return (await engine.health()).loaded_versions

        assert using(upstream.url, work, max_versions=2) == (0, 3, 4)


def test_the_upstream_is_asked_for_no_files_that_are_not_what_was_written(
    adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    shutil.copytree(Path(adapters[1].path or ""), tmp_path / "step", dirs_exist_ok=True)
    adapter = tmp_path / "step" / "adapter"
    write_manifest(adapter, {})
    version = replace(adapters[1], path=str(adapter))
    with listening(EXACT, lora=Reply(body="Success")) as upstream:
        using(upstream.url, lambda engine: engine.load_version(version))
        assert [body["lora_path"] for body in upstream.loads] == [str(adapter)]
        (adapter / "adapter_config.json").write_text("{}")
        with pytest.raises(InvalidEngineRequest, match="not the file that was written"):
            using(upstream.url, lambda engine: engine.load_version(version))
        (adapter / "adapter_config.json").rename(adapter / "config.json")
        write_manifest(adapter, {})
        with pytest.raises(InvalidEngineRequest, match="whole model"):
            using(upstream.url, lambda engine: engine.load_version(version))
        assert len(upstream.loads) == 1


def test_the_context_that_the_upstream_tells_bounds_what_is_asked_for() -> None:
    with listening(EXACT) as upstream:

        async def work(engine: OpenAIEngine) -> None:
            await engine.health()
            await ask(engine, request(temperature=1.0, max_tokens=10_000))

        using(upstream.url, work)
    assert upstream.asked[0]["max_tokens"] == 4096


def listed(upstream: Upstream) -> Reply:
    """The list of models as it is now."""
    return Reply(body={"data": [{"id": "big"}, *({"id": name} for name in names_there(upstream))]})


def names_there(upstream: Upstream) -> set[str]:
    """What was loaded and not unloaded since."""
    there: dict[str, bool] = {}
    for body in upstream.loads:
        there[body["lora_name"]] = "lora_path" in body
    return {name for name, loaded in there.items() if loaded}


def test_one_answer_that_went_another_way_changes_nothing_three_in_a_row_do() -> None:
    with listening(EXACT, PLAIN, PLAIN, EXACT, PLAIN, PLAIN, PLAIN, EXACT) as upstream:

        async def work(engine: OpenAIEngine) -> list[bool]:
            found = []
            for _ in range(8):
                await ask(engine, request(temperature=1.0))
                found.append(engine.capabilities.token_ids and engine.capabilities.logprobs)
            return found

        assert using(upstream.url, work) == [True, True, True, True, True, True, False, True]


def test_what_answers_tell_is_told_on_and_what_is_in_doubt_is_not() -> None:
    with listening(PLAIN, PLAIN, EXACT, PLAIN, PLAIN, PLAIN) as upstream:

        async def work(engine: OpenAIEngine) -> list[bool | None]:
            assert isinstance(engine, LearnsFromAnswers)
            assert engine.url == upstream.url
            found = []
            for _ in range(6):
                await ask(engine, request(temperature=1.0))
                found.append(engine.told.get("token_ids"))
            return found

        assert using(upstream.url, work) == [None, None, True, True, True, False]


def test_a_connection_that_was_closed_before_a_word_came_is_no_failure_the_first_time() -> None:
    with listening(EXACT, Reply(mute=True), EXACT, Reply(mute=True)) as upstream:

        async def work(engine: OpenAIEngine) -> None:
            assert (await ask(engine, request(temperature=1.0))).text == "Good day."
            assert (await ask(engine, request(temperature=1.0))).text == "Good day."
            assert len(upstream.asked) == 3
            with pytest.raises(EngineUnavailable, match="was lost"):
                await ask(engine, request(temperature=1.0))

        using(upstream.url, work)
    assert len(upstream.asked) == 5


def test_an_upstream_that_loads_none_says_so() -> None:
    with listening() as upstream, pytest.raises(InvalidEngineRequest, match="loads no versions"):
        using(upstream.url, lambda engine: engine.load_version(VERSION))


NO_ADAPTER = {"error": {"message": "Loading lora x failed: No adapter found for /x", "code": 404}}


def test_an_upstream_that_does_not_see_the_files_is_not_one_that_loads_none() -> None:
    seen = pytest.raises(UnreadableVersion, match=r"must see the same files .*No adapter found")
    with listening(lora=Reply(status=404, body=NO_ADAPTER)) as upstream, seen:
        using(upstream.url, lambda engine: engine.load_version(VERSION))


@pytest.mark.parametrize(
    ("reply", "lora", "expected"),
    [
        (EXACT, Reply(status=404, body=NO_ADAPTER), (1, 1, 1)),
        (EXACT, Reply(status=500, body={"error": {"message": "LoRA is not enabled. Use --enable-lora"}}), (1, 1, 0)),
        (EXACT, Reply(status=404, body={"detail": "Not Found"}), (1, 1, 0)),
        (EXACT, Reply(status=404, body={"error": {"message": "There is no POST /v1/load_lora_adapter."}}), (1, 1, 0)),
        (EXACT, Reply(status=400, body={"error": "no such route"}), (1, 1, 0)),
        (PLAIN, Reply(status=405, body={}), (0, 0, 0)),
        (Reply(events=[delta("", "length"), USAGE]), Reply(status=404, body={}), (0, 0, 0)),
    ],
)
def test_the_probe_finds_what_there_is(reply: Reply, lora: Reply, expected: tuple[int, int, int]) -> None:
    with listening(reply, lora=lora) as upstream:
        found = using(upstream.url, lambda engine: engine.probe())
    assert (found.token_ids, found.logprobs, found.lora_versions) == tuple(map(bool, expected))
    assert found.context_length == 4096
    assert upstream.asked[0]["max_tokens"] == 1


def test_health_is_asked_seldom_and_at_once_after_a_failure() -> None:
    with listening(Reply(status=503, body={})) as upstream:

        async def work(engine: OpenAIEngine) -> None:
            assert (await engine.health()).context_length == 4096
            upstream.models = Reply(status=500, body={})
            await engine.health()
            with pytest.raises(EngineUnavailable):
                await ask(engine, request())
            with pytest.raises(EngineError, match="failed"):
                await engine.health()
            upstream.models = Reply(status=401, body={})
            assert (await engine.health()).ready, "it is there, and whoever asks is told which key to set"
            upstream.models = Reply(body={"models": []})
            engine._look_due = 0.0
            with pytest.raises(EngineError, match=r"engine\.urls"):
                await engine.health()

        using(upstream.url, work)
