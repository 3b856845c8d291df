"""What vLLM keeps beyond the contract, whoever has started it."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from pathlib import Path

import httpx

from openclaw_rl.serving.engines.protocol import Engine
from tests.engines.contract import EngineContract
from tests.engines.harness import EngineHarness, Stream, answer
from tests.engines.support import STORY, request

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
    """The promises, and that nothing is drawn for nobody: which vLLM itself counts."""

    def test_a_client_that_leaves_ends_its_generation(self, harness: EngineHarness) -> None:
        super().test_a_client_that_leaves_ends_its_generation(harness)
        _check_idle(harness)

    def test_a_client_that_hangs_up_on_the_gateway_ends_its_generation(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        super().test_a_client_that_hangs_up_on_the_gateway_ends_its_generation(harness, tmp_path)
        _check_idle(harness)

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


def _check_idle(harness: EngineHarness) -> None:
    """Whether vLLM draws nothing for anybody."""
    assert isinstance(harness, CountingHarness)
    time.sleep(1.0)  # what it was told is on its way
    early = harness.drawn()
    time.sleep(1.5)
    assert harness.drawn() == early > 0
