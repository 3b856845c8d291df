"""The engine's forward passes on a device that is not the CPU (a pretended one, see `tests.pretended_device`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import available_devices, choose_device, choose_dtype, load_causal_lm, load_tokenizer
from openclaw_rl.serving.engines.embedded.adapters import AdapterPool
from openclaw_rl.serving.engines.embedded.cache import SlotPool
from openclaw_rl.serving.engines.embedded.jobs import GenerationJob, Job, JobEvent, ScoreJob
from openclaw_rl.serving.engines.embedded.runner import ModelRunner, Piece
from openclaw_rl.serving.engines.embedded.scheduler import plan_round
from openclaw_rl.serving.engines.embedded.service import EmbeddedService
from openclaw_rl.serving.engines.protocol import ScoreRequest, ScoreResult, TokensDrawn
from openclaw_rl.types import PolicyVersion
from tests.engines.support import request
from tests.pretended_device import ELSEWHERE, MixedDevices, PretendedDevice

PROMPT = tuple(range(100, 140))


def serve(tiny: Path, adapter: PolicyVersion, device: torch.device) -> list[JobEvent]:
    """Three sequences in one batch (a version, the base, a scored text), then one that takes over a busy prefix."""
    model, tokenizer = load_causal_lm(tiny).to(device), load_tokenizer(tiny)
    pool = AdapterPool(model, 2)
    assert adapter.path is not None
    pool.load(adapter.version, Path(adapter.path))
    runner, said = ModelRunner(model, pool), list[JobEvent]()

    def answer(prompt: tuple[int, ...], version: int, seed: int) -> GenerationJob:
        asked = request(version=version, temperature=1.0, top_p=0.9, seed=seed)
        return GenerationJob(
            asked, prompt=prompt, max_tokens=6, end_tokens=frozenset(), tokenizer=tokenizer, sink=said.append
        )

    score = ScoreRequest(ids=PROMPT, start=30, version=adapter.version, temperature=0.7)
    jobs: list[Job] = [
        answer(PROMPT, adapter.version, 5),
        answer(PROMPT[:7], 0, 6),
        ScoreJob(score, sink=said.append),
    ]
    slots = SlotPool(runner.shape, 4)
    for job in jobs:
        job.slot = slots.take(job.tokens, job.version, job.reusable)
    late = answer((*PROMPT, 7, 8), adapter.version, 9)
    while jobs:
        plan = sorted(plan_round(jobs, 16, scores_first=False), key=lambda planned: planned[0].version)
        logits = runner.forward([piece(job, length) for job, length in plan])
        for (job, _), rows in zip(plan, logits, strict=True):
            assert rows.device.type == "cpu"
            job.take(rows)
        jobs = [job for job in jobs if not job.done]
        if late.slot is None and jobs and jobs[0].read > len(PROMPT):
            late.slot = slots.take(late.tokens, late.version, late.reusable)
            assert late.read == len(PROMPT)
            jobs.append(late)
    return said


def piece(job: Job, length: int) -> Piece:
    assert job.slot is not None
    tokens = job.tokens[job.read : job.read + length]
    return Piece(slot=job.slot, version=job.version, tokens=tokens, wanted=job.wanted(length))


def tokens_of(event: JobEvent) -> tuple[int, ...]:
    return event.ids if isinstance(event, TokensDrawn) else ()


def numbers_of(event: JobEvent) -> list[float]:
    return [p for p in event.logprobs if p is not None] if isinstance(event, TokensDrawn | ScoreResult) else []


def test_the_engine_says_the_same_on_another_device(tiny: Path, adapters: dict[int, PolicyVersion]) -> None:
    """Nothing is left on the CPU, and a seed means the same tokens; log-probabilities agree to rounding."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels differ from device to device
        expected = serve(tiny, adapters[1], torch.device("cpu"))
        with PretendedDevice() as pretended:
            said = serve(tiny, adapters[1], ELSEWHERE)
    assert [tokens_of(event) for event in said] == [tokens_of(event) for event in expected]
    logprobs, wanted = (
        torch.tensor([p for event in events for p in numbers_of(event)]) for events in (said, expected)
    )
    assert len(logprobs) == 3 * 6 + 10
    assert float((logprobs - wanted).abs().max()) < 1e-5
    assert pretended.operations > 500


def test_the_pretended_device_refuses_what_is_on_the_cpu() -> None:
    with PretendedDevice():
        there = torch.ones(2, device=ELSEWHERE)
        assert float((there + torch.tensor([1.0, 2.0], device=ELSEWHERE)).sum()) == 5.0
        assert (there.cpu() + torch.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(MixedDevices):
            there + torch.ones(2)
        with pytest.raises(MixedDevices):
            torch.ones(2)[there.long()]


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert ModelConfig().device == "auto"
    assert choose_device("auto", ("cpu", "cuda")) == "cuda"
    assert choose_device("auto", ("cpu",)) == "cpu"
    assert choose_device("cpu", ("cpu", "cuda")) == "cpu"
    with pytest.raises(ConfigError, match=r"model\.device 'cuda' is not there; torch finds: cpu$"):
        choose_device("cuda", ("cpu",))


def test_the_dtype_goes_with_the_device_unless_it_is_named() -> None:
    assert choose_dtype("auto", "cuda") is torch.bfloat16
    assert choose_dtype("auto", "cpu") is torch.float32
    assert choose_dtype("bfloat16", "cpu") is torch.bfloat16
    assert choose_dtype("float32", "cuda") is torch.float32


@pytest.mark.skipif("cuda" in available_devices(), reason="there is a GPU")
def test_an_engine_for_a_gpu_that_is_not_there_does_not_start(tiny: Path) -> None:
    config = Config.model_validate({"model": {"path": str(tiny), "device": "cuda"}})
    with pytest.raises(ConfigError, match=r"'cuda' is not there; torch finds: cpu"):
        EmbeddedService(config).load_model(1)
