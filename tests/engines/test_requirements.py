"""The start-up check: every combination of what may be needed and what may be there, against rules written apart."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.check import check_engine
from openclaw_rl.serving.engines.factory import SPOKEN_FOR, adapter, connect
from openclaw_rl.serving.engines.protocol import EngineCapabilities
from openclaw_rl.serving.engines.requirements import (
    FOUND_IN,
    REQUIREMENTS,
    Feature,
    Offered,
    Situation,
    explain,
    unmet,
)
from openclaw_rl.store import Store
from openclaw_rl.supervision.ports import resolve_ports
from tests.engines.openai.upstream import EXACT, PLAIN, Reply, listening
from tests.store.helpers import candidate, step_record

NAMES = [field.name for field in fields(EngineCapabilities)]
FLAGS = (False, True)


def situation(
    trains: bool, lora: bool, verdicts: bool, in_service: WeightsKind | None, owned: bool = False
) -> Situation:
    config = SimpleNamespace(
        training=SimpleNamespace(enabled=trains, use_lora=lora),
        judge=SimpleNamespace(kind="verdict_logits" if verdicts else "llm", base_url=None),
        engine=SimpleNamespace(context_length=100),
        policies=SimpleNamespace(owned=owned),
    )
    return Situation(config=cast(Config, config), in_service=in_service)


def test_what_is_missing_is_what_is_needed_and_not_there_in_every_combination() -> None:
    kinds = (None, WeightsKind.LORA, WeightsKind.FULL)
    settings = list(itertools.product(FLAGS, FLAGS, FLAGS, kinds, FLAGS))
    offers = list(itertools.product(itertools.product(FLAGS, repeat=len(NAMES)), (None, 99, 100)))
    for trains, lora, verdicts, in_service, owned in settings:
        needed = {"token_ids": trains, "logprobs": trains, "score": verdicts, "tools": False, "render": False}
        needed["lora_versions"] = (trains and lora) or in_service is WeightsKind.LORA or owned
        needed["full_weights"] = (trains and not lora) or in_service is WeightsKind.FULL
        needed["base_beside"] = needed["full_weights"]  # both judges here ask the base
        there = situation(trains, lora, verdicts, in_service, owned)
        for flags, length in offers:
            had = dict(zip(NAMES, flags, strict=True))
            offered = Offered(name="it", capabilities=EngineCapabilities(**had), context_length=length)
            missing = {row.feature.name.lower() for row in unmet(there, offered)}
            expected = {name for name in NAMES if needed[name] and not had[name]}
            assert missing == expected | ({"context_length"} if length == 99 else set())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("judge", "refused"),
    [
        ({"kind": "verdict_logits"}, True),
        ({"kind": "llm"}, True),
        ({"kind": "llm", "base_url": "http://judge.example/v1"}, False),
        ({"kind": "classifier"}, False),
    ],
)
def test_a_judge_that_asks_the_base_is_refused_where_whole_models_replace_it(
    kind: str, judge: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    config = Config.model_validate(
        {
            "run_dir": str(tmp_path),
            "engine": {"kind": kind},
            "judge": judge,
            "training": {"use_lora": False, "lr": 1e-5},
        }
    )
    if refused:
        with pytest.raises(ConfigError, match="needs the base beside a whole model"):
            check_engine(config, print)
    else:
        check_engine(config, print)


def test_every_feature_has_a_row_and_says_where_it_is_found() -> None:
    assert {row.feature for row in REQUIREMENTS} == set(Feature) == set(FOUND_IN)


def test_an_error_names_the_feature_the_setting_and_what_to_change() -> None:
    nothing = EngineCapabilities(token_ids=False, logprobs=False, lora_versions=False, score=False, tools=False)
    offered = Offered(name="engine.kind = openai", capabilities=nothing, context_length=99)
    words = [explain(row, offered) for row in REQUIREMENTS]
    assert words[0] == (
        "training.enabled = true needs the ids of the tokens, and engine.kind = openai has not that: "
        "set training.enabled = false (--eval) to serve and judge only (found in: embedded, vllm (vLLM from 0.32), "
        "sglang (SGLang from 0.5.23); as an upstream, vLLM from 0.10.2 (return_token_ids) and this program's own "
        "gateway)"
    )
    assert "has not that (99 tokens): set a smaller engine.context_length" in words[-1]
    assert all(row.change in text and row.setting in text for row, text in zip(REQUIREMENTS, words, strict=True))


def upstream_config(run_dir: Path, url: str, **sections: Any) -> Config:
    engine = {"kind": "openai", "urls": [url], "upstream_model": "big", **sections.pop("engine", {})}
    return Config.model_validate({"run_dir": run_dir, "engine": engine, **sections})


LOADS = Reply(status=400, body={"message": "Both 'lora_name' and 'lora_path' must be provided."})


def refusal(config: Config, patience_s: float = 60.0) -> str:
    with pytest.raises(ConfigError) as caught:
        check_engine(config, lambda _: None, patience_s=patience_s)
    return str(caught.value)


def test_an_upstream_is_asked_before_anything_is_started(tmp_path: Path) -> None:
    with listening(PLAIN) as upstream:
        message = refusal(upstream_config(tmp_path, upstream.url))
        for feature in (Feature.TOKEN_IDS, Feature.LOGPROBS, Feature.LORA_VERSIONS):
            assert f"training.enabled = true needs {feature.value}, and the engine at {upstream.url}" in message
        check_engine(upstream_config(tmp_path, upstream.url, training={"enabled": False}), lambda _: None)
        too_long = upstream_config(
            tmp_path, upstream.url, training={"enabled": False}, engine={"context_length": 4097}
        )
        assert "(4096 tokens): set a smaller engine.context_length" in refusal(too_long)
    with listening(EXACT, lora=LOADS) as upstream:
        check_engine(upstream_config(tmp_path, upstream.url), lambda _: None)
        judged = upstream_config(tmp_path, upstream.url, judge={"kind": "verdict_logits"})
        assert refusal(judged).startswith("judge.kind = verdict_logits needs scoring given tokens")


def test_an_upstream_that_refuses_or_is_away_says_what_to_set(tmp_path: Path) -> None:
    with listening(Reply(status=401, body={"error": {"message": "no key"}})) as upstream:
        assert "set engine.api_key" in refusal(upstream_config(tmp_path, upstream.url))
        gone = upstream.url
    said: list[str] = []
    with pytest.raises(ConfigError, match="cannot be used: the upstream cannot be reached"):
        check_engine(upstream_config(tmp_path, gone), said.append, patience_s=4.0)
    assert len(said) == 1
    with listening(Reply(before_s=2.0, body={})) as upstream:
        assert "did not answer within 0.3 s" in refusal(upstream_config(tmp_path, upstream.url), 0.3)


def test_a_version_in_service_is_not_left_behind_unnoticed(tmp_path: Path) -> None:
    adapter = tmp_path / "checkpoints" / "step-000001" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    with listening(PLAIN) as upstream:
        config = upstream_config(tmp_path, upstream.url, training={"enabled": False})
        store = Store.open(config.store_path)
        check_engine(config, lambda _: None)
        store.samples.commit_step(step_record(1), replace(candidate(1), path=str(adapter)))
        store.versions.serve(1)
        store.close()
        message = refusal(config)
    assert message.startswith("the version in service in this run_dir needs loading adapters while it serves")
    assert "openclaw-rl policy rollback base" in message


@pytest.mark.parametrize("kind", sorted(SPOKEN_FOR))
def test_a_server_that_is_started_here_is_held_to_what_its_kind_can_do(tmp_path: Path, kind: str) -> None:
    """Without asking it: it does not run yet."""
    engine = {"kind": kind}
    config = Config.model_validate({"run_dir": tmp_path, "engine": engine, "judge": {"kind": "verdict_logits"}})
    assert adapter(config, None).capabilities == SPOKEN_FOR[kind] == connect(config).capabilities
    check_engine(config, lambda _: pytest.fail("nothing takes time"))
    whole = Config.model_validate({"run_dir": tmp_path, "engine": engine, "training": {"use_lora": False}})
    check_engine(whole, lambda _: pytest.fail("nothing takes time"))


def test_our_own_engine_needs_nothing_asked(tmp_path: Path) -> None:
    check_engine(Config(run_dir=tmp_path), lambda _: pytest.fail("nothing takes time"))


@pytest.mark.parametrize("kind", sorted(SPOKEN_FOR))
def test_several_servers_take_adapters_and_no_whole_models(tmp_path: Path, kind: str) -> None:
    tree: dict[str, Any] = {"run_dir": tmp_path, "engine": {"kind": kind, "replicas": 2}}
    check_engine(Config.model_validate(tree), lambda _: pytest.fail("nothing takes time"))
    message = refusal(Config.model_validate({**tree, "training": {"use_lora": False}}))
    assert message.startswith("training.use_lora = false needs loading whole models while it serves, and ")
    assert f"engine.kind = {kind} with 2 replicas has not that" in message
    assert "of vllm and sglang only without replicas" in message
    assert not connect(resolve_ports(Config.model_validate(tree))).capabilities.full_weights
