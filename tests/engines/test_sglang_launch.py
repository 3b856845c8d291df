"""How SGLang is started, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from openclaw_rl.config import Config
from openclaw_rl.config_engine import EngineConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.interpreter import ENVIRONMENTS, SOURCES
from openclaw_rl.serving.engines.protocol import EngineError, EngineUnavailable
from openclaw_rl.serving.engines.replicas.worker import replica_config
from openclaw_rl.serving.engines.requirements import Situation
from openclaw_rl.serving.engines.sglang.client import SglangEngine
from openclaw_rl.serving.engines.sglang.server import KEY_FILE, _key_file, _server, launch, python_of
from openclaw_rl.supervision.child import module_of
from openclaw_rl.types import LoopName


def config_of(tiny: Path, **engine: Any) -> Config:
    return Config.model_validate(
        {"model": {"path": str(tiny), "device": "cpu"}, "engine": {"kind": "sglang", "port": 1, **engine}}
    )


def test_what_is_configured_is_handed_on_and_the_extra_arguments_come_last(tiny: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o700)
    own = {"sglang": {"python": str(python), "kept_tokens": 64}, "context_length": 128, "extra_args": ["--tp", "2"]}
    server = launch(Situation(config=config_of(tiny, **own)), 4321, tmp_path / "sglang.yaml")
    words = list(server.command)
    assert words[:3] == [str(python), "-m", "sglang.launch_server"]
    assert words[-2:] == ["--tp", "2"]
    given = {words[place]: words[place + 1] for place in range(len(words) - 1)}
    assert given["--model-path"] == str(tiny)
    assert given["--port"] == "4321"
    assert given["--host"] == "127.0.0.1"
    assert given["--context-length"] == "136", "SGLang keeps some to itself"
    assert given["--max-lora-rank"] == "16"
    assert given["--sampling-mask-max-tokens"] == "64"
    modules = words.index("--lora-target-modules")
    assert words[modules + 1 : modules + 3] == ["q_proj", "k_proj"]
    assert {"--enable-lora", "--incremental-streaming-output"} <= set(words)
    assert given["--config"] == str(tmp_path / "sglang.yaml")
    assert "--disable-overlap-schedule" not in words, "it makes tokens slower, and nothing is swapped"
    assert server.environment["SGLANG_USE_CPU_ENGINE"] == "1"


@pytest.mark.parametrize("trained", [True, False])
def test_where_whole_models_are_swapped_nothing_is_drawn_ahead(tiny: Path, trained: bool) -> None:
    config = config_of(tiny, sglang={"python": sys.executable})
    if trained:
        training = config.training.model_copy(update={"use_lora": False})
        situation = Situation(config=config.model_copy(update={"training": training}))
    else:
        situation = Situation(config=config, in_service=WeightsKind.FULL)
    assert "--disable-overlap-schedule" in launch(situation, 4321, Path("/o.yaml")).command


@pytest.mark.parametrize(
    "word", ["--config", "--api-key", "--api-key=k", "--admin-api-key", "--tokenizer-worker-num"]
)
def test_what_would_take_its_key_from_it_is_refused(tiny: Path, word: str) -> None:
    config = config_of(tiny, sglang={"python": sys.executable}, extra_args=[word])
    with pytest.raises(ConfigError, match=f"takes no {word.partition('=')[0]}: it is given a key"):
        launch(Situation(config=config), 4321, Path("/o.yaml"))


STAND_IN = """#!{python}
import http.server, json, pathlib, sys

words = sys.argv
if "-c" in words:  # which SGLang it has
    print(json.dumps({{"version": "0.5.23", "importable": True}}))
    sys.exit()
key = json.loads(pathlib.Path(words[words.index("--config") + 1]).read_text())["api-key"]


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["authorization"] == f"Bearer {{key}}"
        body = b"{{}}" if known else b'{{"error": "Unauthorized"}}'
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Answers).serve_forever()
"""


def test_one_that_is_started_here_has_a_key_that_only_we_know(tiny: Path, tmp_path: Path) -> None:
    """In a browser any page can speak to a port of loopback, and SGLang lets it read the answers."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o700)
    config = config_of(tiny, sglang={"python": str(program)}).model_copy(update={"run_dir": tmp_path})
    keys = []
    for _ in range(2):
        with _server(Situation(config=config)) as server:
            assert server.running is not None
            assert server.key is not None
            keys.append(server.key)
            assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
            words = Path(f"/proc/{server.running.pid}/cmdline").read_bytes().decode()
            assert server.key not in words
            assert asyncio.run(asked(config, server.url, server.key)) == {}
            with pytest.raises(EngineError, match="Unauthorized"):
                asyncio.run(asked(config, server.url, None))
        assert not (tmp_path / KEY_FILE).exists()
    assert len(set(keys)) == 2
    assert all(len(key) >= 32 for key in keys)


def test_each_of_several_has_a_key_of_its_own(tiny: Path) -> None:
    config = config_of(tiny, replicas=2, replica_ports=(4001, 4002))
    assert [_key_file(replica_config(config, number)) for number in range(2)] == ["sglang-1.yaml", "sglang-2.yaml"]


async def asked(config: Config, url: str, key: str | None) -> dict[str, Any]:
    """What the server says of itself, once it is there."""
    engine = SglangEngine.from_config(config, url, key=key)
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    return await engine.server_info()
                except EngineUnavailable:
                    await asyncio.sleep(0.05)
    finally:
        await engine.close()


def test_a_python_that_is_not_there_is_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.sglang\.python .*nowhere is no program"):
        python_of(config_of(tiny, sglang={"python": str(tmp_path / "nowhere")}))


def test_without_a_name_it_is_looked_for_and_what_is_for_the_tests_is_not_taken(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".venv-sglang-test", ".venv-sglang"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(mode=0o700)
        if name == ".venv-sglang":
            assert python_of(config_of(tiny)) == python
        elif not (SOURCES / ENVIRONMENTS["sglang"].python).exists():
            with pytest.raises(ConfigError, match=r"needs \.venv-sglang/bin/python .*engine\.sglang\.python"):
                python_of(config_of(tiny))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kind": "embedded", "urls": ["http://127.0.0.1:1"]}, "engine.urls"),
        ({"kind": "sglang", "urls": ["http://127.0.0.1:1"], "extra_args": ["--x"]}, "engine.extra_args"),
        ({"kind": "sglang", "urls": ["127.0.0.1:1"]}, "http://HOST:PORT"),
        ({"kind": "sglang", "api_key": "k"}, "engine.api_key is only for"),
        ({"kind": "vllm", "urls": ["http://127.0.0.1:1"], "api_key": "k"}, "engine.api_key is only for"),
        ({"kind": "sglang", "urls": ["http://127.0.0.1:1", "http://127.0.0.1:1/"]}, "one address twice"),
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        EngineConfig.model_validate(wrong)


def test_one_word_chooses_it(tiny: Path) -> None:
    config = config_of(tiny)
    assert module_of(LoopName.ENGINE, config) == "openclaw_rl.serving.engines.sglang.server"
    engine = connect(config)
    assert isinstance(engine, EmbeddedEngine)
    assert engine.capabilities.full_weights
