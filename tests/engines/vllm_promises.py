"""What vLLM keeps beyond the contract, whoever has started it."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod

import httpx

from openclaw_rl.serving.engines.protocol import Engine
from tests.engines.contract import STORY, EngineContract
from tests.engines.harness import EngineHarness, Stream, answer
from tests.engines.support import request

TOKENS_IN_A_PASS = 256
"""At most so many tokens does vLLM read in one pass: what its `--max-num-batched-tokens` is told here."""


class CountingHarness(EngineHarness, ABC):
    """An engine behind which a vLLM counts what it draws."""

    @abstractmethod
    def metrics(self) -> httpx.Response:
        """What vLLM answers at `/metrics`."""

    def drawn(self) -> float:
        """How many tokens vLLM says that it has drawn since its start."""
        found = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", self.metrics().text, re.MULTILINE)
        assert found is not None
        return float(found.group(1))


class VllmContract(EngineContract):
    """The promises, and that nothing is drawn for nobody."""

    def test_no_more_is_drawn_for_a_client_that_left(self, harness: CountingHarness) -> None:
        async def scenario(engine: Engine) -> tuple[float, float]:
            stream = Stream(engine, request(STORY, temperature=1.0, max_tokens=400))
            await stream.reach(3)
            await stream.leave()
            await asyncio.sleep(2.0)
            early = await asyncio.to_thread(harness.drawn)
            await asyncio.sleep(2.0)
            return early, await asyncio.to_thread(harness.drawn)

        early, late = harness.run(scenario)
        assert early == late

    def test_a_seed_fixes_an_answer_whose_prompt_is_read_in_pieces(self, harness: CountingHarness) -> None:
        """Each of them is longer than what vLLM reads in one pass."""
        prompts = [f"{number}. {STORY} " + "It was a long way. " * 68 for number in range(3)]
        asked = [request(text, temperature=1.0, seed=7, max_tokens=8) for text in prompts]

        async def scenario(engine: Engine) -> tuple[list[Stream], list[Stream]]:
            together = await asyncio.gather(*(answer(engine, one) for one in asked))
            return list(together), [await answer(engine, one) for one in asked]

        together, alone = harness.run(scenario)
        assert all(len(stream.prompt) > TOKENS_IN_A_PASS for stream in together)
        assert [stream.ids for stream in together] == [stream.ids for stream in alone]
