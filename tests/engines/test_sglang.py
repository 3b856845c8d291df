"""SGLang keeps the contract: the package from PyPI, on a CPU, with our stand-in for its kernels (`sglang_cpu`)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from openclaw_rl.config import ModelConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import resolve_model
from openclaw_rl.serving.engines.check import check_engine
from openclaw_rl.serving.engines.protocol import Engine, InvalidEngineRequest, UnknownVersion
from openclaw_rl.serving.engines.sglang.server import KEY_FILE
from openclaw_rl.serving.engines.sglang.wire import adapter_name
from openclaw_rl.serving.engines.weights_check import identify
from openclaw_rl.types import PolicyVersion
from tests.engines.contract import EngineContract, scored
from tests.engines.harness import BASE, EngineHarness, Stream, answer, assert_close, contract_config
from tests.engines.support import STORY, not_installed, request

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]
START_S = 600.0

PYTHON = Path(__file__).resolve().parents[2] / ".venv-sglang-test/bin/python"
ON_CPU = [
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--lora-backend", "torch_native"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "8192", "--skip-server-warmup"),
    "--disable-overlap-schedule",  # as where whole models are trained: some are swapped here
]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    if not PYTHON.is_file():
        not_installed("no SGLang is here: make sglang-test-venv")
    model = resolve_model(ModelConfig())
    own = {"kind": "sglang", "sglang": {"python": str(PYTHON)}, "extra_args": ON_CPU}
    config = contract_config(tmp_path_factory.mktemp("sglang"), model, **own)
    with SglangHarness(config, model, start_timeout_s=START_S) as started:
        yield started


class SglangHarness(EngineHarness):
    """SGLang draws with a seed only with deterministic inference, which needs a GPU."""

    honours_seeds = False


class TestSglang(EngineContract):
    """The promises, but for those that SGLang cannot keep on a CPU; and what is special about it."""

    # --- where SGLang is different ---------------------------------------------------------------------------

    @pytest.mark.parametrize("temperature", [0.7, 1.0])
    def test_score_is_what_generation_said(self, harness: EngineHarness, temperature: float) -> None:
        if temperature == 1.0:
            super().test_score_is_what_generation_said(harness, temperature)
            return

        async def scenario(engine: Engine) -> None:
            stream = await answer(engine, request("Name a river.", temperature=temperature, max_tokens=2))
            with pytest.raises(InvalidEngineRequest, match="temperature"):
                await engine.score(scored(stream, temperature=temperature))

        harness.run(scenario)

    def test_kept_sets_are_told(self, harness: EngineHarness) -> None:
        async def scenario(engine: Engine) -> list[Stream]:
            cuts: list[dict[str, Any]] = [{"top_p": 0.7}, {"top_k": 5}]
            return [await answer(engine, request(STORY, temperature=1.0, max_tokens=8, **cut)) for cut in cuts]

        for stream in harness.run(scenario):
            assert all(kept is not None for kept in stream.kept)

    # --- what others could trip over ---------------------------------------------------------------------------

    def test_a_name_that_was_unloaded_still_answers_and_we_do_not_ask(self, harness: EngineHarness) -> None:
        """Why versions are refused here and not there."""

        async def scenario(engine: Engine) -> int:
            version = harness.lora()
            await engine.load_version(version)
            name = adapter_name(version, identify(Path(version.path or ""))[1])
            await engine.unload_version(version.version)
            body = {
                "input_ids": [1, 2, 3],
                "sampling_params": {"max_new_tokens": 1},
                "lora_path": name,
            }
            async with httpx.AsyncClient(base_url=url_of(harness), timeout=60, trust_env=False) as http:
                with_key = {"authorization": f"Bearer {key_of(harness)}"}
                answered = (await http.post("/generate", json=body, headers=with_key)).status_code
            await engine.unload_version(version.version)
            return answered

        assert harness.run(scenario) == 200

    def test_an_adapter_of_another_model_never_reaches_the_server(
        self, harness: EngineHarness, adapters: dict[int, PolicyVersion]
    ) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(InvalidEngineRequest, match="does not fit"):
                await engine.load_version(adapters[1])
            assert (await engine.health()).ready

        harness.run(scenario)

    def test_a_server_elsewhere_is_used_as_it_is(self, harness: EngineHarness, tmp_path: Path) -> None:
        attached = contract_config(
            tmp_path, harness.model, kind="sglang", urls=[url_of(harness)], api_key=key_of(harness)
        )
        asked = request("Name a river.", max_tokens=8)
        one = harness.run(lambda engine: answer(engine, asked))
        with EngineHarness(attached, harness.model, start_timeout_s=START_S) as other:
            two = other.run(lambda engine: answer(engine, asked))
        assert one.ids == two.ids
        assert_close(one.logprobs, two.logprobs, harness.bounds.same)
        assert harness.run(lambda engine: engine.health()).ready, "who only used it does not end it"

    def test_what_one_that_runs_lacks_is_named_before_anything_is_started(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        own = {"kind": "sglang", "urls": [url_of(harness)], "api_key": key_of(harness)}
        fits = contract_config(tmp_path, harness.model, **own)
        check_engine(fits, lambda _: None)
        deep = fits.training.lora.model_copy(update={"rank": 64})
        training = fits.training.model_copy(update={"lora": deep})
        wrong = {
            "--max-lora-rank": fits.model_copy(update={"training": training}),
            "--context-length": contract_config(tmp_path, harness.model, **own, context_length=4096),
            "engine.api_key": contract_config(tmp_path, harness.model, **{**own, "api_key": "another"}),
        }
        for named, config in wrong.items():
            with pytest.raises(ConfigError, match=named):
                check_engine(config, lambda _: None)

    def test_whoever_has_no_key_is_answered_nothing(self, harness: EngineHarness) -> None:
        for path in ("/server_info", "/v1/models"):
            assert httpx.get(url_of(harness) + path, trust_env=False).status_code == 401
        for path in ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk"):
            page = {"origin": "http://page.test", "authorization": "Bearer guess"}
            assert httpx.post(url_of(harness) + path, json={}, headers=page, trust_env=False).status_code == 401
        key = key_of(harness)
        assert not any(key in word for server in servers() for word in command_of(server))

    def test_each_token_is_told_as_of_the_weights_that_drew_it(self, harness: EngineHarness) -> None:
        """Streams that are at different places when the weights are replaced: to the last token before, and from the
        first one after."""

        async def scenario(engine: Engine) -> list[Stream]:
            version = harness.full(scale=0.5)
            streams = []
            for number in range(4):
                asked = request(f"{STORY} {number}", temperature=1.0, max_tokens=200)
                streams.append(Stream(engine, asked))
                await streams[-1].reach(2)
            harness.changed = True
            await engine.load_version(version)
            return [await stream.end() for stream in streams]

        for stream in harness.run(scenario):
            boundary = stream.versions.count(0)
            assert 2 <= boundary < len(stream.ids)
            before = harness.transformers(None, stream)
            assert_close(stream.logprobs[:boundary], before[:boundary], harness.bounds.transformers)
            first = stream.logprobs[boundary]
            assert first is not None
            assert abs(first - before[boundary]) > harness.bounds.transformers, "the old weights drew it"

    def test_going_back_to_the_base_shares_nothing_with_what_was(self, harness: EngineHarness) -> None:
        """Whole weights and back: the same prompt again, whose prefix was computed by three sets of weights."""

        async def scenario(engine: Engine) -> tuple[Stream, Stream, PolicyVersion]:
            asked = request(STORY, temperature=1.0, max_tokens=12)
            await answer(engine, asked)
            version = harness.full()
            harness.changed = True
            await engine.load_version(version)
            new = await answer(engine, request(STORY, version=version.version, temperature=1.0, max_tokens=12))
            with pytest.raises(UnknownVersion):
                await answer(engine, dataclasses.replace(asked, pinned=True))
            await engine.load_version(BASE)
            harness.changed = False
            return new, await answer(engine, asked), version

        new, base, version = harness.run(scenario)
        assert_close(new.logprobs, harness.transformers(version, new), harness.bounds.transformers)
        assert_close(base.logprobs, harness.transformers(None, base), harness.bounds.transformers)

    def test_a_server_that_was_started_here_ends_with_us(self, harness: EngineHarness) -> None:
        before = servers()
        assert len(before) > 1, "the server and its workers"
        harness.changed = True
        harness.kill()
        _, left = psutil.wait_procs(before, timeout=20)
        assert not left


def servers() -> list[psutil.Process]:
    """SGLang and what it started, of those processes that this one started."""
    ours = psutil.Process(os.getpid()).children(recursive=True)
    roots = [process for process in ours if "sglang.launch_server" in command_of(process)]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def command_of(process: psutil.Process) -> list[str]:
    """Its words; none of one that has ended and that nobody has waited for."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def key_of(harness: EngineHarness) -> str:
    """What SGLang asks for."""
    key: str = json.loads((harness.config.run_dir / KEY_FILE).read_text())["api-key"]
    return key


def url_of(harness: EngineHarness) -> str:
    """Where SGLang itself listens, behind the engine's process."""
    words = servers()[0].cmdline()
    return f"http://{harness.config.engine.host}:{words[words.index('--port') + 1]}"
