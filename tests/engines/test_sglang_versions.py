"""How versions come and go, against a fake that does what SGLang was seen to do; and what is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import MODEL_DIR, write_manifest
from openclaw_rl.serving.engines.model_text import ModelText
from openclaw_rl.serving.engines.protocol import (
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang.versions import GRACE_S, SglangVersions
from openclaw_rl.types import PolicyVersion, VersionState
from tests.engines.fake_sglang import FakeSglang
from tests.engines.support import until, version_of, write_adapter

BASE = PolicyVersion(version=0, state=VersionState.SERVING, path=None, step=0, created_at=0.0)
SWAP = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]


CLOCK = SimpleNamespace(now=0.0)


def speaker(server: FakeSglang, tiny: Path, limit: int = 2) -> SglangVersions:
    async def get() -> ModelText:
        return cast(ModelText, SimpleNamespace(directory=tiny))

    base = SimpleNamespace(get=get)
    return SglangVersions(server.ask, base=base, limit=limit, timeout_s=10, quick_s=1, clock=lambda: CLOCK.now)


def scenario(tiny: Path, body: Callable[[FakeSglang, SglangVersions], Awaitable[None]], limit: int = 2) -> None:
    async def main() -> None:
        server = FakeSglang()
        versions = speaker(server, tiny, limit)
        await versions.look()
        server.asked.clear()
        await body(server, versions)
        await versions.close()

    asyncio.run(main())


def full_version(tiny: Path, target: Path, number: int) -> PolicyVersion:
    model = load_causal_lm(tiny)
    model.save_pretrained(target / MODEL_DIR)
    write_manifest(target / MODEL_DIR, {"number": number})
    return version_of(target / MODEL_DIR, number)


def test_an_adapter_is_loaded_once_and_served(tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        with pytest.raises(UnknownVersion):
            await versions.serving(1)
        await versions.load(adapters[1])
        await versions.load(adapters[1])
        assert server.asked == ["/load_lora_adapter"]
        served = await versions.serving(1)
        assert (served.version, served.adapter) == (1, *server.adapters)
        assert versions.loaded() == (0, 1)

    scenario(tiny, body)


def test_a_version_that_is_loaded_twice_at_once_is_loaded_once(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await asyncio.gather(versions.load(adapters[1]), versions.load(adapters[1]))
        assert server.asked == ["/load_lora_adapter"]
        assert 1 in versions.loaded()

    scenario(tiny, body)


def test_what_an_earlier_try_loaded_too_late_is_taken(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.listing = asyncio.Event()
        looking = asyncio.create_task(versions.load(adapters[1]))  # its list is from before
        await asyncio.sleep(0.01)
        server.adapters[await name_of(adapters[1], tiny)] = "there"
        server.listing.set()
        await looking
        assert await versions.serving(1)

    scenario(tiny, body)


async def name_of(version: PolicyVersion, tiny: Path) -> str:
    """What it is called on a server."""
    server = FakeSglang()
    await speaker(server, tiny).load(version)
    (name,) = server.adapters
    return name


def test_what_others_have_loaded_is_neither_served_nor_unloaded(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    """Two deployments on one server, each with a version 1; and one that was begun anew."""
    theirs = write_adapter(tiny, tmp_path / "step-1", seed=1, scale=0.5)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        other = speaker(server, tiny, limit=2)
        await other.load(theirs)
        server.adapters["policy-v1"] = "of an earlier release"
        with pytest.raises(UnknownVersion):
            await versions.serving(1)
        await versions.load(adapters[1])
        ours, others = (await versions.serving(1)).adapter, (await other.serving(1)).adapter
        assert len({ours, others, "policy-v1"} & server.adapters.keys()) == 3
        for number in (2, 3):
            await versions.load(adapters[number])
        await versions.close()
        assert ours not in server.adapters, "made room"
        assert {others, "policy-v1"} < server.adapters.keys()

    scenario(tiny, body)


def test_an_adapter_that_outlived_us_is_taken_again(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        after = speaker(server, tiny)
        with pytest.raises(UnknownVersion):
            await after.serving(1)
        server.asked.clear()
        await after.load(adapters[1])
        assert server.asked == []
        assert (await after.serving(1)).adapter in server.adapters

    scenario(tiny, body)


def test_a_version_that_is_to_go_is_refused_at_once_and_goes_with_its_last_request(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            await versions.unload(1)
            assert server.has() == {"policy-v1"}
            await versions.look()
            assert versions.loaded() == (0,)
            with pytest.raises(UnknownVersion):
                await versions.serving(1)
        await versions.close()
        assert server.adapters == {}
        await versions.unload(1)

    scenario(tiny, body)


def test_a_version_that_is_wanted_again_before_it_went_stays(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            await versions.unload(1)
            await versions.load(adapters[1])
        await versions.close()
        assert server.has() == {"policy-v1"}
        assert await versions.serving(1)

    scenario(tiny, body)


def test_only_the_last_few_stay_and_none_that_is_used(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            for number in (2, 3, 4):
                await versions.load(adapters[number])
            await versions.close()
            assert server.has() == {"policy-v1", "policy-v4"}
        await versions.load(adapters[5])
        await versions.close()
        assert server.has() == {"policy-v1", "policy-v5"}, "4 was used before 1 was"

    scenario(tiny, body)


def test_where_all_that_are_kept_are_in_use_another_is_an_overload(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    """Within SGLang it would wait for a place without a limit, and whoever asked for it with it."""
    damaged = version_of(tmp_path / "nowhere", 9)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        for number in (1, 2):
            await versions.load(adapters[number])
        with versions.using(1):
            with versions.using(0), versions.using(2):
                for _ in range(2):
                    with pytest.raises(EngineOverloaded, match="all 2"):
                        await versions.load(adapters[3])
                await versions.load(adapters[1])
                await versions.unload(2)
                with pytest.raises(EngineOverloaded):
                    await versions.load(adapters[3])
                assert server.has() == {"policy-v1", "policy-v2"}, "one that is to go has its place while it is used"
            with pytest.raises(InvalidEngineRequest):
                await versions.load(damaged)
            await versions.load(adapters[3])
        await versions.close()
        assert server.has() == {"policy-v1", "policy-v3"}

    scenario(tiny, body)


def test_an_adapter_that_is_still_going_is_not_now(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.fails["/load_lora_adapter"] = InvalidEngineRequest("it has an incomplete unload. Retry")
        with pytest.raises(EngineOverloaded):
            await versions.load(adapters[1])
        server.fails["/load_lora_adapter"] = InvalidEngineRequest("rank too large")
        with pytest.raises(InvalidEngineRequest, match="rank"):
            await versions.load(adapters[1])

    scenario(tiny, body)


def test_a_list_that_a_load_overtook_is_not_heeded(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.listing = asyncio.Event()
        looking = asyncio.create_task(versions.look())
        await asyncio.sleep(0.01)
        listing, server.listing = server.listing, None
        await versions.load(adapters[1])
        listing.set()
        await looking
        assert versions.loaded() == (0, 1)

    scenario(tiny, body)


# --- whole weights -------------------------------------------------------------------------------------------


def test_whole_weights_take_the_place_of_the_base_and_give_it_back(tiny: Path, tmp_path: Path) -> None:
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        assert (await versions.serving(0)).salt is None
        await versions.load(version)
        assert server.asked == SWAP
        first = await versions.serving(7)
        assert versions.loaded() == (7,)
        with pytest.raises(UnknownVersion):
            await versions.serving(0, pinned=True)
        await versions.load(version)
        assert server.asked == SWAP, "it is there"
        await versions.load(BASE)
        back = await versions.serving(0)
        assert len({None, first.salt, back.salt}) == 3, "prefixes are shared with no other time"
        await versions.load(BASE)
        assert server.asked == SWAP * 2

    scenario(tiny, body)


def test_a_request_that_an_update_overtook_is_answered_for_a_while(tiny: Path, tmp_path: Path) -> None:
    """It was routed to the version before; its tokens will say who drew them. Who named a version gets no other."""
    second, third = (full_version(tiny, tmp_path / f"step-{number}", number) for number in (2, 3))

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(second)
        assert versions.answered() == (0, 2), "the base, too, was in service a moment ago"
        await versions.load(third)
        assert versions.answered() == (2, 3)
        assert versions.loaded() == (3,)
        assert (await versions.serving(2)).version == 3
        for version, pinned in ((2, True), (1, False), (0, False)):
            with pytest.raises(UnknownVersion):
                await versions.serving(version, pinned=pinned)
        await versions.load(second)
        assert server.asked == SWAP * 3, "asked for again it is loaded, and not taken for there"
        assert versions.answered() == (2, 3)
        CLOCK.now += GRACE_S
        assert versions.answered() == (2,)
        with pytest.raises(UnknownVersion):
            await versions.serving(3)

    scenario(tiny, body)


def test_while_weights_are_replaced_new_requests_wait_for_the_new_name(tiny: Path, tmp_path: Path) -> None:
    """Sent under the old one they would find prefixes that the old weights have read."""
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.updating = asyncio.Event()
        loading = asyncio.create_task(versions.load(version))
        await until(lambda: server.paused)
        waiting = asyncio.create_task(versions.serving(0))
        await asyncio.sleep(0.01)
        assert versions.replacing
        assert not waiting.done()
        server.updating.set()
        await loading
        served = await waiting
        assert (served.version, served.salt, served.seen.weights) == (7, server.weights, server.weights)
        assert versions.known[server.weights] == 7

    scenario(tiny, body)


def test_where_an_update_failed_generation_goes_on_and_new_requests_wait_for_weights(
    tiny: Path, tmp_path: Path
) -> None:
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.fails["/update_weights_from_disk"] = EngineUnavailable("lost")
        with pytest.raises(EngineUnavailable):
            await versions.load(version)
        assert not server.paused
        assert not versions.replacing
        assert server.weights == "default"
        assert versions.answered() == (), "who knows what it has read of them"
        del server.fails["/update_weights_from_disk"]
        server.asked.clear()
        await versions.load(BASE)
        assert server.asked == SWAP
        assert versions.loaded() == (0,)

    scenario(tiny, body)


def test_a_server_that_was_not_told_to_go_on_is_told_at_the_next_look(tiny: Path, tmp_path: Path) -> None:
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.fails["/continue_generation"] = EngineUnavailable("lost")
        with pytest.raises(EngineUnavailable):
            await versions.load(version)
        assert server.paused
        del server.fails["/continue_generation"]
        await versions.load(version)
        assert not server.paused
        assert server.asked[-3:] == [*SWAP[1:], SWAP[2]], "and its weights, which are there, not another time"

    scenario(tiny, body)


def test_a_server_that_was_left_paused_goes_on(tiny: Path) -> None:
    async def main() -> None:
        server = FakeSglang(paused=True)
        versions = speaker(server, tiny)
        await versions.look()
        assert not server.paused
        await versions.look()
        assert server.asked == ["/continue_generation"]

    asyncio.run(main())


def test_weights_that_nobody_here_loaded_serve_nobody(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    """A server that somebody else has used before: an adapter needs the base beneath it."""

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        server.weights = "policy-v1.0a1b2c3d"
        await versions.look()
        assert versions.loaded() == versions.answered() == ()
        with pytest.raises(UnknownVersion):
            await versions.serving(1)
        await versions.load(adapters[1])
        assert server.asked == [*SWAP, "/load_lora_adapter"]
        assert versions.loaded() == (0, 1)

    scenario(tiny, body)


def test_whole_weights_that_outlived_us_are_known_by_their_digest(tiny: Path, tmp_path: Path) -> None:
    seventh, other = (full_version(tiny, tmp_path / f"step-{number}", number) for number in (7, 8))
    impostor = PolicyVersion(version=7, state=other.state, path=other.path, step=7, created_at=0.0)

    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(seventh)
        for version, asked in ((seventh, []), (impostor, SWAP)):
            after = speaker(server, tiny)
            await after.look()
            assert after.loaded() == ()
            server.asked.clear()
            await after.load(version)
            assert server.asked == asked
            assert after.loaded() == (7,)
        await versions.load(BASE)
        after = speaker(server, tiny)
        await after.look()
        assert after.loaded() == (0,), "the base is the same for all who use a server"

    scenario(tiny, body)


def test_a_restarted_server_has_nothing_and_says_so(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: FakeSglang, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        before = await versions.look()
        with versions.using(1):
            await versions.unload(1)
            server.restart()
            after = await versions.look()
        assert before.instance_id != after.instance_id
        assert versions.loaded() == (0,)
        await versions.load(adapters[1])
        assert await versions.serving(1)

    scenario(tiny, body)
