"""Versions of several owners in one engine: nothing of one is in another's answers, and places go by use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw_rl.config import Config, PoliciesConfig
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.protocol import EngineOverloaded
from openclaw_rl.types import PolicyVersion
from tests.engines.support import Answer, ask, config_for, plain_logprobs, plain_model, request, with_service

PROMPT = "Tell me about a river and a town, and be brief about it."


def owned(model: Path) -> Config:
    """Of an engine that holds two versions, where everybody has a policy."""
    return config_for(model, max_versions=2).model_copy(update={"policies": PoliciesConfig(per="user")})


def test_the_same_prompt_has_each_owners_own_log_probabilities(
    tiny: Path, adapters: dict[int, PolicyVersion]
) -> None:
    """One after the other, whatever the cache holds by then, and at once: as PEFT itself says."""

    async def body(service: EmbeddedService) -> dict[str, list[Answer]]:
        for number in (1, 2):
            await service.load_version(adapters[number])
        cold = [await ask(service, request(PROMPT, version=2, temperature=1.0, seed=5))]
        warm = []
        for version in (1, 0, 2, 1, 2):
            warm.append(await ask(service, request(PROMPT, version=version, temperature=1.0, seed=5)))
        asked = [ask(service, request(PROMPT, version=version, temperature=1.0, seed=5)) for version in (0, 1, 2, 1)]
        return {"cold": cold, "warm": warm, "together": list(await asyncio.gather(*asked))}

    found = with_service(config_for(tiny), body)
    models = {number: plain_model(tiny, Path(str(adapters[number].path))) for number in (1, 2)}
    models[0] = plain_model(tiny)
    for answer in [*found["cold"], *found["warm"], *found["together"]]:
        (version,) = set(answer.versions)
        own = plain_logprobs(models[version], answer.prompt, answer.ids)
        assert answer.logprobs == pytest.approx(own, abs=1e-4)
        for other in {0, 1, 2} - {version}:
            assert answer.logprobs != pytest.approx(
                plain_logprobs(models[other], answer.prompt, answer.ids), abs=1e-2
            )
    (cold,) = found["cold"]
    for answer in [found["warm"][2], found["warm"][4]]:
        assert answer.ids == cold.ids
        assert answer.logprobs == pytest.approx(cold.logprobs, abs=1e-4)


def test_the_one_used_longest_ago_makes_room(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> list[tuple[int, ...]]:
        seen = []
        for number in (1, 2):
            await service.load_version(adapters[number])
        await ask(service, request(version=1, max_tokens=2))  # so that 2 is the one used longest ago
        for number in (3, 4):
            await service.load_version(adapters[number])
            seen.append((await service.health()).loaded_versions)
        return seen

    assert with_service(owned(tiny), body) == [(0, 1, 3), (0, 3, 4)]


def test_one_in_use_never_makes_room(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    async def body(service: EmbeddedService) -> None:
        for number in (1, 2):
            await service.load_version(adapters[number])
        streams = [service.chat(request(version=number, max_tokens=400)) for number in (1, 2)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(EngineOverloaded):
            await service.load_version(adapters[3])
        await streams[0].aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            while True:
                try:
                    await service.load_version(adapters[3])
                    break
                except EngineOverloaded:
                    await asyncio.sleep(0.01)
        assert (await service.health()).loaded_versions == (0, 2, 3)
        await streams[1].aclose()  # type: ignore[attr-defined]

    with_service(owned(tiny), body)


def test_of_owners_the_one_used_last_may_make_room(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    """Nobody's policy is the one in service: who was answered last does not keep others waiting."""

    async def body(service: EmbeddedService) -> tuple[int, ...]:
        for number in (1, 2):
            await service.load_version(adapters[number])
        stream = service.chat(request(version=1, max_tokens=400))
        await anext(stream)
        await ask(service, request(version=2, max_tokens=2))
        await service.load_version(adapters[3])
        loaded = (await service.health()).loaded_versions
        await stream.aclose()  # type: ignore[attr-defined]
        return loaded

    assert with_service(owned(tiny), body) == (0, 1, 3)
