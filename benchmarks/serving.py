"""Streams through the whole deployment: tokens per second, time to the first token, the longest gaps.

All loops run, as in service; requests carry `X-No-Train`, so that nothing is trained meanwhile. How long answers
are is up to the policy; tokens are counted by the gateway (`usage`).
"""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: before the imports below, which want the repository on the path
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.__main__ import main

    sys.exit(main([Path(__file__).stem, *sys.argv[1:]]))

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from openclaw_rl.config import Config, ModelConfig, ServingConfig
from openclaw_rl.supervision.deployment import Deployment

PROMPT = "Explain in some detail how a lighthouse works, part {number}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One answer as its client saw it; times in seconds."""

    first_token_s: float
    longest_gap_s: float
    tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--model-path", default=ModelConfig().path)
    parser.add_argument("--parallel", type=int, default=8, help="streams at once")
    parser.add_argument("--rounds", type=int, default=2, help="how often; the first round warms up and is left out")
    parser.add_argument("--max-tokens", type=int, default=64)


def run(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Start a deployment, measure, stop it; the figures of the rounds after the first."""
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            run_dir=Path(directory) / "run",
            model=ModelConfig(path=arguments.model_path),
            serving=ServingConfig(port=0),
        )
        with Deployment(config) as deployment:
            return asyncio.run(_measure(deployment.url, arguments))


async def _measure(url: str, arguments: argparse.Namespace) -> Mapping[str, Any]:
    streams: list[Stream] = []
    seconds = 0.0
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        for number in range(arguments.rounds + 1):
            begin = time.monotonic()
            asked = [_stream(client, number * 100 + i, arguments.max_tokens) for i in range(arguments.parallel)]
            answered = await asyncio.gather(*asked)
            if number > 0:
                seconds += time.monotonic() - begin
                streams += answered
    return {
        "parallel": arguments.parallel,
        "answers": len(streams),
        "tokens_per_s": round(sum(stream.tokens for stream in streams) / seconds, 1),
        "first_token_ms_median": round(1000 * statistics.median(stream.first_token_s for stream in streams)),
        "longest_gap_ms_median": round(1000 * statistics.median(stream.longest_gap_s for stream in streams)),
        "longest_gap_ms": round(1000 * max(stream.longest_gap_s for stream in streams)),
    }


async def _stream(client: AsyncOpenAI, number: int, max_tokens: int) -> Stream:
    begin = time.monotonic()
    times: list[float] = []
    tokens = 0
    chunks = await client.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": PROMPT.format(number=number)}],
        max_tokens=max_tokens,
        seed=number,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-No-Train": "1"},
    )
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            times.append(time.monotonic())
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return Stream(first_token_s=times[0] - begin, longest_gap_s=max(gaps, default=0.0), tokens=tokens)
