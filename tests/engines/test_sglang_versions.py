"""How versions come and go, against a fake that does what SGLang was seen to do; and what is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import MODEL_DIR, WeightsKind, write_manifest
from openclaw_rl.serving.engines.model_text import ModelText
from openclaw_rl.serving.engines.protocol import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    InvalidEngineRequest,
    UnknownVersion,
)
from openclaw_rl.serving.engines.sglang.versions import SglangVersions
from openclaw_rl.serving.engines.sglang.wire import error_of
from openclaw_rl.serving.engines.weights_check import check_weights
from openclaw_rl.types import PolicyVersion, VersionState
from tests.engines.support import version_of, write_adapter

BASE = PolicyVersion(version=0, state=VersionState.SERVING, path=None, step=0, created_at=0.0)


class Server:
    """What SGLang does with adapters and weights; `asked` are the paths of what changes something."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.weights = "default"
        self.seed = 1
        self.asked: list[str] = []
        self.paused = False
        self.fails: dict[str, EngineError] = {}

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        await asyncio.sleep(0)
        if method == "POST":
            self.asked.append(path)
        if path in self.fails:
            raise self.fails[path]
        answers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/server_info": lambda _: {"random_seed": self.seed, "sampling_mask_max_tokens": 64},
            "/model_info": lambda _: {"weight_version": self.weights},
            "/v1/models": self._models,
            "/load_lora_adapter": self._load,
            "/unload_lora_adapter": self._unload,
            "/pause_generation": lambda _: self._pause(True),
            "/continue_generation": lambda _: self._pause(False),
            "/update_weights_from_disk": self._update,
        }
        return answers[path](body or {})

    def restart(self) -> None:
        self.adapters, self.weights, self.seed = {}, "default", self.seed + 1

    def _models(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        adapters = [{"id": name, "parent": "m", "max_model_len": None} for name in self.adapters]
        return {"data": [{"id": "m", "parent": None, "max_model_len": 512}, *adapters]}

    def _load(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["lora_name"] in self.adapters:
            raise error_of({"success": False, "error_message": "already loaded"}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return {"success": True}

    def _unload(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise error_of({"success": False, "error_message": "does not exist"}, 400)
        return {"success": True}

    def _pause(self, paused: bool) -> dict[str, Any]:
        self.paused = paused
        return {"status": "ok"}

    def _update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self.paused
        assert body["flush_cache"] is False, "requests in flight need what they computed"
        self.weights = body["weight_version"]
        return {"success": True, "message": "Succeeded"}


def scenario(tiny: Path, body: Callable[[Server, SglangVersions], Awaitable[None]], limit: int = 2) -> None:
    async def get() -> ModelText:
        return cast(ModelText, SimpleNamespace(directory=tiny))

    async def main() -> None:
        server = Server()
        versions = SglangVersions(
            server.ask,
            base=SimpleNamespace(get=get),
            limit=limit,
            timeout_s=10,
            quick_s=1,
        )
        await body(server, versions)
        await versions.close()

    asyncio.run(main())


def full_version(tiny: Path, target: Path, number: int) -> PolicyVersion:
    model = load_causal_lm(tiny)
    model.save_pretrained(target / MODEL_DIR)
    write_manifest(target / MODEL_DIR, {})
    return version_of(target / MODEL_DIR, number)


def test_an_adapter_is_loaded_once_and_served(tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        with pytest.raises(UnknownVersion):
            await versions.serving(1)
        await versions.load(adapters[1])
        await versions.load(adapters[1])
        assert server.asked == ["/load_lora_adapter"]
        assert versions.loaded(await versions.serving(1)) == (0, 1)

    scenario(tiny, body)


def test_a_version_that_is_loaded_twice_at_once_is_loaded(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        await asyncio.gather(versions.load(adapters[1]), versions.load(adapters[1]))
        assert server.asked.count("/load_lora_adapter") == 2
        assert 1 in versions.loaded(await versions.serving(1))

    scenario(tiny, body)


def test_a_version_that_is_to_go_is_refused_at_once_and_goes_with_its_last_request(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            await versions.unload(1)
            assert "policy-v1" in server.adapters
            assert versions.loaded(await versions.look()) == (0,)
            with pytest.raises(UnknownVersion):
                await versions.serving(1)
        await versions.close()
        assert server.adapters == {}
        await versions.unload(1)

    scenario(tiny, body)


def test_a_version_that_is_wanted_again_before_it_went_stays(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            await versions.unload(1)
            await versions.load(adapters[1])
        await versions.close()
        assert "policy-v1" in server.adapters
        assert await versions.serving(1)

    scenario(tiny, body)


def test_only_the_last_few_stay_and_none_that_is_used(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        with versions.using(1):
            for number in (2, 3, 4):
                await versions.load(adapters[number])
            await versions.close()
            assert set(server.adapters) == {"policy-v1", "policy-v4"}
        await versions.load(adapters[5])
        await versions.close()
        assert set(server.adapters) == {"policy-v1", "policy-v5"}, "4 was used before 1 was"

    scenario(tiny, body)


def test_an_adapter_that_is_still_going_is_not_now(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        server.fails["/load_lora_adapter"] = InvalidEngineRequest("it has an incomplete unload. Retry")
        with pytest.raises(EngineOverloaded):
            await versions.load(adapters[1])
        server.fails["/load_lora_adapter"] = InvalidEngineRequest("rank too large")
        with pytest.raises(InvalidEngineRequest, match="rank"):
            await versions.load(adapters[1])

    scenario(tiny, body)


def test_whole_weights_take_the_place_of_the_base_and_give_it_back(tiny: Path, tmp_path: Path) -> None:
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: Server, versions: SglangVersions) -> None:
        assert (await versions.serving(0)).salt is None
        await versions.load(version)
        assert server.asked == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        first = await versions.serving(7)
        assert versions.loaded(first) == (7,)
        with pytest.raises(UnknownVersion):
            await versions.serving(0)
        await versions.load(version)
        assert len(server.asked) == 3, "it is there"
        await versions.load(BASE)
        back = await versions.serving(0)
        assert len({None, first.salt, back.salt}) == 3, "prefixes are shared with no other time"
        await versions.load(BASE)
        assert len(server.asked) == 6

    scenario(tiny, body)


def test_a_request_that_an_update_overtook_is_answered(tiny: Path, tmp_path: Path) -> None:
    """It was routed to the version before; its tokens will say who drew them."""
    second, third = (full_version(tiny, tmp_path / f"step-{number}", number) for number in (2, 3))

    async def body(server: Server, versions: SglangVersions) -> None:
        await versions.load(second)
        await versions.load(third)
        assert (await versions.serving(2)).version == 3
        with pytest.raises(UnknownVersion):
            await versions.serving(1)

    scenario(tiny, body)


def test_generation_goes_on_where_the_update_failed(tiny: Path, tmp_path: Path) -> None:
    version = full_version(tiny, tmp_path / "step-7", 7)

    async def body(server: Server, versions: SglangVersions) -> None:
        server.fails["/update_weights_from_disk"] = EngineUnavailable("lost")
        with pytest.raises(EngineUnavailable):
            await versions.load(version)
        assert not server.paused
        assert server.weights == "default"

    scenario(tiny, body)


def test_a_restarted_server_has_nothing_and_says_so(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    async def body(server: Server, versions: SglangVersions) -> None:
        await versions.load(adapters[1])
        before = await versions.look()
        with versions.using(1):
            await versions.unload(1)
            server.restart()
            after = await versions.look()
        assert before.instance_id != after.instance_id
        assert versions.loaded(after) == (0,)
        await versions.load(adapters[1])
        assert await versions.serving(1)

    scenario(tiny, body)


# --- what is looked at before --------------------------------------------------------------------------------


def test_what_fits_passes(tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path) -> None:
    assert check_weights(Path(adapters[1].path or ""), tiny).kind is WeightsKind.LORA
    full = full_version(tiny, tmp_path / "step-7", 7)
    assert check_weights(Path(full.path or ""), tiny).kind is WeightsKind.FULL


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda tensors: {**tensors, _first(tensors): torch.full((16, 64), torch.nan)}, "not finite"),
        (lambda tensors: {**tensors, _first(tensors): torch.zeros(16, 65)}, "does not fit"),
        (lambda tensors: {name: value for name, value in tensors.items() if name != _first(tensors)}, "does not fit"),
        (lambda tensors: {**tensors, "base_model.model.model.odd.lora_A.weight": torch.zeros(2, 2)}, "model.odd"),
    ],
)
def test_an_adapter_that_would_harm_a_server_never_gets_there(
    damage: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], named: str, tiny: Path, tmp_path: Path
) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)
    file = tmp_path / "step-9/adapter/adapter_model.safetensors"
    save_file(damage(load_file(file)), file)
    write_manifest(tmp_path / "step-9", {})
    with pytest.raises(InvalidEngineRequest, match=named):
        check_weights(Path(version.path or ""), tiny)


def test_altered_files_and_other_kinds_are_refused(tiny: Path, tmp_path: Path) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)
    config = tmp_path / "step-9/adapter/adapter_config.json"
    config.write_text(config.read_text().replace('"use_dora": false', '"use_dora": true'))
    with pytest.raises(InvalidEngineRequest, match="not the file that was written"):
        check_weights(Path(version.path or ""), tiny)
    write_manifest(tmp_path / "step-9", {})
    with pytest.raises(InvalidEngineRequest, match="use_dora"):
        check_weights(Path(version.path or ""), tiny)
    with pytest.raises(InvalidEngineRequest, match="neither"):
        check_weights(tmp_path / "nowhere", tiny)


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(tensors) if "q_proj.lora_A" in name)
