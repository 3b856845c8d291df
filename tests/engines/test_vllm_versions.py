"""Which versions vLLM is said to have, and when they may go; and how the server is started."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import write_manifest
from openclaw_rl.serving.engines.protocol import EngineOverloaded, InvalidEngineRequest, UnknownVersion
from openclaw_rl.serving.engines.vllm.files import check_modules
from openclaw_rl.serving.engines.vllm.launch import dtype_of, find_python, server_command, server_environment
from openclaw_rl.serving.engines.vllm.versions import GRACE_S, UNTOUCHED, LoadedVersions, using, weights_name


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_name_goes_with_the_weights(tmp_path: Path) -> None:
    names = []
    for content in ("one", "two", "one"):
        (tmp_path / "weights").write_text(content)
        write_manifest(tmp_path, {})
        names.append(weights_name(3, tmp_path))
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("policy-v3-")


def test_an_adapter_in_use_goes_with_its_last_request() -> None:
    versions = LoadedVersions(2)
    unloaded: list[str] = []
    versions.add(1, "one")
    with using(versions, 1, unloaded.append) as served, using(versions, 1, unloaded.append):
        assert (served.model, served.version) == ("one", 1)
        assert versions.leave(1) is None
        assert versions.loaded() == (0,)
        with pytest.raises(UnknownVersion):
            versions.acquire(1)
    assert unloaded == ["one"]
    assert versions.leave(1) is None


def test_one_that_was_leaving_and_is_loaded_again_stays() -> None:
    versions = LoadedVersions(2)
    unloaded: list[str] = []
    versions.add(1, "one")
    with using(versions, 1, unloaded.append):
        versions.leave(1)
        assert versions.keep(1)
    assert versions.loaded() == (0, 1)
    assert unloaded == []


def test_the_oldest_unused_makes_room() -> None:
    versions = LoadedVersions(2)
    versions.add(1, "one")
    assert versions.make_room() is None
    versions.add(2, "two")
    first = versions.acquire(1)
    assert versions.make_room() == "two"
    versions.add(3, "three")
    versions.acquire(3)
    for ask in (versions.check_room, versions.make_room):
        with pytest.raises(EngineOverloaded):
            ask()
    versions.release(first)
    versions.check_room()
    assert versions.make_room() == "one"


def test_of_those_that_nobody_uses_the_one_used_longest_ago_makes_room() -> None:
    versions = LoadedVersions(3)
    for number, name in ((1, "one"), (2, "two"), (3, "three")):
        versions.add(number, name)
    versions.release(versions.acquire(1))
    assert versions.keep(2)
    assert [versions.make_room(), versions.make_room()] == ["three", None]
    versions.add(4, "four")
    assert versions.make_room() == "one"


def test_what_vllm_no_longer_has_is_forgotten() -> None:
    versions = LoadedVersions(2)
    versions.add(1, "one")
    versions.add(2, "two")
    had = versions.adapters()
    assert not versions.lost(had, frozenset({"base", "one", "two"}))
    versions.add(3, "three")
    assert versions.lost(had, frozenset({"base", "two"}))
    assert versions.loaded() == (0, 2, 3), "what was loaded after the question is not missing in the answer"
    assert versions.leave(2) == "two"
    assert not versions.lost(had, frozenset({"base"})), "we have unloaded it ourselves"


def test_adapters_are_not_there_while_another_model_is() -> None:
    versions = LoadedVersions(2)
    versions.add(1, "one")
    versions.replace_model(2, "two")
    assert versions.loaded() == (0, 2)
    with pytest.raises(UnknownVersion):
        versions.acquire(1)
    versions.replace_model(0, UNTOUCHED)
    assert versions.loaded() == (0, 1, 2)


def test_requests_on_their_way_are_answered_by_the_model_that_came_after() -> None:
    clock = Clock()
    versions = LoadedVersions(2, base="m", clock=clock)
    assert (versions.model_version, versions.model_label) == (0, UNTOUCHED)
    versions.replace_model(1, "one")
    versions.replace_model(2, "two")
    assert versions.loaded() == (1, 2)
    assert versions.acquire(1) == versions.acquire(2)
    with pytest.raises(UnknownVersion):
        versions.acquire(0)
    clock.now = GRACE_S
    assert versions.loaded() == (2,)
    with pytest.raises(UnknownVersion):
        versions.acquire(1)


def test_weights_of_nobody_answer_nothing() -> None:
    versions = LoadedVersions(2)
    versions.replace_model(None, "unknown")
    assert versions.loaded() == ()
    with pytest.raises(UnknownVersion):
        versions.acquire(0)


def config(**engine: object) -> Config:
    return Config.model_validate({"engine": {"kind": "vllm", **engine}})


def test_the_command_says_what_the_configuration_says() -> None:
    asked = Config.model_validate(
        {
            "model": {"dtype": "bfloat16"},
            "training": {"lora": {"rank": 20}},
            "engine": {"kind": "vllm", "max_versions": 3, "max_parallel": 5, "extra_args": ["--swap-space", "1"]},
        }
    )
    command = server_command(asked, python=Path("/v/python"), model=Path("/m"), context=513, socket=Path("/s"))
    options = dict(itertools.pairwise(command))
    assert command[0] == sys.executable
    assert "/v/python" in command
    assert command[-2:] == ["--swap-space", "1"]
    assert (options["--dtype"], options["--max-model-len"], options["--uds"]) == ("bfloat16", "513", "/s")
    assert (options["--max-lora-rank"], options["--max-loras"], options["--max-num-seqs"]) == ("32", "3", "5")
    assert "--port" not in command
    at = command.index("--lora-target-modules")
    assert tuple(command[at + 1 : at + 8]) == asked.training.lora.target_modules
    plain = Config.model_validate({"model": {"device": "cpu"}, "engine": {"kind": "vllm"}})
    assert dtype_of(plain) == "float32", "as the trainer computes, whatever vLLM would choose"
    assert server_environment(asked, {"A": "b"})["A"] == "b"
    huge = Config.model_validate({"training": {"lora": {"rank": 600}}, "engine": {"kind": "vllm"}})
    with pytest.raises(ConfigError, match="rank 600"):
        server_command(huge, python=Path("/v"), model=Path("/m"), context=9, socket=Path("/s"))


def test_an_adapter_that_changes_more_than_vllm_was_started_for_is_refused(tmp_path: Path) -> None:
    for changed, named in ((["q_proj", "lm_head"], "lm_head"), ("all-linear", "all-linear")):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"target_modules": changed}))
        with pytest.raises(
            InvalidEngineRequest, match=f"changes {named}, and vLLM was started for q_proj, v_proj only"
        ):
            check_modules(tmp_path, ("q_proj", "v_proj"))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"target_modules": ["v_proj"]}))
    check_modules(tmp_path, ("q_proj", "v_proj"))


def test_where_there_is_no_vllm_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is no program"):
        find_python(config(vllm={"python": str(tmp_path / "python")}))
    assert find_python(config(vllm={"python": sys.executable})) == Path(sys.executable)
    python = tmp_path / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert find_python(config()) == python


@pytest.mark.parametrize(
    "engine",
    [
        {"kind": "embedded", "urls": ["http://h:1"]},
        {"kind": "embedded", "extra_args": ["--x"]},
        {"kind": "vllm", "urls": ["http://h:1"], "extra_args": ["--x"]},
        {"kind": "vllm", "urls": ["http://h:1", "http://h:1"]},
    ],
)
def test_options_that_cannot_be_honoured_are_refused(engine: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"engine\."):
        Config.model_validate({"engine": engine})
