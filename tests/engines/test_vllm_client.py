"""`VllmEngine` against a server that answers as vLLM does."""

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
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.embedded.app import serve
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    UnknownVersion,
    UnreadableVersion,
)
from openclaw_rl.serving.engines.vllm.client import VllmEngine
from openclaw_rl.serving.engines.vllm.healing import CacheHealing
from openclaw_rl.types import PolicyVersion
from tests.engines.fake_vllm import DRAWN, FakeVllm, create_fake
from tests.engines.harness import Stream, answer
from tests.engines.support import request, version_of


@asynccontextmanager
async def engine_for(fake: FakeVllm, tiny: Path, *, start: bool = True, **sections: Any) -> AsyncIterator[VllmEngine]:
    """An engine that is attached to the fake, which listens for the time of a block."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url, stop = f"http://127.0.0.1:{port}", threading.Event()
    listening = asyncio.create_task(serve(create_fake(fake), "127.0.0.1", port, stop, lambda: None))
    values = {"kind": "vllm", "urls": [url], "max_versions": 2, "context_length": 80, **sections.pop("engine", {})}
    config = Config.model_validate({"model": {"path": str(tiny)}, "engine": values, **sections})
    engine = VllmEngine(config, url)
    try:
        await asyncio.to_thread(engine.load_tokenizer)
        if start:
            await engine.start()
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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the fake sets no event
        await asyncio.sleep(0.005)


def lora(folder: Path, number: int) -> PolicyVersion:
    """A version whose files are not looked into."""
    path = folder / f"v{number}"
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(f'{{"r": {number}}}')
    write_manifest(path, {})
    return version_of(path, number)


def whole(folder: Path, number: int) -> PolicyVersion:
    path = folder / f"w{number}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(f'{{"n": {number}}}')
    write_manifest(path, {})
    return version_of(path, number)


def test_an_answer_is_what_vllm_drew(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            asked = request("Hi", temperature=0.5, seed=3, max_tokens=1000)
            stream = await answer(engine, asked)
            assert stream.prompt == await engine.render(asked.messages, ())
            assert (stream.ids, stream.versions, stream.logprobs) == (DRAWN, (0,) * 3, (-0.5,) * 3)
            body = fake.asked[-1]
            assert body["model"] == "theirs"
            assert body["sampling_params"]["max_tokens"] == 80 - len(stream.prompt)
            assert body["cache_salt"] == (await engine.health()).instance_id, "a vLLM that outlived others of us"

    run(scenario)


@pytest.mark.parametrize(
    ("without", "named"),
    [
        ({"scale_out": False}, "--enable-scale-out"),
        ({"lora": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"processed": False}, "--logprobs-mode processed_logprobs"),
    ],
)
def test_what_a_server_lacks_is_named(tiny: Path, without: dict[str, bool], named: str) -> None:
    async def scenario() -> None:
        async with engine_for(FakeVllm(**without), tiny, start=False) as engine:  # type: ignore[arg-type]
            assert not (await engine.health()).ready
            with pytest.raises(EngineUnavailable):
                await answer(engine, request())
            with pytest.raises(ConfigError, match=rf"{named}.*vLLM 0\.32.* tested with"):
                await engine.start()

    run(scenario)


@pytest.mark.parametrize(
    ("server", "sections", "named"),
    [
        ({}, {"engine": {"context_length": 101}}, "--max-model-len of at least 101"),
        ({"max_lora_rank": 8}, {}, "--max-lora-rank 16, not 8"),
        ({"developer": False}, {"training": {"use_lora": False}}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_what_a_server_cannot_do_for_this_configuration_is_named(
    tiny: Path, server: dict[str, Any], sections: dict[str, Any], named: str
) -> None:
    async def scenario() -> None:
        async with engine_for(FakeVllm(**server), tiny, start=False, **sections) as engine:
            with pytest.raises(ConfigError, match=named):
                await engine.start()
        sections["training"] = {"enabled": False}
        if "engine" not in sections:  # nothing is to be learned, so nothing is lacking
            async with engine_for(FakeVllm(**server), tiny, **sections) as engine:
                assert (await engine.health()).ready

    run(scenario)


@pytest.mark.parametrize("same", [True, False])
def test_another_base_is_warned_of(tiny: Path, tmp_path: Path, same: bool, caplog: pytest.LogCaptureFixture) -> None:
    link = tmp_path / "link"
    link.symlink_to(tiny)

    async def scenario() -> None:
        async with engine_for(FakeVllm(root=str(link) if same else "Somebody/else"), tiny):
            assert ("Somebody/else" in caplog.text) is not same

    run(scenario)


def test_what_is_loaded_while_vllm_makes_its_list_is_not_missed(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(lora(tmp_path, 1))
            before = await engine.health()
            fake.list_held = asyncio.Event()
            looking = asyncio.create_task(engine.health())
            await asyncio.sleep(0.1)  # the list of before is made, and on its way
            held, fake.list_held = fake.list_held, None
            await engine.load_version(lora(tmp_path, 2))
            held.set()
            after = await looking
            assert after.instance_id == before.instance_id
            assert after.loaded_versions == (0, 1, 2)
            assert (await answer(engine, request(version=2))).versions == (2, 2, 2)

    run(scenario)


def test_an_adapter_brings_the_base_back_that_it_was_trained_on(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(label="somebody's")
        async with engine_for(fake, tiny) as engine:
            assert (await engine.health()).loaded_versions == ()
            await engine.load_version(lora(tmp_path, 1))
            assert (fake.label, fake.reloaded) == ("default", [str(tiny)])
            await engine.load_version(whole(tmp_path, 2))
            assert 1 not in (await engine.health()).loaded_versions
            await engine.load_version(lora(tmp_path, 1))
            assert (await answer(engine, request(version=1))).versions == (1, 1, 1)
            assert fake.label == "default"

    run(scenario)


def test_files_are_not_read_while_there_is_no_room(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(hold=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            streams = []
            for number in (1, 2):
                await engine.load_version(lora(tmp_path, number))
                streams.append(Stream(engine, request(version=number, max_tokens=3)))
                await streams[-1].reach(1)
            damaged = lora(tmp_path, 3)
            (tmp_path / "v3" / "adapter_config.json").write_text("{}")
            with pytest.raises(EngineOverloaded):
                await engine.load_version(damaged)
            assert fake.hold is not None
            fake.hold.set()
            for stream in streams:
                await stream.end()
            with pytest.raises(InvalidEngineRequest):
                await engine.load_version(damaged)

    run(scenario)


def test_an_absence_is_known_until_it_answers_again(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            fake.well = False
            with pytest.raises(EngineUnavailable):
                await engine.health()
            assert engine.away
            fake.well = True
            await engine.health()
            assert not engine.away

    run(scenario)


def test_adapters_are_loaded_once_and_make_room_for_each_other(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            versions = [lora(tmp_path, number) for number in (1, 2, 3)]
            for version in (versions[0], versions[0], versions[1]):
                await engine.load_version(version)
            assert len(fake.adapters) == 2
            fake.hold = asyncio.Event()
            held = Stream(engine, request(version=1, max_tokens=3))
            await held.reach(1)
            await engine.load_version(versions[2])
            assert (await engine.health()).loaded_versions == (0, 1, 3)
            other = Stream(engine, request(version=3, max_tokens=3))
            await other.reach(1)
            with pytest.raises(EngineOverloaded):
                await engine.load_version(versions[1])
            await engine.unload_version(1)
            assert not any(name.startswith("policy-v1-") for name in fake.unloaded), "a request uses it"
            fake.hold.set()
            assert set((await held.end()).versions) == {1}
            await other.end()
            await asyncio.sleep(0.05)
            assert any(name.startswith("policy-v1-") for name in fake.unloaded)
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=1))

    run(scenario)


def test_an_adapter_that_vllm_has_already_is_taken_as_it_is(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake, version = FakeVllm(), lora(tmp_path, 1)
        for _ in range(2):  # the engine process is started again; vLLM went on
            async with engine_for(fake, tiny) as engine:
                await engine.load_version(version)
                assert (await answer(engine, request(version=1))).versions == (1, 1, 1)

    run(scenario)


def test_a_version_that_gives_nan_is_unloaded_and_its_traces_are_removed(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(lora(tmp_path, 1))
            fake.logprob = -9999.0
            with pytest.raises(EngineError, match="not finite"):
                await answer(engine, request(version=1))
            fake.logprob = -0.5
            await answer(engine, request())
            assert fake.healed_before == [len(fake.asked) - 1], "the request waited until the cache was clean"
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=1))
            assert len(fake.unloaded) == 1

    run(scenario)


def test_who_leaves_a_version_that_gave_nan_has_its_traces_removed_too(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            version = lora(tmp_path, 1)
            await engine.load_version(version)
            fake.hold = asyncio.Event()
            held = Stream(engine, request(version=1, max_tokens=6))
            await held.reach(1)
            fake.logprob = -9999.0
            with pytest.raises(EngineError, match="not finite"):
                await answer(engine, request(version=1, max_tokens=1))
            await engine.health()
            await until(lambda: len(fake.healed_before) == 1)
            await engine.load_version(version)  # as the gateway does with the version in service
            held_back, fake.logprob, fake.hold = fake.hold, -0.5, None
            await answer(engine, request(version=1))
            await asyncio.sleep(0.05)
            assert len(fake.healed_before) == 1, "who began after it gave NaN has read none"
            await held.leave()
            held_back.set()
            await until(lambda: len(fake.healed_before) == 2)
            await answer(engine, request(version=1))
            life = (await engine.health()).instance_id
            healed = [life, life, f"{life}-healed-1", f"{life}-healed-2"]
            assert [body["cache_salt"] for body in fake.asked[-4:]] == healed

    run(scenario)


@pytest.mark.parametrize("number", [0, 1])
def test_who_may_have_read_what_was_healed_is_not_trained_nor_scored(tiny: Path, tmp_path: Path, number: int) -> None:
    """An adapter's, and the model's own. A sibling that began before the NaN may read zeros where it was."""

    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(lora(tmp_path, 1))
            fake.hold = asyncio.Event()
            held = Stream(engine, request(version=number, max_tokens=6))
            other = Stream(engine, request(version=1 - number, max_tokens=6))
            for stream in (held, other):
                await stream.reach(1)
            fake.logprob = -9999.0
            with pytest.raises(EngineError, match="not finite"):
                await answer(engine, request(version=number, max_tokens=1))
            fake.logprob = -0.5
            fake.hold.set()
            ended = await held.end()
            assert ended.logprobs[0] == -0.5, "that was drawn before"
            assert set(ended.logprobs[1:]) == {None}
            assert None not in (await other.end()).logprobs, "another's cache is another's"
            fake.hold = None
            assert None not in (await answer(engine, request(version=0))).logprobs

    run(scenario)


def test_where_the_cache_cannot_be_healed_nobody_reads_on_from_it_either(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(extended=False, device="cuda")
        async with engine_for(fake, tiny) as engine:
            fake.logprob = -9999.0
            with pytest.raises(EngineError, match="not finite"):
                await answer(engine, request(max_tokens=1))
            fake.logprob = -0.5
            before = fake.asked[-1].get("cache_salt")
            await answer(engine, request())
            assert fake.asked[-1].get("cache_salt") != before

    run(scenario)


def test_what_is_found_broken_while_the_cache_is_healed_is_healed_after_it() -> None:
    async def scenario() -> None:
        passes: list[asyncio.Event] = []
        failing = asyncio.Event()

        async def heal() -> None:
            passes.append(asyncio.Event())
            await passes[-1].wait()
            if failing.is_set() and len(passes) == 2:
                raise EngineError("busy")

        healing = CacheHealing(heal)
        await healing.clean()
        for _ in range(3):
            healing.begin()
        await asyncio.sleep(0)
        healing.begin()
        clean = asyncio.create_task(healing.clean())
        passes[0].set()
        await until(lambda: len(passes) == 2)
        assert not clean.done()
        healing.begin()
        failing.set()
        passes[1].set()
        await until(lambda: len(passes) == 3)
        assert not clean.done(), "one that fails is not the last"
        passes[2].set()
        await asyncio.wait_for(clean, 5)
        assert len(passes) == 3

    run(scenario)


def test_an_adapter_that_is_asked_for_again_while_it_is_unloaded_stays(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake, version = FakeVllm(), lora(tmp_path, 1)
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(version)
            fake.hold = asyncio.Event()
            held = Stream(engine, request(version=1))
            await held.reach(1)
            await engine.unload_version(1)
            fake.hold.set()
            await held.end()  # now it is being unloaded
            await engine.load_version(version)
            await asyncio.sleep(0.1)
            assert (await engine.health()).loaded_versions == (0, 1)
            assert (await answer(engine, request(version=1))).versions == (1, 1, 1)

    run(scenario)


def test_a_version_is_not_to_blame_where_vllm_does_not_see_it_or_takes_too_long(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake, version = FakeVllm(sees_files=False), lora(tmp_path, 1)
        async with engine_for(fake, tiny, engine={"load_timeout_s": 0.5}) as engine:
            with pytest.raises(UnreadableVersion, match="must see the same files"):
                await engine.load_version(version)
            fake.sees_files, fake.slow_adapter_s = True, 1.0
            with pytest.raises(EngineError, match="too long") as late:
                await engine.load_version(version)
            assert not isinstance(late.value, InvalidEngineRequest)
            fake.slow_adapter_s = 0.0
            await engine.load_version(version)
            assert (await engine.health()).loaded_versions == (0, 1)

    run(scenario)


def test_broken_files_and_adapters_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            damaged = lora(tmp_path, 1)
            (tmp_path / "v1" / "adapter_config.json").write_text("{}")
            for bad in (damaged, version_of(tmp_path / "nowhere", 2)):
                with pytest.raises(InvalidEngineRequest, match="cannot be used"):
                    await engine.load_version(bad)
            fake.refuse_adapter = "rank 99 is too high"
            with pytest.raises(InvalidEngineRequest, match="rank 99"):
                await engine.load_version(lora(tmp_path, 3))
            assert (await engine.health()).loaded_versions == (0,)

    run(scenario)


def test_a_whole_model_is_swapped_while_its_streams_wait(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            fake.hold = asyncio.Event()
            stream = Stream(engine, request(max_tokens=3))
            await stream.reach(1)
            version = whole(tmp_path, 4)
            await engine.load_version(version)
            await engine.load_version(version)
            assert fake.reloaded == [version.path]
            assert not fake.paused
            fake.hold.set()
            assert (await stream.end()).versions == (0, 4, 4)
            assert (await answer(engine, request(version=4))).versions == (4, 4, 4)
            salts = [fake.asked[-1]["cache_salt"]]
            assert f"-{fake.label}-" in salts[0]
            on_its_way = await answer(engine, request(version=0))
            assert on_its_way.versions == (4, 4, 4), "recorded as who drew it, whoever was asked"
            with pytest.raises(UnknownVersion):
                await engine.score(ScoreRequest(ids=(1, 2, 3), start=1, version=0))
            await engine.load_version(PolicyVersion(**{**_fields(version), "version": 0, "path": None}))
            assert fake.label == "default"
            assert (await answer(engine, request(version=0))).versions == (0, 0, 0)
            salts.append(fake.asked[-1]["cache_salt"])
            await engine.load_version(version)
            await answer(engine, request(version=4))
            salts.append(fake.asked[-1]["cache_salt"])
            assert len({(await engine.health()).instance_id, *salts}) == 4, (
                "the same weights again: what went on over a swap was read by others"
            )

    run(scenario)


@pytest.mark.parametrize("back", [False, True])
def test_what_an_adapter_draws_over_another_model_is_not_told_as_its_versions(
    tiny: Path, tmp_path: Path, back: bool
) -> None:
    """Also when the base, by its old name, is there again: in between it may have drawn over the other one."""

    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            adapter = lora(tmp_path, 1)
            await engine.load_version(adapter)
            fake.hold = asyncio.Event()
            stream = Stream(engine, request(version=1, max_tokens=3))
            await stream.reach(1)
            await engine.load_version(whole(tmp_path, 4))
            if back:
                await engine.load_version(adapter)
                assert fake.label == "default"
            fake.hold.set()
            await stream.end()
            assert (stream.ids, stream.versions) == (DRAWN, (1, 1, 1)), "the text goes on"
            assert stream.logprobs == (-0.5, None, None)

    run(scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_scores_over_another_model_are_told_for_no_version(tiny: Path, tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(lora(tmp_path, 1))
            asked = ScoreRequest(ids=(7, 8, 9), start=2, version=version)
            assert (await engine.score(asked)).logprobs == (-0.09,)
            seen, fake.hold_whole = len(fake.asked), asyncio.Event()
            scoring = asyncio.create_task(engine.score(asked))
            await until(lambda: len(fake.asked) > seen)
            await engine.load_version(whole(tmp_path, 4))
            fake.hold_whole.set()
            with pytest.raises(UnknownVersion):
                await scoring

    run(scenario)


def _fields(version: PolicyVersion) -> dict[str, Any]:
    return {name: getattr(version, name) for name in ("version", "state", "path", "step", "created_at")}


def test_a_swap_that_fails_is_undone(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(fail_reloads=1)
        async with engine_for(fake, tiny) as engine:
            with pytest.raises(EngineError, match="shapes differ"):
                await engine.load_version(whole(tmp_path, 4))
            assert (fake.reloaded, fake.paused) == ([str(tiny)], False)
            assert (await answer(engine, request(version=0))).versions == (0, 0, 0)

    run(scenario)


def test_weights_that_cannot_be_named_are_taken_out_again(tiny: Path, tmp_path: Path) -> None:
    """Tokens of the new weights under the old name and salt would be recorded as the old version's."""

    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            third, fourth = whole(tmp_path, 3), whole(tmp_path, 4)
            await engine.load_version(third)
            name, fake.fail_labels = fake.label, 1
            with pytest.raises(EngineError, match="no name"):
                await engine.load_version(fourth)
            assert fake.reloaded == [third.path, fourth.path, third.path]
            assert (fake.label, fake.paused) == (name, False)
            assert (await answer(engine, request(version=3))).versions == (3, 3, 3)
            fake.fail_labels = 2
            with pytest.raises(EngineError, match="no name"):
                await engine.load_version(fourth)
            assert not fake.paused
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=3))
            await engine.load_version(fourth)
            assert (await answer(engine, request(version=4))).versions == (4, 4, 4)

    run(scenario)


@pytest.mark.parametrize("by", ["load", "look"])
def test_a_vllm_that_was_not_told_to_go_on_is_told_later(tiny: Path, tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            version = whole(tmp_path, 4)
            fake.fail_resumes = 2
            for again in (version, version):
                with pytest.raises(EngineUnavailable):
                    await engine.load_version(again)
            assert fake.paused
            assert fake.reloaded == [version.path], "the weights are there"
            await (engine.load_version(version) if by == "load" else engine.health())
            assert not fake.paused
            assert (await answer(engine, request(version=4))).versions == (4, 4, 4)

    run(scenario)


def test_a_vllm_that_stays_paused_is_not_well(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            fake.fail_resumes = 2
            with pytest.raises(EngineUnavailable):
                await engine.load_version(whole(tmp_path, 4))
            with pytest.raises(EngineUnavailable, match="paused"):
                await engine.health()
            assert (await engine.health()).loaded_versions == (0, 4)

    run(scenario)


def test_where_it_cannot_be_undone_nothing_is_answered_until_a_version_is_loaded(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(fail_reloads=2)
        async with engine_for(fake, tiny) as engine:
            with pytest.raises(EngineError, match="shapes differ"):
                await engine.load_version(whole(tmp_path, 4))
            with pytest.raises(UnknownVersion):
                await answer(engine, request(version=0))
            await engine.load_version(whole(tmp_path, 5))
            assert (await answer(engine, request(version=5))).versions == (5, 5, 5)

    run(scenario)


def test_without_the_routes_for_developers_whole_models_are_refused(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_for(FakeVllm(developer=False), tiny) as engine:
            with pytest.raises(InvalidEngineRequest, match="VLLM_SERVER_DEV_MODE"):
                await engine.load_version(whole(tmp_path, 4))

    run(scenario)


def test_a_vllm_that_was_started_anew_is_another_instance_with_nothing_loaded(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(lora(tmp_path, 1))
            before = await engine.health()
            assert await engine.health() == before
            fake.restart()
            after = await engine.health()
            assert after.instance_id != before.instance_id
            assert after.loaded_versions == (0,)
            await engine.load_version(lora(tmp_path, 1))
            assert (await engine.health()).loaded_versions == (0, 1)

    run(scenario)


def test_a_client_that_leaves_closes_its_stream(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(hold=asyncio.Event())
        async with engine_for(fake, tiny) as engine:
            stream = Stream(engine, request())
            await stream.reach(1)
            assert (fake.open, (await engine.health()).active_requests) == (1, 1)
            await stream.leave()
            async with asyncio.timeout(2):
                while fake.open:  # noqa: ASYNC110 - a fake behind HTTP
                    await asyncio.sleep(0.01)
            assert (await engine.health()).active_requests == 0

    run(scenario)


def test_a_full_queue_is_an_overload(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(hold=asyncio.Event())
        limits: dict[str, Any] = {"engine": {"max_parallel": 1}, "serving": {"max_queue": 1}}
        async with engine_for(fake, tiny, **limits) as engine:
            streams = [Stream(engine, request()) for _ in range(2)]
            for stream in streams:
                await stream.reach(1)
            health = await engine.health()
            assert (health.active_requests, health.queued_requests) == (1, 1)
            with pytest.raises(EngineOverloaded):
                await answer(engine, request())
            assert fake.hold is not None
            fake.hold.set()
            for stream in streams:
                await stream.end()

    run(scenario)


def test_scores_and_what_cannot_be_scored(tiny: Path) -> None:
    async def scenario() -> None:
        async with engine_for(FakeVllm(), tiny) as engine:
            scored = await engine.score(ScoreRequest(ids=(7, 8, 9), start=2, version=0))
            assert scored.logprobs == (-0.09,)
            for bad, param in [
                (ScoreRequest(ids=(7, 8), start=1, version=0, temperature=0.7), "temperature"),
                (ScoreRequest(ids=(7, 8), start=0, version=0), "start"),
                (ScoreRequest(ids=(7,) * 81, start=1, version=0), "ids"),
                (ScoreRequest(ids=(7, 10**6), start=1, version=0), "ids"),
            ]:
                with pytest.raises(InvalidEngineRequest) as caught:
                    await engine.score(bad)
                assert caught.value.param == param

    run(scenario)


def test_whoever_asks_for_a_whole_model_that_was_replaced_is_told_who_answers(tiny: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        async with engine_for(fake, tiny) as engine:
            await engine.load_version(whole(tmp_path, 4))
            asked = request(version=0)
            events = [event async for event in engine.chat(asked)]
            assert isinstance(events[0], PromptRead)
            assert events[0].version == 4
            seen = len(fake.asked)
            with pytest.raises(UnknownVersion):
                await answer(engine, dataclasses.replace(asked, pinned=True))
            assert len(fake.asked) == seen, "who named a version gets no other"
            named = [event async for event in engine.chat(dataclasses.replace(asked, version=4, pinned=True))]
            assert isinstance(named[0], PromptRead)
            assert named[0].version is None

    run(scenario)


def test_a_vllm_that_was_left_paused_goes_on(tiny: Path) -> None:
    async def scenario() -> None:
        fake = FakeVllm(paused=True)
        async with engine_for(fake, tiny):
            assert not fake.paused

    run(scenario)
