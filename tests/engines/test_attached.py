"""A vLLM or SGLang that runs already is asked before anything is started, and says by name what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import ADAPTER_DIR, MODEL_DIR
from openclaw_rl.serving.engines.attached import wanted_context
from openclaw_rl.serving.engines.check import check_engine
from openclaw_rl.serving.engines.embedded.app import serve
from openclaw_rl.store import Store
from tests.engines.fake_sglang import FakeSglang
from tests.engines.fake_sglang import create_fake as create_sglang
from tests.engines.fake_vllm import FakeVllm
from tests.engines.fake_vllm import create_fake as create_vllm
from tests.store.helpers import candidate, step_record

EVAL = {"enabled": False}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def listening(app: FastAPI, port: int | None = None) -> Iterator[str]:
    """The app behind HTTP for the time of a block; its URL."""
    port, stop = port or free_port(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(app, "127.0.0.1", port, stop, lambda: None)))
    thread.start()
    deadline = time.monotonic() + 30
    try:
        while not _connects(port):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        thread.join(10)


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def config_of(run_dir: Path, kind: str, url: str, **sections: Any) -> Config:
    engine = {"kind": kind, "urls": [url], "context_length": 80}
    return Config.model_validate({"run_dir": run_dir, "engine": engine, **sections})


def put_in_service(config: Config, kind: str) -> None:
    """Have the record say that a version of this kind is in service."""
    directory = config.run_dir / "checkpoints" / "step-000001" / kind
    directory.mkdir(parents=True)
    (directory / ("adapter_config.json" if kind == ADAPTER_DIR else "config.json")).write_text("{}")
    store = Store.open(config.store_path)
    store.samples.commit_step(step_record(1), replace(candidate(1), path=str(directory)))
    store.versions.serve(1)
    store.close()


def refusal(config: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        check_engine(config, lambda _: None, patience_s=60.0)
    return str(caught.value)


def test_what_a_vllm_lacks_is_named_with_its_address(tmp_path: Path) -> None:
    with listening(create_vllm(FakeVllm(scale_out=False))) as url:
        message = refusal(config_of(tmp_path, "vllm", url))
        assert message.startswith(f"the engine at {url} (engine.kind = vllm) will not do: this vLLM lacks the route")
        assert "--enable-scale-out (vLLM 0.32, which this is made for and tested with" in message
    with listening(create_vllm(FakeVllm(paused=True, developer=False, max_lora_rank=8))) as url:
        check_engine(config_of(tmp_path, "vllm", url), lambda _: pytest.fail("it is there"), patience_s=60.0)
        whole = {"use_lora": False, "lr": 1e-5}
        judge = {"kind": "classifier"}
        assert "training.use_lora = false" in refusal(config_of(tmp_path, "vllm", url, training=whole, judge=judge))
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text('{"max_position_embeddings": 4096}')
        long = {"kind": "vllm", "urls": [url], "context_length": 101}
        asked = {"run_dir": tmp_path, "model": {"path": str(model)}, "engine": long}
        assert "--max-model-len of at least 101" in refusal(Config.model_validate(asked))


def test_a_vllm_that_was_started_without_adapters_is_found_out(tmp_path: Path) -> None:
    """Its routes are there all the same, and only the first publication would fail."""
    with listening(create_vllm(FakeVllm(lora_enabled=False))) as url:
        assert "lacks loading adapters: start it with --enable-lora" in refusal(config_of(tmp_path, "vllm", url))


def test_adapters_on_a_cpu_need_our_extension_of_vllms_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it an adapter answers for the base: with policies of users, one user's for another."""
    with listening(create_vllm(FakeVllm(extended=False))) as url:
        assert "--worker-extension-cls openclaw_rl_in_vllm" in refusal(config_of(tmp_path, "vllm", url))
        check_engine(config_of(tmp_path, "vllm", url, training=EVAL), lambda _: None)
    with listening(create_vllm(FakeVllm(extended=False, device="cuda"))) as url:
        check_engine(config_of(tmp_path, "vllm", url), lambda _: None)
    assert "on a CPU" not in caplog.text
    with listening(create_vllm(FakeVllm(developer=False))) as url:
        check_engine(config_of(tmp_path, "vllm", url), lambda _: None)
    assert "on a CPU it has to be started with" in caplog.text


def test_a_whole_model_in_service_needs_a_vllm_that_swaps_also_where_nothing_is_trained(tmp_path: Path) -> None:
    with listening(create_vllm(FakeVllm(developer=False))) as url:
        config = config_of(tmp_path, "vllm", url, training=EVAL, judge={"kind": "classifier"})
        check_engine(config, lambda _: None)
        put_in_service(config, MODEL_DIR)
        message = refusal(config)
    assert "one is in service in this run_dir" in message
    assert "--worker-extension-cls" in message
    assert "openclaw-rl policy rollback base" in message
    with listening(create_vllm(FakeVllm())) as url:
        check_engine(config_of(tmp_path, "vllm", url, training=EVAL, judge={"kind": "classifier"}), lambda _: None)


def test_an_adapter_in_service_needs_a_sglang_that_loads_them_also_where_nothing_is_trained(tmp_path: Path) -> None:
    with listening(create_sglang(FakeSglang(info={"enable_lora": False}))) as url:
        config = config_of(tmp_path, "sglang", url, training=EVAL)
        check_engine(config, lambda _: None)
        assert "without --enable-lora --max-lora-rank 16" in refusal(config_of(tmp_path, "sglang", url))
        put_in_service(config, ADAPTER_DIR)
        message = refusal(config)
    assert message.startswith(f"the engine at {url} (engine.kind = sglang) will not do: SGLang was started without")
    assert "openclaw-rl policy rollback base" in message
    with listening(create_sglang(FakeSglang(info={"max_lora_rank": 4}))) as url:
        check_engine(config_of(tmp_path, "sglang", url, training=EVAL), lambda _: None)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_one_that_is_away_is_waited_for_and_then_named(tmp_path: Path, kind: str) -> None:
    port, said = free_port(), list[str]()
    config = config_of(tmp_path, kind, f"http://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=f"the engine at http://127.0.0.1:{port} .* cannot be used: .* reached"):
        check_engine(config, said.append, patience_s=1.0)
    assert len(said) == 1
    checking = threading.Thread(target=check_engine, args=(config, said.append))
    checking.start()
    time.sleep(0.3)
    app = create_vllm(FakeVllm()) if kind == "vllm" else create_sglang(FakeSglang())
    with listening(app, port):
        checking.join(60)
        assert not checking.is_alive()
    assert len(said) == 2


def test_something_else_at_the_address_is_no_engine(tmp_path: Path) -> None:
    with listening(FastAPI()) as url:
        for kind in ("vllm", "sglang"):
            assert f"the engine at {url} (engine.kind = {kind}) cannot be used" in refusal(
                config_of(tmp_path, kind, url)
            )


def test_the_models_own_length_counts_where_it_is_shorter(tmp_path: Path) -> None:
    for said, expected in [({"max_position_embeddings": 60}, 60), ({"max_position_embeddings": 99}, 80), ({}, None)]:
        (tmp_path / "config.json").write_text(json.dumps(said))
        config = config_of(tmp_path, "vllm", "http://127.0.0.1:1", model={"path": str(tmp_path)})
        assert wanted_context(config) == expected
    assert wanted_context(config_of(tmp_path, "vllm", "http://127.0.0.1:1")) is None


def test_asking_loads_no_model_library() -> None:
    """`up` asks before it starts anything, and should not need seconds for that."""
    code = (
        "import sys, openclaw_rl.serving.engines.attached; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_each_of_several_is_asked(tmp_path: Path) -> None:
    """And the one that will not do is named."""
    with listening(create_vllm(FakeVllm())) as first, listening(create_vllm(FakeVllm(lora_enabled=False))) as other:
        both = {"kind": "vllm", "urls": [first, other], "context_length": 80}
        message = refusal(Config.model_validate({"run_dir": tmp_path, "engine": both}))
    assert message.startswith(f"the engine at {other} (engine.kind = vllm) will not do")


def test_of_several_one_may_be_away(tmp_path: Path) -> None:
    """A deployment starts while one of its servers is down; while all are, it says so."""
    gone = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with listening(create_vllm(FakeVllm())) as there:
        some = {"kind": "vllm", "urls": [gone[0], there], "context_length": 80}
        said: list[str] = []
        check_engine(Config.model_validate({"run_dir": tmp_path, "engine": some}), said.append, patience_s=1.0)
    assert f"the engine at {gone[0]} (engine.kind = vllm) cannot be used" in said[-1]
    assert "it is one of several" in said[-1]
    nowhere = {"kind": "vllm", "urls": gone, "context_length": 80}
    with pytest.raises(ConfigError, match="cannot be used"):
        check_engine(Config.model_validate({"run_dir": tmp_path, "engine": nowhere}), said.append, patience_s=1.0)
