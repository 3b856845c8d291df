"""How SGLang is started, and what is said where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import openclaw_rl
from openclaw_rl.config import Config
from openclaw_rl.config_engine import EngineConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.embedded.client import EmbeddedEngine
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.sglang.server import DEFAULT_PYTHON, launch, python_of
from openclaw_rl.supervision.child import module_of
from openclaw_rl.types import LoopName

SOURCES = Path(openclaw_rl.__file__).resolve().parents[2]


def config_of(tiny: Path, **engine: Any) -> Config:
    return Config.model_validate(
        {"model": {"path": str(tiny), "device": "cpu"}, "engine": {"kind": "sglang", "port": 1, **engine}}
    )


def test_what_is_configured_is_handed_on_and_the_extra_arguments_come_last(tiny: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o700)
    own = {"sglang": {"python": str(python), "kept_tokens": 64}, "context_length": 128, "extra_args": ["--tp", "2"]}
    server = launch(config_of(tiny, **own), 4321)
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
    assert server.environment["SGLANG_USE_CPU_ENGINE"] == "1"


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
        elif not (SOURCES / DEFAULT_PYTHON).exists():
            with pytest.raises(ConfigError, match=r"needs \.venv-sglang/bin/python .*engine\.sglang\.python"):
                python_of(config_of(tiny))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kind": "embedded", "urls": ["http://127.0.0.1:1"]}, "engine.urls"),
        ({"kind": "sglang", "urls": ["http://127.0.0.1:1"], "extra_args": ["--x"]}, "engine.extra_args"),
        ({"kind": "sglang", "urls": ["127.0.0.1:1"]}, "http://HOST:PORT"),
        ({"kind": "sglang", "urls": ["http://127.0.0.1:1", "http://127.0.0.1:2"]}, "one address"),
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
