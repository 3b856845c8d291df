"""vLLM keeps the contract, with the real SmolLM2 in fp32 on the CPU."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import psutil
import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.openai import wire
from openclaw_rl.serving.engines.openai.client import OpenAIEngine
from openclaw_rl.serving.engines.protocol import Engine
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.vllm.api import VllmApi
from openclaw_rl.serving.engines.vllm.launch import BASE_NAME, find_python
from openclaw_rl.serving.engines.vllm.probe import Found, check_fit, check_server
from tests.engines.contract import thinking_aloud
from tests.engines.harness import EngineHarness, Stream, answer, assert_close, contract_config
from tests.engines.support import not_installed
from tests.engines.vllm_promises import TOKENS_IN_A_PASS, CountingHarness, VllmContract

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0
UPSTREAM = "http://localhost/v1/"


class VllmHarness(CountingHarness):
    """Knows the server behind the engine process, and kills that one: the engine process has to notice, and end."""

    @property
    def server(self) -> psutil.Process:
        """vLLM's own process."""
        assert self._process is not None
        (server,) = psutil.Process(self._process.pid).children()
        return server

    def kill(self) -> None:
        """End vLLM by SIGKILL, with all that it has started."""
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self.server.pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None

    def metrics(self) -> httpx.Response:
        """By the socket that it listens at."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=self.socket)) as http:
            return http.get("http://localhost/metrics")

    @property
    def socket(self) -> str:
        """Where vLLM was told to listen."""
        arguments = self.server.cmdline()
        return arguments[arguments.index("--uds") + 1]

    @contextlib.asynccontextmanager
    async def upstream(self) -> AsyncIterator[OpenAIEngine]:
        """The same vLLM by its chat route, which takes reasoning out of the text: as an upstream."""
        engine = OpenAIEngine(UPSTREAM, model=BASE_NAME, raw_logprobs=False)
        await engine.close()
        transport = httpx.AsyncHTTPTransport(uds=self.socket)
        engine._client = httpx.AsyncClient(base_url=UPSTREAM, transport=transport, timeout=60.0)
        try:
            yield engine
        finally:
            await engine.close()


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    own = {
        "extra_args": ["--max-num-batched-tokens", str(TOKENS_IN_A_PASS), "--reasoning-parser", "qwen3"],
        "vllm": {"start_timeout_s": START_S},
    }
    config = contract_config(tmp_path_factory.mktemp("vllm"), model, kind="vllm", **own)
    try:
        find_python(config)
    except ConfigError as error:
        not_installed(str(error))
    with VllmHarness(config, model, start_timeout_s=START_S) as started:
        yield started


class TestVllm(VllmContract):
    """The promises, kept; `test_a_reasoning_block_comes_as_it_was_drawn` although vLLM has a parser for it."""

    def test_an_upstreams_reasoning_parser_withholds_text_and_no_ids(self, harness: VllmHarness) -> None:
        """Of the same vLLM as an upstream, streaming or not."""
        asked = thinking_aloud()

        async def scenario(_: Engine) -> tuple[Stream, bytes]:
            async with harness.upstream() as upstream:
                streamed = await answer(upstream, asked)
                body = wire.request_body(asked, model=BASE_NAME, wording=wire.Wording(usage=False))
                whole = await upstream._client.post("chat/completions", json={**body, "stream": False})
                return streamed, whole.content

        streamed, body = harness.run(scenario)
        assert streamed.finished is not None
        assert "think" not in streamed.text
        assert streamed.text.strip()
        raw = harness.tokenizer.decode(streamed.ids, skip_special_tokens=True)
        assert raw.startswith("<think>")
        assert raw.endswith(streamed.text)
        assert len(streamed.ids) == streamed.finished.completion_tokens
        assert_close(streamed.logprobs, harness.transformers(None, streamed), harness.bounds.transformers)
        whole = wire.parse_chunk(body)
        assert (whole.text, whole.ids) == (streamed.text, streamed.ids)

    def test_what_one_that_runs_lacks_is_named(self, harness: VllmHarness) -> None:
        """The server itself tells it, to whoever would use it with another configuration than it was started for."""
        deep = harness.config.training.lora.model_copy(update={"rank": 64})
        training = harness.config.training.model_copy(update={"lora": deep})
        deeper = Situation(config=harness.config.model_copy(update={"training": training}))

        async def scenario(_: Engine) -> Found:
            api = VllmApi(f"unix://{harness.socket}", request_timeout_s=60.0, load_timeout_s=60.0)
            try:
                return await check_server(api, attached=True)
            finally:
                api.close()

        found = harness.run(scenario)
        check_fit(found, Situation(config=harness.config), context=harness.config.engine.context_length)
        with pytest.raises(ConfigError, match="--max-lora-rank 64, not 16"):
            check_fit(found, deeper, context=512)
        with pytest.raises(ConfigError, match="--max-model-len of at least 4096"):
            check_fit(found, Situation(config=harness.config), context=4096)
