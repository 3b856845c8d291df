"""Helpers shared by the engine's tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model

from openclaw_rl.config import Config
from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.protocol import (
    ChatRequest,
    Engine,
    Finished,
    PromptRead,
    TokensDrawn,
)
from openclaw_rl.types import PolicyVersion, SamplingParams, VersionState

T = TypeVar("T")
REQUIRED = "OPENCLAW_RL_TEST_EVERY_ENGINE"
"""Set in the environment: an engine that is not installed is a failure, not a skip (`make test-every-engine`)."""
STORY = "Write a long story about a river, a town, and the people who live there."
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def not_installed(reason: str) -> NoReturn:
    """Skip what needs an engine that is not here, or fail where every engine has to be."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, and {reason}", pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True, kw_only=True)
class Answer:
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    tool_calls: tuple[Any, ...]
    kept: tuple[tuple[int, ...] | None, ...]
    finished: Finished


def config_for(model: Path, **engine: Any) -> Config:
    values = {"max_parallel": 4, "context_length": 512, "prefill_chunk_tokens": 16, "threads": 1, **engine}
    return Config.model_validate({"model": {"path": str(model)}, "engine": values})


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[EmbeddedService]:
    service = EmbeddedService(config)
    await asyncio.to_thread(service.load_model, 1)
    try:
        yield service
    finally:
        await service.close()


def with_service(config: Config, body: Callable[[EmbeddedService], Awaitable[T]]) -> T:
    async def main() -> T:
        async with running(config) as service:
            return await asyncio.wait_for(body(service), 120)

    return asyncio.run(main())


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the compute thread sets no event for tests
            await asyncio.sleep(0.002)


def request(
    text: str = "Hello there", *, version: int = 0, tools: Sequence[Any] = (), **sampling: Any
) -> ChatRequest:
    values = {"max_tokens": 12, "temperature": 0.0, **sampling}
    return ChatRequest(
        request_id="r",
        messages=({"role": "user", "content": text},),
        tools=tuple(tools),
        sampling=SamplingParams(**values),
        version=version,
    )


async def ask(engine: Engine, asked: ChatRequest) -> Answer:
    prompt: tuple[int, ...] = ()
    drawn: list[TokensDrawn] = []
    finished = None
    async for event in engine.chat(asked):
        if isinstance(event, PromptRead):
            prompt = event.prompt_ids
        elif isinstance(event, TokensDrawn):
            drawn.append(event)
        else:
            finished = event
    assert finished is not None
    return Answer(
        prompt=prompt,
        ids=tuple(token for event in drawn for token in event.ids),
        logprobs=tuple(logprob for event in drawn for logprob in event.logprobs if logprob is not None),
        versions=tuple(version for event in drawn for version in event.versions),
        text="".join(event.text for event in drawn),
        tool_calls=tuple(call for event in drawn for call in event.tool_calls),
        kept=tuple(ids for event in drawn for ids in event.kept or ()),
        finished=finished,
    )


def write_adapter(
    model: Path, target: Path, *, seed: int, rank: int = 16, alpha: float = 32.0, scale: float = 0.02
) -> PolicyVersion:
    """A LoRA adapter with random weights, strong enough to change every distribution, as the trainer writes one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = PeftLoraConfig(r=rank, lora_alpha=alpha, target_modules=MODULES, task_type="CAUSAL_LM")
        peft = get_peft_model(load_causal_lm(model), config)
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=scale)
        peft.save_pretrained(str(target / "adapter"))
    write_manifest(target, {})
    return version_of(target, seed)


def version_of(path: Path, number: int) -> PolicyVersion:
    return PolicyVersion(version=number, state=VersionState.CANDIDATE, path=str(path), step=number, created_at=0.0)


@torch.no_grad()
def plain_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """What Transformers itself says in one forward pass: log p of `ids` after `prompt`."""
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return [float(logprobs[place, token]) for place, token in enumerate(ids)]


def plain_model(model: Path, adapter: Path | None = None) -> Any:
    loaded = load_causal_lm(model)
    return loaded if adapter is None else PeftModel.from_pretrained(loaded, str(adapter / "adapter")).eval()
