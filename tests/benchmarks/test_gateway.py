"""The benchmark of the gateway with tiny numbers: every contender answers, and every figure is there."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from pathlib import Path

import pytest
from benchmarks.gateway_engine import ANSWER

from benchmarks import gateway, gateway_processes
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.protocol import ChatRequest, Finished, PromptRead, TokensDrawn
from openclaw_rl.types import SamplingParams

FIGURES = {
    "requests_per_s", "bare_requests_per_s", "passthrough_requests_per_s", "litellm_requests_per_s",
    "added_ttft_ms_p50", "added_ttft_ms_p99", "passthrough_added_ttft_ms_p50",
}  # fmt: skip


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gateway.add_arguments(parser)
    return parser.parse_args(options)


def test_every_figure_is_there_and_litellm_is_null_where_it_is_left_out() -> None:
    options = ["--json", "--no-litellm", "--rounds", "1", "--seconds", "0.5", "--warm-up", "0", "--clients", "2"]
    figures = gateway.run(parsed(*options, "--messages", "6"))
    assert figures.keys() >= FIGURES
    assert figures["litellm_requests_per_s"] is None
    assert figures["litellm_version"] is None
    measured = [figures[name] for name in FIGURES - {"litellm_requests_per_s"}]
    assert all(isinstance(value, float) and math.isfinite(value) for value in measured)
    assert min(figures[name] for name in FIGURES if name.endswith("requests_per_s") and figures[name]) > 0
    assert json.loads(json.dumps(figures)) == figures


def test_the_engine_says_the_same_in_our_protocol_and_its_prompts_extend_one_another(tmp_path: Path) -> None:
    async def answer(port: int, messages: list[dict[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        engine = EmbeddedEngine(f"http://127.0.0.1:{port}")
        sampling = SamplingParams(max_tokens=64)
        request = ChatRequest(request_id="r", messages=tuple(messages), sampling=sampling, version=0)
        events = [event async for event in engine.chat(request)]
        await engine.close()
        read, *drawn, finished = events
        assert isinstance(read, PromptRead)
        assert isinstance(finished, Finished)
        tokens = [event for event in drawn if isinstance(event, TokensDrawn)]
        ids = tuple(token for event in tokens for token in event.ids)
        assert (finished.prompt_tokens, finished.completion_tokens) == (len(read.prompt_ids), len(ids))
        return read.prompt_ids, ids, "".join(event.text for event in tokens)

    messages = [{"role": "user", "content": "What is a tide? " * 20}]
    with gateway_processes.running(engine := gateway_processes.engine(), tmp_path):
        prompt, ids, text = asyncio.run(answer(engine.port, messages))
        more = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And a wave?"}]
        longer, _, _ = asyncio.run(answer(engine.port, more))
    assert text == "".join(ANSWER)
    assert longer[: len(prompt) + len(ids)] == prompt + ids


def test_a_process_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    ends = gateway_processes.Contender(name="ends", port=gateway_processes.free_port(), command=["false"])
    with (
        pytest.raises(gateway_processes.NotStarted, match="ends did not start: it said nothing"),
        gateway_processes.running(ends, tmp_path),
    ):
        pass


def test_percentiles_are_of_the_values_themselves() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [gateway.percentile(values, percent) for percent in (1, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]
