"""Versions that are whole models, loaded beside requests in flight."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.embedded.whole import WholeModels, free
from openclaw_rl.serving.engines.protocol import (
    EngineOverloaded,
    InvalidEngineRequest,
    ScoreRequest,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.types import PolicyVersion
from tests.engines.support import (
    Answer,
    ask,
    config_for,
    plain_logprobs,
    plain_model,
    request,
    version_of,
    with_service,
)


@pytest.fixture(scope="module")
def wholes(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, PolicyVersion]:
    root = tmp_path_factory.mktemp("wholes")
    return {number: write_whole(tiny, root / f"step-{number}" / "model", seed=number) for number in (1, 2, 3)}


def write_whole(base: Path, target: Path, *, seed: int) -> PolicyVersion:
    """The base with all weights moved, as the trainer writes a version."""
    model = load_causal_lm(base)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(target)
    write_manifest(target, {})
    return version_of(target, seed)


def expected(version: PolicyVersion, answer: Answer) -> list[float]:
    return plain_logprobs(plain_model(Path(version.path or "")), answer.prompt, answer.ids)


def close(found: tuple[float, ...], wanted: list[float]) -> None:
    assert found == pytest.approx(wanted, abs=2e-4)


def test_a_whole_version_answers_and_scores_as_itself(
    tiny: Path, wholes: dict[int, PolicyVersion], adapters: dict[int, PolicyVersion]
) -> None:
    """Beside the base and an adapter, all in one round."""
    loaded = {1: wholes[1], 2: wholes[2], 3: adapters[3]}

    async def body(service: EmbeddedService) -> tuple[list[Answer], tuple[float, ...]]:
        assert service.capabilities.full_weights
        for version in loaded.values():
            await service.load_version(version)
        answers = await asyncio.gather(*(ask(service, request(version=n, max_tokens=8)) for n in (0, 1, 2, 3)))
        ids = (*answers[1].prompt, *answers[1].ids)
        score = await service.score(ScoreRequest(ids=ids, start=len(answers[1].prompt), version=1))
        return answers, score.logprobs

    answers, score = with_service(config_for(tiny), body)
    assert len({answer.ids for answer in answers}) > 2
    close(answers[0].logprobs, plain_logprobs(plain_model(tiny), answers[0].prompt, answers[0].ids))
    for number in (1, 2):
        close(answers[number].logprobs, expected(wholes[number], answers[number]))
        assert set(answers[number].versions) == {number}
    adapted = plain_model(tiny, Path(adapters[3].path or ""))
    close(answers[3].logprobs, plain_logprobs(adapted, answers[3].prompt, answers[3].ids))
    close(score, expected(wholes[1], answers[1]))


def test_streams_finish_on_the_version_that_they_began_with(tiny: Path, wholes: dict[int, PolicyVersion]) -> None:
    asked = request("Go on", version=1, temperature=1.0, max_tokens=60, seed=1)

    async def body(service: EmbeddedService) -> tuple[Answer, Answer, Answer]:
        await service.load_version(wholes[1])
        alone = await ask(service, asked)
        running = asyncio.create_task(ask(service, asked))
        await asyncio.sleep(0.02)
        await service.load_version(wholes[2])
        new = await ask(service, request("Go on", version=2))
        return alone, await running, new

    alone, old, new = with_service(config_for(tiny), body)
    assert old.ids == alone.ids
    close(old.logprobs, list(alone.logprobs))
    assert set(old.versions) == {1}
    close(new.logprobs, expected(wholes[2], new))


def test_at_the_bound_a_new_version_waits_for_one_that_nobody_uses(
    tiny: Path, wholes: dict[int, PolicyVersion]
) -> None:
    """Never three models beside the base, and never the one that was asked last thrown out."""

    async def body(service: EmbeddedService) -> Answer:
        for number in (1, 2):
            await service.load_version(wholes[number])
        events = service.chat(request("Go on", version=1, temperature=1.0, max_tokens=400, seed=1))
        await anext(events)
        await ask(service, request(version=2))
        with pytest.raises(EngineOverloaded, match="2 policy versions"):
            await service.load_version(wholes[3])
        assert (await service.health()).loaded_versions == (0, 1, 2)
        await events.aclose()  # type: ignore[attr-defined]
        await ask(service, request(version=2))
        await service.load_version(wholes[3])
        assert (await service.health()).loaded_versions == (0, 2, 3)
        await service.load_version(wholes[1])  # and back: 2 is older than 3
        assert (await service.health()).loaded_versions == (0, 1, 3)
        return await ask(service, request(version=1))

    close((answer := with_service(config_for(tiny), body)).logprobs, expected(wholes[1], answer))


def test_unloading_frees_the_weights_once_the_last_request_is_over(
    tiny: Path, wholes: dict[int, PolicyVersion]
) -> None:
    async def body(service: EmbeddedService) -> None:
        await service.load_version(wholes[1])
        model = service._adapters.model_of(1)
        assert model is not None
        held = list(model.parameters())
        events = service.chat(request("Go on", version=1, temperature=1.0, max_tokens=100, seed=1))
        await anext(events)
        await service.unload_version(1)
        with pytest.raises(UnknownVersion):
            await ask(service, request(version=1))
        drawn = [event async for event in events if isinstance(event, TokensDrawn)]
        assert {version for event in drawn for version in event.versions} == {1}
        async with asyncio.timeout(5):
            while service._adapters.model_of(1) is not None:  # noqa: ASYNC110 - the compute thread sets no event
                await asyncio.sleep(0.002)
        assert sum(parameter.numel() for parameter in held) == 0
        await ask(service, request())  # the base is as it was

    with_service(config_for(tiny), body)


@pytest.mark.parametrize("damage", ["torn", "other tensors", "other shape", "not finite", "no file"])
def test_a_damaged_or_foreign_version_is_refused(tiny: Path, tmp_path: Path, damage: str) -> None:
    version = write_whole(tiny, tmp_path / "model", seed=9)
    directory = tmp_path / "model"
    model = load_causal_lm(directory)
    if damage == "torn":
        (directory / "model.safetensors").write_bytes(b"x")
    elif damage == "no file":
        (directory / "manifest.json").unlink()
    else:
        if damage == "not finite":
            model.model.norm.weight.data[0] = float("nan")
        elif damage == "other shape":
            model.model.norm.weight = torch.nn.Parameter(torch.ones(3))
        else:
            model.model.extra = torch.nn.Linear(2, 2)
        model.save_pretrained(directory)
        (directory / "manifest.json").unlink()
        write_manifest(directory, {})

    async def body(service: EmbeddedService) -> None:
        with pytest.raises(InvalidEngineRequest):
            await service.load_version(version)
        assert (await service.health()).loaded_versions == (0,)
        await ask(service, request())

    with_service(config_for(tiny), body)


def test_a_loaded_model_shares_nothing_with_base_file_or_others(tiny: Path, wholes: dict[int, PolicyVersion]) -> None:
    base = load_causal_lm(tiny)
    makes = WholeModels(base)
    one: Any
    other: Any
    AdapterPool(base, 2)  # its hooks are on the base alone
    one, other = (makes.load(Path(wholes[1].path or "")) for _ in range(2))
    assert not any(module._forward_hooks for module in one.modules())
    pointers = [{parameter.data_ptr() for parameter in model.parameters()} for model in (base, one, other)]
    assert not pointers[0] & pointers[1]
    assert not pointers[1] & pointers[2]
    assert one.lm_head.weight is one.model.embed_tokens.weight, "tied as the base is"
    free(one)
    assert all(parameter.numel() for model in (base, other) for parameter in model.parameters())


def test_loading_does_not_hold_up_a_stream(tiny: Path, wholes: dict[int, PolicyVersion], tmp_path: Path) -> None:
    """The longest pause between two tokens while versions come and go is a pause of the machine, not of a load."""

    async def body(service: EmbeddedService) -> float:
        gaps = []
        events = service.chat(request("Go on", temperature=1.0, max_tokens=300, seed=1))
        loads = asyncio.create_task(come_and_go(service))
        last = None
        async for event in events:
            if isinstance(event, TokensDrawn):
                now = time.monotonic()
                gaps.append(0.0 if last is None else now - last)
                last = now
        await loads
        return max(gaps)

    async def come_and_go(service: EmbeddedService) -> None:
        for number in (1, 2, 3, 1):
            await service.load_version(wholes[number])

    assert with_service(config_for(tiny), body) < 2.0
