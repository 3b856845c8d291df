"""At the start of a deployment: whether owners' policies fit `training.lora`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, LoraConfig, PoliciesConfig, TrainingConfig
from openclaw_rl.config_engine import EngineConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.store import Store
from openclaw_rl.store.schema import versions
from openclaw_rl.supervision.owners_fit import check_owners
from openclaw_rl.supervision.supervisor import Supervisor

LORA = LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj"))


def config_of(run_dir: Path, *, per: Any = "user", enabled: bool = True, **lora: Any) -> Config:
    training = TrainingConfig(lora=LORA.model_copy(update=lora), enabled=enabled)
    return Config(run_dir=run_dir, training=training, policies=PoliciesConfig(per=per))


def learn(store: Store, run_dir: Path, version: int, owner: str, *, state: str = "serving", **changes: Any) -> None:
    """An owner's version, made with `LORA` but for `changes` to what PEFT writes down."""
    path = run_dir / f"step-{version}" / "adapter"
    path.mkdir(parents=True)
    said = {"r": 4, "lora_alpha": 8.0, "target_modules": ["v_proj", "q_proj"], **changes}
    (path / "adapter_config.json").write_text(json.dumps(said))
    row = {"version": version, "state": state, "state_since": 1.0, "path": str(path), "step": version}
    with store._database.write() as connection:
        connection.execute(versions.insert().values(**row, created_at=1.0, owner=owner))


def told(config: Config) -> list[str]:
    said: list[str] = []
    check_owners(config, said.append)
    return said


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def test_what_fits_needs_no_word(tmp_path: Path, store: Store) -> None:
    assert told(config_of(tmp_path / "new")) == []
    assert told(config_of(tmp_path)) == []
    learn(store, tmp_path, 1, "ann", target_modules=["self_attn.q_proj", "v_proj"])
    assert told(config_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"alpha": 16.0}, "training.lora.alpha = 8.0, not 16"),
        ({"rank": 8}, "training.lora.rank = 4, not 8"),
        ({"target_modules": ("q_proj",)}, "training.lora.target_modules = q_proj, v_proj"),
    ],
)
def test_where_nobodys_policy_fits_nothing_is_started(
    tmp_path: Path, store: Store, lora: dict[str, Any], words: str
) -> None:
    learn(store, tmp_path, 1, "ann")
    learn(store, tmp_path, 2, "bob")
    with pytest.raises(ConfigError, match=f"fits no owner's policy, 2 in all: policy-v1 was trained with {words}"):
        told(config_of(tmp_path, **lora))
    assert told(config_of(tmp_path, enabled=False, **lora)) == []
    assert told(config_of(tmp_path, per="none", **lora)) == []


def test_the_supervisor_looks_before_it_starts_anything(tmp_path: Path, store: Store) -> None:
    learn(store, tmp_path, 1, "ann")
    with pytest.raises(ConfigError, match="fits no owner's policy"):
        Supervisor(config_of(tmp_path, alpha=16.0), lambda _: None).run(threading.Event())
    assert not (tmp_path / "supervisor.json").exists()


def test_one_that_does_not_fit_is_named_and_keeps_nobody_from_starting(tmp_path: Path, store: Store) -> None:
    learn(store, tmp_path, 1, "ann", r=16)
    learn(store, tmp_path, 2, "bob")
    (said,) = told(config_of(tmp_path))
    assert said == (
        "training.lora does not fit 1 of 2 owners' policies, which are not trained: "
        "policy-v1 was trained with training.lora.rank = 16, not 4"
    )
    learn(store, tmp_path, 3, "ann", state="candidate")  # which is what is trained on
    assert told(config_of(tmp_path)) == []


ENDS = ", and is not served: an earlier version that the engine takes answers, or the base"


@pytest.mark.parametrize(
    ("engine", "changes", "ends"),
    [
        ({"kind": "embedded"}, {"r": 16}, False),
        ({"kind": "vllm"}, {"r": 16}, True),
        ({"kind": "vllm"}, {"r": 8}, False),  # vLLM has no kernels for 4 only
        ({"kind": "vllm"}, {"lora_alpha": 16.0}, False),
        ({"kind": "vllm"}, {"target_modules": ["k_proj"]}, True),
        ({"kind": "vllm"}, {"target_modules": ["q_proj"]}, False),
        ({"kind": "vllm", "extra_args": ["--max-lora-rank=16"]}, {"r": 16}, False),
        ({"kind": "vllm", "urls": ["http://127.0.0.1:8000"]}, {"r": 16}, False),
        ({"kind": "sglang"}, {"r": 8}, True),
        ({"kind": "sglang"}, {"r": 2}, False),
        ({"kind": "sglang"}, {"target_modules": ["k_proj"]}, False),  # one with q_proj, to SGLang
        ({"kind": "sglang"}, {"target_modules": ["o_proj"]}, True),
        ({"kind": "sglang", "extra_args": ["--lora-target-modules", "all"]}, {"target_modules": ["o_proj"]}, False),
    ],
)
def test_it_is_said_of_what_the_engine_will_not_load(
    tmp_path: Path, store: Store, engine: dict[str, Any], changes: dict[str, Any], ends: bool
) -> None:
    learn(store, tmp_path, 1, "ann", **changes)
    learn(store, tmp_path, 2, "bob")
    config = config_of(tmp_path).model_copy(update={"engine": EngineConfig.model_validate(engine)})
    (said,) = told(config)
    assert "policy-v1 was trained with training.lora." in said
    assert said.endswith(ENDS) is ends


def test_who_is_not_trained_now_is_not_looked_at(tmp_path: Path, store: Store) -> None:
    learn(store, tmp_path, 1, "ann", r=16)
    learn(store, tmp_path, 2, "", r=16, state="retired")  # the shared policy's
    learn(store, tmp_path, 3, "bob", r=16)
    (tmp_path / "step-3" / "adapter" / "adapter_config.json").write_text("torn")
    store.versions.pin(1)
    assert told(config_of(tmp_path)) == []
    store.versions.unpin("ann")
    with pytest.raises(ConfigError, match="1 in all"):
        told(config_of(tmp_path))


def test_a_record_that_cannot_be_read_keeps_nobody_from_starting(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database at all" * 100)
    (said,) = told(config_of(tmp_path))
    assert said == "whether owners' policies fit training.lora cannot be told (DatabaseError)"
