"""The `openai` adapter keeps the contract: its upstream is a vLLM that somebody else runs, as its OpenAI server.

vLLM is asked for what it offers to anybody: chat completions with `return_token_ids`, its list of models, and
`load_lora_adapter`. It knows SmolLM2 as vLLM knows the models that people serve: with a `generation_config` that cuts
what is drawn, for whoever does not say otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.openai import wire
from openclaw_rl.serving.engines.openai.client import OpenAIEngine
from openclaw_rl.serving.engines.openai.reading import AnswerReader
from openclaw_rl.serving.engines.protocol import ChatRequest, Engine, InvalidEngineRequest, PromptRead, TokensDrawn
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.serving.engines.vllm.capabilities import EXTENSION
from openclaw_rl.serving.engines.vllm.launch import find_python, server_environment
from openclaw_rl.types import SamplingParams
from tests.engines.contract import conversation
from tests.engines.contract_limits import told_by
from tests.engines.harness import EngineHarness, Stream, answer, assert_close, contract_config, free_port
from tests.engines.support import STORY, not_installed, request
from tests.engines.vllm_promises import TOKENS_IN_A_PASS, CountingHarness, VllmContract

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0
NAME = "smollm2"
CUT = {"top_p": 0.5, "top_k": 3, "repetition_penalty": 1.5}
"""As the `generation_config.json` of many models has it."""


class UpstreamHarness(CountingHarness):
    """Starts vLLM in the place of an engine process: with `engine.kind = openai` nothing of ours stands between."""

    tells_restarts = has_queue = bounds_versions = False

    def launch(self) -> None:
        """Start vLLM's server, in a process group of its own."""
        run_dir = self.config.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / "engine.log").open("ab") as log:
            self._process = subprocess.Popen(
                server_command(self.config, self.model),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        self.changed = False

    def restore(self) -> None:
        """By another start: what a broken version left in its cache is not ours to heal."""
        self.restart()

    def environment(self) -> dict[str, str]:
        """That of a server which loads adapters while it runs; not the routes for developers."""
        environment = server_environment(self.config, super().environment())
        del environment["VLLM_SERVER_DEV_MODE"]
        return environment

    def _end(self, how: signal.Signals) -> None:
        """End the server and, whatever it left, all that it has started."""
        if self._process is None:
            return
        if how is not signal.SIGKILL:
            self._process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None

    def rendered(self, request: ChatRequest) -> tuple[int, ...]:
        """By the model's own template, which knows nothing of tools or of what a client may not spell."""
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in request.messages], add_generation_prompt=True, tokenize=False
        )
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def metrics(self) -> httpx.Response:
        """At the address at which it serves."""
        with httpx.Client(trust_env=False) as http:
            return http.get(f"{self.address}/metrics")

    @property
    def address(self) -> str:
        """Where all of its routes are, those of OpenAI's among them."""
        return self.config.engine.urls[0].removesuffix("/v1")


def server_command(config: Config, model: Path) -> list[str]:
    """vLLM's OpenAI server as anybody starts it who serves adapters (docs/14); it ends with this process.

    With the route for tokens in, tokens out, it will also do for `engine.kind = vllm` (docs/13).

    On a CPU it takes the base for an adapter without our extension of its workers (docs/13).
    """
    versions = str(config.engine.max_versions)
    options = {
        "--model": str(model),
        "--served-model-name": NAME,
        "--host": "127.0.0.1",
        "--port": config.engine.urls[0].removesuffix("/v1").rpartition(":")[2],
        "--dtype": "float32",
        "--max-model-len": str(config.engine.context_length),
        "--max-num-seqs": str(config.engine.max_parallel),
        "--max-num-batched-tokens": str(TOKENS_IN_A_PASS),
        "--max-lora-rank": str(config.training.lora.rank),
        "--max-loras": versions,
        "--max-cpu-loras": versions,
        "--logprobs-mode": "processed_logprobs",
        "--tool-call-parser": "hermes",
        "--override-generation-config": json.dumps(CUT),
        "--worker-extension-cls": EXTENSION,
    }
    arguments = [part for option in options.items() for part in option]
    arguments += ["--enable-lora", "--enable-auto-tool-choice", "--enable-scale-out"]
    arguments += ["--enforce-eager", "--disable-uvicorn-access-log"]
    arguments += ["--lora-target-modules", *config.training.lora.target_modules]
    tied = [sys.executable, "-m", "openclaw_rl.serving.engines.vllm.tied", str(os.getpid())]
    return [*tied, str(find_python(config)), "-m", "vllm.entrypoints.openai.api_server", *arguments]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model = resolve_model(ModelConfig())
    upstream = {
        "urls": [f"http://127.0.0.1:{free_port()}/v1"],
        "upstream_model": NAME,
        "upstream_logprobs": "processed",
    }
    config = contract_config(tmp_path_factory.mktemp("openai"), model, kind="openai", **upstream)
    try:
        find_python(config)
    except ConfigError as error:
        not_installed(str(error))
    with UpstreamHarness(config, model, start_timeout_s=START_S) as started:
        yield started


def test_status_calls_it_trainable(harness: UpstreamHarness) -> None:
    async def scenario(engine: Engine) -> str:
        assert isinstance(engine, OpenAIEngine)
        return (await engine.probe()).words()

    assert harness.run(scenario).startswith("served, judged and trainable")


def test_a_whole_answer_is_read_as_a_streamed_one_is(harness: UpstreamHarness) -> None:
    """The body of vLLM's chat route where it is not asked to stream; an upstream may answer so all the same."""
    asked = conversation(("user", "Name three rivers."), max_tokens=16)
    streamed = harness.run(lambda engine: answer(engine, asked))
    body = wire.request_body(asked, model=NAME, wording=wire.Wording(usage=False)) | {"stream": False}
    with httpx.Client(trust_env=False, timeout=60.0) as http:
        whole = http.post(f"{harness.address}/v1/chat/completions", json=body)
    reader = AnswerReader(version=0, with_logprobs=True)
    read, drawn, finished = [*reader.add(wire.parse_chunk(whole.content)), *reader.end()]
    assert isinstance(read, PromptRead)
    assert isinstance(drawn, TokensDrawn)
    assert read.prompt_ids == streamed.prompt
    assert (drawn.ids, drawn.text) == (streamed.ids, streamed.text)
    assert_close(drawn.logprobs, streamed.logprobs, harness.bounds.same)
    assert finished == streamed.finished
    assert reader.has_ids
    assert reader.has_logprobs


def test_the_same_server_is_used_as_a_vllm_and_left_as_it_was(harness: UpstreamHarness, tmp_path: Path) -> None:
    """With `engine.kind = vllm` and its address: neither its defaults for sampling nor its end are ours."""
    config = contract_config(tmp_path, harness.model, kind="vllm", urls=[harness.address])
    asked = request(STORY, temperature=0.0, max_tokens=16)
    version = harness.lora()

    async def scenario(engine: Engine) -> tuple[Stream, Stream]:
        await engine.load_version(version)
        adapted = await answer(engine, told_by(version, max_tokens=16))
        base = await answer(engine, asked)
        await engine.unload_version(version.version)
        return base, adapted

    as_upstream = harness.run(lambda engine: answer(engine, asked))
    with EngineHarness(config, harness.model, start_timeout_s=START_S) as attached:
        base, adapted = attached.run(scenario)
    assert (base.prompt, base.ids) == (as_upstream.prompt, as_upstream.ids)
    assert_close(base.logprobs, as_upstream.logprobs, harness.bounds.same)
    assert_close(adapted.logprobs, harness.transformers(version, adapted), harness.bounds.transformers)
    assert harness.run(lambda engine: answer(engine, asked)).ids == base.ids, "who only used it does not end it"


class TestOpenai(VllmContract):
    """The promises, but for those that are the upstream's to keep: it renders, and says what it can read."""

    def test_what_a_client_spells_like_a_special_token_is_text(self, harness: EngineHarness) -> None:
        """It is the token, for vLLM renders; what is recorded is what the model saw, token by token."""
        mark = harness.tokenizer.eos_token
        asked = conversation(("user", f"Repeat {mark} please"), max_tokens=4)
        stream = harness.run(lambda engine: answer(engine, asked))
        assert stream.prompt == harness.rendered(asked)
        end = harness.tokenizer.eos_token_id
        assert stream.prompt.count(end) == Renderer(harness.tokenizer).render(asked.messages).count(end) + 1

    def test_a_content_part_that_is_not_text_is_refused_by_name(self, harness: EngineHarness) -> None:
        """The upstream may read it; where it does not, it is the request that is at fault."""

        async def scenario(engine: Engine) -> None:
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
            asked = ChatRequest(
                request_id="r",
                messages=({"role": "user", "content": [image]},),
                sampling=SamplingParams(max_tokens=4),
                version=0,
            )
            with pytest.raises(InvalidEngineRequest) as caught:
                await answer(engine, asked)
            assert caught.value.status == 400

        harness.run(scenario)

    def test_a_version_without_a_distribution_gives_an_error_or_no_number(self, harness: EngineHarness) -> None:
        """What it has left in vLLM's cache stays there, and would break who gets those blocks, until a restart."""
        super().test_a_version_without_a_distribution_gives_an_error_or_no_number(harness)
        harness.changed = True
