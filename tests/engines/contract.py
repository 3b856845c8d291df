"""What every engine adapter promises, tested against the real engine: `class TestX(EngineContract)`.

A test module of an engine subclasses `EngineContract` and defines a fixture of its own module, `harness`, that yields
a started `EngineHarness` (scope "module"; see `test_contract_embedded.py`). Nothing here knows which engine it is;
what an engine does not offer (`capabilities`) is skipped with that reason. The tests run in the order in which they
stand: those that kill the engine or replace the model come last.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.detokenize import IncrementalDetokenizer
from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    EngineError,
    EngineUnavailable,
    InvalidEngineRequest,
    ScoreRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.rendering import Renderer, call_as_text
from openclaw_rl.serving.gateway.versions import VersionKeeper
from openclaw_rl.types import FinishReason, PolicyVersion, SamplingParams
from tests.engines.contract_limits import LimitsContract, told_by
from tests.engines.harness import BASE, EngineHarness, Stream, answer, assert_close, record, serve_version, until
from tests.engines.over_http import CHAT, QUICKLY, check_put_off, client_of, is_away, is_ready, version_of
from tests.engines.support import STORY, plain_logprobs, request

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def conversation(*messages: tuple[str, str], tools: tuple[Any, ...] = (), **sampling: Any) -> ChatRequest:
    """A request with these (role, content) messages."""
    return ChatRequest(
        request_id="r",
        messages=tuple({"role": role, "content": content} for role, content in messages),
        tools=tools,
        sampling=SamplingParams(**{"max_tokens": 24, "temperature": 0.0, **sampling}),
        version=0,
    )


def scored(stream: Stream, version: int = 0, temperature: float = 1.0, start: int | None = None) -> ScoreRequest:
    """Ask for the log-probabilities of a stream's own tokens."""
    first = len(stream.prompt) if start is None else start
    return ScoreRequest(ids=stream.prompt + stream.ids, start=first, version=version, temperature=temperature)


def thinking_aloud() -> ChatRequest:
    """A request whose answer begins with a block of reasoning, since those before it did."""
    shown: list[tuple[str, str]] = []
    for sum_ in ("2 and 2 is 4", "3 and 3 is 6", "4 and 4 is 8"):
        shown += [("user", f"Is it true that {sum_}?"), ("assistant", f"<think>\n{sum_}\n</think>\n\nYes.")]
    return conversation(*shown, ("user", "Is it true that 5 and 5 is 10?"), max_tokens=40)


class EngineContract(LimitsContract):
    """The promises. See the module."""

    @pytest.fixture(autouse=True)
    def _as_it_was(self, harness: EngineHarness) -> None:
        """Each test finds the base model, and an engine that lives."""
        if harness.changed:
            harness.restore()

    # --- exact tokens ----------------------------------------------------------------------------------------

    def test_ids_are_those_of_our_rendering_and_of_the_text(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> tuple[Stream, ChatRequest]:
            asked = conversation(("system", "You are brief."), ("user", "What is the capital of France?"))
            stream = await answer(engine, asked)
            if engine.capabilities.render:
                assert stream.prompt == await engine.render(asked.messages, ())
            else:
                with pytest.raises(InvalidEngineRequest):
                    await engine.render(asked.messages, ())
            return stream, asked

        stream, asked = harness.run(scenario)
        assert stream.prompt == Renderer(harness.tokenizer).render(asked.messages)
        assert stream.text == harness.tokenizer.decode(stream.ids, skip_special_tokens=True)
        assert stream.finished is not None
        assert stream.finished.prompt_tokens == len(stream.prompt)
        assert stream.finished.completion_tokens == len(stream.ids) == len(stream.logprobs)
        assert set(stream.versions) == {0}

    def test_the_end_token_is_drawn_and_recorded_but_not_shown(self, harness: EngineHarness) -> None:
        stream = harness.run(
            lambda engine: answer(engine, conversation(("user", "What is the capital of France?"), max_tokens=64))
        )
        assert stream.finished is not None
        assert stream.finished.finish_reason is FinishReason.STOP
        assert stream.ids[-1] == harness.tokenizer.eos_token_id
        assert harness.tokenizer.eos_token not in stream.text

    def test_what_a_client_spells_like_a_special_token_is_text(self, harness: EngineHarness) -> None:
        mark = harness.tokenizer.eos_token
        asked = conversation(("user", f"Repeat {mark} please"), max_tokens=4)
        stream = harness.run(lambda engine: answer(engine, asked))
        assert stream.prompt == Renderer(harness.tokenizer).render(asked.messages)

    def test_streamed_and_whole_answers_are_the_same_tokens(self, harness: EngineHarness, tmp_path: Path) -> None:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": "Name three rivers."}],
            "temperature": 0.8 if harness.honours_seeds else 0.0,
            "seed": 5,
            "max_tokens": 24,
        }

        async def scenario(engine: Engine) -> tuple[list[Any], list[str]]:
            with record(tmp_path) as store:
                async with harness.gateway(store, engine) as url, client_of(url) as http:
                    await until(lambda: is_ready(http), within_s=20)
                    # Once beforehand: a prompt that is read and one that is remembered differ by rounding (5e-6
                    # here), and a seed's number may lie that near to the border between two tokens.
                    await http.post(CHAT, json={**body, "max_tokens": 1})
                    whole = await http.post(CHAT, json=body)
                    assert whole.status_code == 200, whole.text
                    streamed = await http.post(CHAT, json={**body, "stream": True})
                    turns = [store.turns.get(one.headers["x-turn-id"]) for one in (whole, streamed)]
                    return turns, [whole.json()["choices"][0]["message"]["content"], _text_of(streamed.text)]

        (whole, streamed), texts = harness.run(scenario)
        assert whole.tokens.prompt_ids == streamed.tokens.prompt_ids
        assert whole.tokens.response_ids == streamed.tokens.response_ids
        assert_close(whole.tokens.logprobs, streamed.tokens.logprobs, harness.bounds.same)
        assert texts[0] == texts[1] == whole.answer["content"]

    def test_a_seed_fixes_an_answer(self, harness: EngineHarness) -> None:
        if not harness.honours_seeds:
            pytest.skip("this engine honours a seed only where it computes deterministically, which needs a GPU")

        async def scenario(engine: Engine) -> list[Stream]:
            seeds = (11, 11, 12)
            return [await answer(engine, request(STORY, temperature=1.0, seed=seed, max_tokens=16)) for seed in seeds]

        first, again, other = harness.run(scenario)
        assert first.ids == again.ids != other.ids

    # --- log-probabilities -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
    def test_log_probabilities_are_those_of_transformers(self, harness: EngineHarness, temperature: float) -> None:
        async def scenario(engine: Engine) -> tuple[Stream, Stream, PolicyVersion]:
            version = harness.adapter
            await engine.load_version(version)
            sampling: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 24}
            base = await answer(engine, request("Name a river.", **sampling))
            adapted = await answer(engine, request("Name a river.", version=version.version, **sampling))
            return base, adapted, version

        base, adapted, version = harness.run(scenario)
        bound = harness.bounds.transformers
        assert_close(base.logprobs, harness.transformers(None, base, temperature or 1.0), bound)
        assert_close(adapted.logprobs, harness.transformers(version, adapted, temperature or 1.0), bound)
        difference = [
            abs(one - other)
            for one, other in zip(
                harness.transformers(None, adapted, temperature or 1.0),
                [logprob or 0.0 for logprob in adapted.logprobs],
                strict=True,
            )
        ]
        assert max(difference) > harness.bounds.shows, "the adapter changes nothing, so this shows nothing of it"

    def test_requests_together_answer_as_if_alone(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> list[Stream]:
            streams = []
            for number in range(6):
                text = f"Tell me about the number {number}. " * (1 + 4 * number)
                streams.append(Stream(engine, request(text, temperature=1.0, seed=number, max_tokens=24)))
                await asyncio.sleep(0.05)
            return [await stream.end() for stream in streams]

        for stream in harness.run(scenario):
            assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    @pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 5}])
    def test_truncated_sampling_says_what_it_drew_from_or_nothing(
        self, harness: EngineHarness, cut: dict[str, Any]
    ) -> None:
        stream = harness.run(
            lambda engine: answer(engine, request(STORY, temperature=1.0, seed=2, max_tokens=24, **cut))
        )
        assert len(stream.kept) == len(stream.ids)
        plain = harness.transformers(None, stream)
        for token, kept, logprob, whole in zip(stream.ids, stream.kept, stream.logprobs, plain, strict=True):
            if kept is None:
                continue
            assert token in kept
            assert logprob is not None
            assert logprob >= whole - harness.bounds.transformers, "among fewer, a token is likelier"
        if "top_k" in cut:
            assert all(len(kept) <= cut["top_k"] for kept in stream.kept if kept is not None)

    @pytest.mark.parametrize("temperature", [0.7, 1.0])
    def test_score_is_what_generation_said(self, harness: EngineHarness, temperature: float) -> None:
        async def scenario(engine: Engine) -> list[tuple[Stream, PolicyVersion | None, tuple[float, ...], Any]]:
            if not engine.capabilities.score:
                pytest.skip("this engine does not score")
            version = harness.adapter
            await engine.load_version(version)
            results = []
            for one in (None, version):
                number = 0 if one is None else one.version
                asked = request("Name a river.", version=number, temperature=temperature, seed=7, max_tokens=24)
                stream = await answer(engine, asked)
                try:
                    own = await engine.score(scored(stream, number, temperature))
                except InvalidEngineRequest as error:
                    if temperature == 1.0 or error.param != "temperature":
                        raise
                    pytest.skip(str(error))
                whole = await engine.score(scored(stream, number, temperature, start=1))
                results.append((stream, one, own.logprobs, whole.logprobs))
            return results

        for stream, version, own, whole in harness.run(scenario):
            assert_close(stream.logprobs, own, harness.bounds.same)
            assert_close(whole[-len(own) :], own, harness.bounds.same)
            plain = harness._plain_model(version)
            everything = plain_logprobs(plain, stream.prompt[:1], stream.prompt[1:] + stream.ids, temperature)
            assert_close(whole, everything, harness.bounds.transformers)

    def test_scoring_and_generating_do_not_disturb_each_other(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> tuple[list[Stream], tuple[float, ...]]:
            if not engine.capabilities.score:
                pytest.skip("this engine does not score")
            first = await answer(engine, request("Name a river.", temperature=1.0, max_tokens=16))
            streams = [Stream(engine, request(f"{STORY} {one}", temperature=1.0, max_tokens=40)) for one in range(2)]
            for stream in streams:
                await stream.reach(2)
            scores = (await engine.score(scored(first))).logprobs
            return [first, *[await stream.end() for stream in streams]], scores

        (first, *others), scores = harness.run(scenario)
        assert_close(first.logprobs, scores, harness.bounds.same)
        for stream in others:
            assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    # --- text that is withheld -------------------------------------------------------------------------------

    def test_a_stop_string_ends_the_answer_before_it_and_its_tokens_are_there(self, harness: EngineHarness) -> None:
        counting = conversation(("user", "Count: one, two, three, four, five, six, seven"), max_tokens=32)
        free = harness.run(lambda engine: answer(engine, counting))
        words = free.text.split()
        assert len(words) > 4
        stop = words[3]
        stopped = harness.run(
            lambda engine: answer(
                engine,
                conversation(("user", counting.messages[0]["content"]), max_tokens=32, stop=(stop,)),
            )
        )
        assert stopped.finished is not None
        assert stopped.finished.finish_reason is FinishReason.STOP
        assert stopped.text == free.text[: free.text.index(stop)]
        assert free.ids[: len(stopped.ids)] == stopped.ids
        assert stop in IncrementalDetokenizer(harness.tokenizer).feed(stopped.ids)
        assert len(stopped.logprobs) == len(stopped.ids) == stopped.finished.completion_tokens

    def test_tool_calls_are_parsed_and_none_of_their_tokens_is_missing(self, harness: EngineHarness) -> None:
        shown: list[tuple[str, str]] = []
        for city in ("Paris", "Rome", "Oslo"):
            shown += [("user", f"What is the weather in {city}?")]
            shown += [("assistant", call_as_text("get_weather", {"city": city}))]
        asked = conversation(*shown, ("user", "What is the weather in Berlin?"), tools=(WEATHER,), max_tokens=48)
        stream = harness.run(lambda engine: answer(engine, asked))
        assert stream.prompt == harness.rendered(asked)
        assert [(name, json.loads(arguments)) for name, arguments in stream.calls] == [
            ("get_weather", {"city": "Berlin"})
        ]
        assert stream.finished is not None
        assert stream.finished.finish_reason is FinishReason.TOOL_CALLS
        assert "<tool_call>" not in stream.text
        raw = harness.tokenizer.decode(stream.ids, skip_special_tokens=True)
        assert call_as_text("get_weather", {"city": "Berlin"}) in raw, "the ids hold what the text withholds"
        assert len(stream.ids) == stream.finished.completion_tokens
        assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    def test_a_reasoning_block_comes_as_it_was_drawn(self, harness: EngineHarness) -> None:
        """No engine's own reasoning parser takes text, or tokens, out of an answer."""
        stream = harness.run(lambda engine: answer(engine, thinking_aloud()))
        assert "<think>" in stream.text
        whole = AnswerText(harness.tokenizer, stop=(), has_tools=False)
        assert stream.text == whole.feed(stream.ids).text + whole.finish().text
        assert stream.finished is not None
        assert stream.finished.completion_tokens == len(stream.ids)
        assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    # --- versions --------------------------------------------------------------------------------------------

    def test_loading_twice_and_unloading_what_is_not_there_change_nothing(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> None:
            version = harness.lora()
            for _ in range(2):
                await engine.load_version(version)
                assert version.version in (await engine.health()).loaded_versions
            for _ in range(2):
                await engine.unload_version(version.version)
                assert version.version not in (await engine.health()).loaded_versions
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=version.version))
            await engine.load_version(version)
            assert len((await answer(engine, request(version=version.version))).ids) > 0

        harness.run(scenario)

    def test_a_damaged_version_is_refused_and_leaves_no_trace(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> None:
            version = harness.lora()
            weights = Path(version.path or "") / "adapter_model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1] + b"!")
            with pytest.raises(InvalidEngineRequest):
                await engine.load_version(version)
            assert version.version not in (await engine.health()).loaded_versions

        harness.run(scenario)

    def test_a_stream_ends_on_the_version_it_began_with(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> tuple[list[PolicyVersion], Stream, Stream, int]:
            versions = [harness.lora(), harness.lora()]
            await engine.load_version(versions[0])
            sampling = harness.repeatable(seed=1)
            old = Stream(engine, request(STORY, version=versions[0].version, max_tokens=120, **sampling))
            await old.reach(4)
            await engine.load_version(versions[1])
            at = len(old.ids)
            new = await answer(engine, request(STORY, version=versions[1].version, max_tokens=16, **sampling))
            return versions, await old.end(), new, at

        (first, second), old, new, at = harness.run(scenario)
        assert at < len(old.ids), "the stream was over before the update: this shows nothing"
        assert set(old.versions) == {first.version}
        assert set(new.versions) == {second.version}
        assert_close(old.logprobs, harness.transformers(first, old), harness.bounds.transformers)
        assert_close(new.logprobs, harness.transformers(second, new), harness.bounds.transformers)

    def test_each_of_many_versions_answers_as_itself(self, harness: EngineHarness) -> None:
        """The base and as many adapters as there are places, all at work on one prompt: at once, whoever shares a
        batch, and then one after the other, whatever the cache holds of it by then."""

        async def scenario(engine: Engine) -> list[tuple[PolicyVersion | None, Stream]]:
            versions = [harness.lora() for _ in range(harness.config.engine.max_versions)]
            for version in versions:
                await engine.load_version(version)
            asked = [None, *versions]
            streams = [Stream(engine, told_by(version, max_tokens=24)) for version in asked]
            ended = [(version, await stream.end()) for version, stream in zip(asked, streams, strict=True)]
            for again in reversed(asked):
                ended.append((again, await answer(engine, told_by(again, max_tokens=8))))
            return ended

        for version, stream in harness.run(scenario):
            assert set(stream.versions) == {0 if version is None else version.version}
            assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    def test_a_version_in_use_goes_when_its_last_request_ends(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> tuple[PolicyVersion, Stream]:
            version = harness.lora()
            await engine.load_version(version)
            stream = Stream(engine, request(STORY, version=version.version, temperature=1.0, seed=1, max_tokens=60))
            await stream.reach(3)
            await engine.unload_version(version.version)
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=version.version))
            return version, await stream.end()

        version, stream = harness.run(scenario)
        assert set(stream.versions) == {version.version}
        assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    def test_versions_come_and_go_under_load(self, harness: EngineHarness) -> None:
        """More versions than there are places, one after the other, while streams never cease."""

        async def scenario(engine: Engine) -> tuple[dict[int, PolicyVersion], list[Stream]]:
            published = {(version := harness.lora()).version: version}
            await engine.load_version(version)
            ended: list[Stream] = []
            over = asyncio.Event()

            async def client(number: int) -> None:
                while not over.is_set():
                    asked = request(f"{STORY} {number}", version=max(published), temperature=1.0, max_tokens=8)
                    ended.append(await answer(engine, asked))

            clients = [asyncio.create_task(client(number)) for number in range(3)]
            for _ in range(harness.config.engine.max_versions + 2):
                version = harness.lora()
                await engine.load_version(version)
                published[version.version] = version
                before = len(ended)
                async with asyncio.timeout(120):
                    while not any(version.version in stream.versions for stream in ended[before:]):
                        assert not any(one.done() for one in clients), [one for one in clients if one.done()]
                        await asyncio.sleep(0.02)
            over.set()
            await asyncio.gather(*clients)
            loaded = set((await engine.health()).loaded_versions) - {0}
            assert max(published) in loaded
            assert len(loaded) <= harness.config.engine.max_versions
            return published, ended

        published, ended = harness.run(scenario)
        assert all(len(set(stream.versions)) == 1 for stream in ended)
        for number, version in published.items():
            stream = next(stream for stream in ended if stream.versions[0] == number)
            assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    def test_the_gateway_notices_a_published_version(self, harness: EngineHarness, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with record(tmp_path) as store:
                keeper = VersionKeeper(store, engine, served_name="policy")
                await keeper.refresh()
                assert keeper.current == 0
                version = harness.lora()
                serve_version(store, version)
                await keeper.refresh()
                assert keeper.current == version.version

        harness.run(scenario)

    # --- the engine goes ---------------------------------------------------------------------------------------

    def test_a_killed_engine_comes_back_with_the_version_in_service(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Over HTTP: who is patient is answered by that version, who is not is told to come back; and the gateways
        are ready again when it is loaded, and not before."""
        version = harness.lora()

        async def scenario(engine: Engine) -> Stream:
            with record(tmp_path / "patient", version) as store, record(tmp_path / "hasty", version) as another:
                async with (
                    harness.gateway(store, engine, engine_wait_s=harness.start_timeout_s) as patient,
                    harness.gateway(another, engine, engine_wait_s=0.2) as hasty,
                    client_of(patient, harness.start_timeout_s) as http,
                    client_of(hasty) as other,
                ):
                    await until(lambda: is_ready(http), within_s=30)
                    await until(lambda: is_ready(other), within_s=30)
                    before = await engine.health()
                    await _killed_in_mid_answer(harness, engine, version)
                    check_put_off(await other.post(CHAT, json=QUICKLY))
                    waiting = asyncio.create_task(http.post(CHAT, json=QUICKLY))
                    await until(lambda: is_away(http), within_s=30)
                    harness.launch()
                    await until(lambda: _is_ready_again(http, harness), within_s=harness.start_timeout_s)
                    after = await engine.health()
                    assert version.version in after.loaded_versions
                    assert (after.instance_id != before.instance_id) is harness.tells_restarts
                    assert version_of(await waiting) == version.version
                return await answer(engine, request(STORY, version=version.version, max_tokens=16))

        stream = harness.run(scenario)
        assert set(stream.versions) == {version.version}
        assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    # --- whole models ------------------------------------------------------------------------------------------

    def test_a_whole_model_without_a_distribution_fails_until_another_takes_its_place(
        self, harness: EngineHarness
    ) -> None:
        async def scenario(engine: Engine) -> Stream:
            if not engine.capabilities.full_weights:
                pytest.skip("this engine takes no whole models")
            broken = harness.full(broken=True)
            harness.changed = True
            await engine.load_version(broken)
            with pytest.raises(EngineError):
                await answer(engine, request(STORY, version=broken.version, temperature=1.0, max_tokens=8))
            health = await engine.health()
            assert health.ready
            assert broken.version in health.loaded_versions, "it stays, for whoever finds out why"
            await engine.load_version(BASE)
            harness.changed = False
            return await answer(engine, request(STORY, temperature=1.0, max_tokens=24))

        stream = harness.run(scenario)
        assert set(stream.versions) == {0}
        assert_close(stream.logprobs, harness.transformers(None, stream), harness.bounds.transformers)

    def test_a_whole_model_is_loaded_beside_those_that_answer(self, harness: EngineHarness) -> None:
        if harness.swaps_whole_models:
            pytest.skip("this engine puts a whole model in the place of the one before")

        async def scenario(engine: Engine) -> tuple[list[tuple[PolicyVersion | None, Stream]], int]:
            first, second = harness.full(), harness.full()
            await engine.load_version(first)
            old = Stream(engine, told_by(first, max_tokens=80, **harness.repeatable(seed=1)))
            base = Stream(engine, told_by(None, max_tokens=80, **harness.repeatable(seed=1)))
            await old.reach(4)
            await engine.load_version(second)
            at = len(old.ids)
            new = await answer(engine, told_by(second, max_tokens=16))
            return [(first, await old.end()), (None, await base.end()), (second, new)], at

        streams, at = harness.run(scenario)
        assert at < len(streams[0][1].ids), "the stream was over before the update: this shows nothing"
        for version, stream in streams:
            assert set(stream.versions) == {0 if version is None else version.version}
            assert_close(stream.logprobs, harness.transformers(version, stream), harness.bounds.transformers)

    def test_whole_models_are_swapped_in_mid_generation(self, harness: EngineHarness) -> None:
        """The last test: the base is another model after it."""
        if not harness.swaps_whole_models:
            pytest.skip("this engine loads a whole model beside the others")

        async def scenario(engine: Engine) -> tuple[PolicyVersion, Stream, Stream]:
            if not engine.capabilities.full_weights:
                pytest.skip("this engine takes no whole models")
            version = harness.full()
            old = Stream(engine, request(STORY, max_tokens=400, **harness.repeatable(seed=1)))
            await old.reach(4)
            harness.changed = True
            await engine.load_version(version)
            at = len(old.ids)
            new = await answer(engine, request(STORY, version=version.version, max_tokens=24))
            assert version.version in (await engine.health()).loaded_versions
            await old.end()
            assert at < len(old.ids), "the stream was over before the update: this shows nothing"
            return version, old, new

        version, old, new = harness.run(scenario)
        boundary = old.versions.count(0)
        assert old.versions == (0,) * boundary + (version.version,) * (len(old.ids) - boundary)
        assert 0 < boundary < len(old.ids)
        plain = harness.transformers(None, old)
        assert_close(old.logprobs[:boundary], plain[:boundary], harness.bounds.transformers)
        assert_close(new.logprobs, harness.transformers(version, new), harness.bounds.transformers)


async def _killed_in_mid_answer(harness: EngineHarness, engine: Engine, version: PolicyVersion) -> None:
    """Kill the engine while `version` answers: that answer fails, and so does every request after it."""
    stream = Stream(engine, request(STORY, version=version.version, temperature=1.0, max_tokens=200))
    await stream.reach(3)
    await asyncio.to_thread(harness.kill)
    with pytest.raises(EngineError):
        await stream.end()
    with pytest.raises(EngineUnavailable):
        await answer(engine, request())


async def _is_ready_again(http: httpx.AsyncClient, harness: EngineHarness) -> bool:
    harness.check_alive()
    return await is_ready(http)


def _text_of(stream: str) -> str:
    """The text in a server-sent event stream of chat chunks."""
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
