"""`openclaw-rl policy`: versions as a person handles them, on a store that a trainer filled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from peft import PeftModel

from openclaw_rl.cli import main
from openclaw_rl.models import load_causal_lm
from openclaw_rl.store import Store
from openclaw_rl.supervision.state import Phase, SupervisorState, process_created_at
from openclaw_rl.training.compare import compare
from tests.training.support import tiny_model
from tests.training.test_cycle import fill, make_config, make_loop, work_off


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps were trained; the second is in service."""
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)
    store = Store.open(tmp_path / "store.sqlite")
    fill(store, 4)
    work_off(make_loop(make_config(tmp_path), store))
    store.close()
    return tmp_path


@pytest.fixture
def run_dir_of_base(tmp_path: Path) -> Path:
    """Nothing was trained yet."""
    Store.open(tmp_path / "store.sqlite").close()
    return tmp_path


def policy(run_dir: Path, *arguments: str) -> int:
    return main(["policy", *arguments, "--run-dir", str(run_dir)])


def told(capsys: pytest.CaptureFixture[str], run_dir: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert policy(run_dir, *arguments) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], run_dir: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert policy(run_dir, *arguments) == 2
    return capsys.readouterr().err


def in_service(run_dir: Path) -> str:
    store = Store.open(run_dir / "store.sqlite")
    try:
        return store.versions.serving().name
    finally:
        store.close()


def test_list_and_show(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    rows = json.loads(told(capsys, run_dir, "list", "--json"))
    assert [(row["name"], row["state"], row["on_disk"]) for row in rows] == [
        ("base", "retired", True),
        ("policy-v1", "retired", True),
        ("policy-v2", "serving", True),
    ]
    lines = told(capsys, run_dir, "list").splitlines()
    assert len(lines) == 4
    assert "policy-v2" in lines[3]
    shown = json.loads(told(capsys, run_dir, "show", "v1", "--json"))
    assert shown["samples"] == ["t0", "t1"]
    assert shown["metrics"]["mean_reward"] == 0.0
    assert "t0, t1" in told(capsys, run_dir, "show", "1")


BAD_NAMES = [
    "",
    "v",
    "policy-v",
    "policy-v 1",
    "policy-v1\n",
    "-1",
    "1.0",
    "١",
    "Base",
    "policy-v7",
    "9" * 20,
    "../1",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_of_no_version_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], run_dir_of_base: Path, name: str
) -> None:
    to = str(run_dir_of_base / "there")
    for command in (
        ("show", name),
        ("diff", "base", name),
        ("diff", name, "base"),
        ("pin", name),
        ("rollback", name),
        ("export", name, "--to", to),
        ("merge", name, "--to", to),
    ):
        said = refused(capsys, run_dir_of_base, *command)
        assert said.count("\n") == 1, said
        assert said.startswith("openclaw-rl: ")
    assert "there is only base" in refused(capsys, run_dir_of_base, "rollback", "policy-v7")


def test_a_rollback_says_when_it_takes_effect(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    said = told(capsys, run_dir, "rollback", "policy-v1")
    assert "policy-v1 serves from the next start on (no deployment is up), in place of policy-v2" in said
    created = process_created_at(os.getpid())
    assert created is not None
    up = SupervisorState(
        phase=Phase.READY, pid=os.getpid(), created_at=created, started_at=created, run_dir=str(run_dir),
        url="http://127.0.0.1:1/v1", engine_url="",
    )  # fmt: skip
    up.write()
    assert "base serves from the next request on, in place of policy-v1" in told(capsys, run_dir, "rollback", "base")


def test_rollback_pin_and_unpin(capsys: pytest.CaptureFixture[str], run_dir: Path) -> None:
    assert "policy-v1 serves from" in told(capsys, run_dir, "rollback", "policy-v1")
    assert in_service(run_dir) == "policy-v1"
    assert "stays in service" in told(capsys, run_dir, "pin", "base")
    assert in_service(run_dir) == "base"
    assert "pinned" in told(capsys, run_dir, "list")
    assert "base may be followed" in told(capsys, run_dir, "unpin")
    assert "no version was pinned" in told(capsys, run_dir, "unpin")


def test_what_cannot_be_done_says_why(
    capsys: pytest.CaptureFixture[str], run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "there are base to policy-v2" in refused(capsys, run_dir, "rollback", "7")
    assert "names no version" in refused(capsys, run_dir, "show", "latest")
    assert "the model itself" in refused(capsys, run_dir, "export", "base", "--to", str(run_dir / "x"))
    assert "nearest valid name is --json" in refused(capsys, run_dir, "list", "--jsn")
    empty = tmp_path_factory.mktemp("empty")
    assert "no deployment has run" in refused(capsys, empty, "list")
    there = run_dir / "there"
    there.mkdir()
    assert "is there already" in refused(capsys, run_dir, "export", "1", "--to", str(there))
    (run_dir / "checkpoints" / "step-000001" / "adapter" / "adapter_model.safetensors").write_bytes(b"x")
    assert "is not the file that was written" in refused(capsys, run_dir, "diff", "1", "2")
    assert in_service(run_dir) == "policy-v2"


def test_an_exported_adapter_loads_and_lies_as_far_as_diff_says(
    capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    told(capsys, run_dir, "export", "2", "--to", str(run_dir / "out"))
    base = tiny_model()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, str(run_dir / "out")).merge_and_unload()
    after = merged.state_dict()
    expected = {
        name.removesuffix(".weight"): float((after[name] - before[name]).norm())
        for name in before
        if not after[name].equal(before[name])
    }
    found = compare(None, run_dir / "checkpoints" / "step-000002" / "adapter")
    assert found.by_module.keys() >= expected.keys()
    for name, norm in expected.items():
        assert found.by_module[name] == pytest.approx(norm, rel=1e-3, abs=1e-6)
    said = json.loads(told(capsys, run_dir, "diff", "base", "2", "--json"))
    assert said["norm_difference"] == pytest.approx(found.norm_b)
    assert (said["norm_a"], said["steps_between"], said["samples_between"]) == (0.0, 2, 4)
    itself = json.loads(told(capsys, run_dir, "diff", "2", "2", "--json"))
    assert itself["norm_difference"] == pytest.approx(0.0, abs=1e-6)
    assert "difference:" in told(capsys, run_dir, "diff", "1", "2")


def test_whole_versions_are_compared_copied_and_gone_back_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OPENCLAW_RL_")]:
        monkeypatch.delenv(name)
    tiny_model().save_pretrained(tmp_path / "base")
    monkeypatch.setenv("OPENCLAW_RL_MODEL__PATH", str(tmp_path / "base"))
    store = Store.open(tmp_path / "store.sqlite")
    fill(store, 4)
    work_off(make_loop(make_config(tmp_path, use_lora=False, lr=1e-3), store))
    store.close()
    assert json.loads(told(capsys, tmp_path, "show", "2", "--json"))["path"].endswith("step-000002/model")
    said = json.loads(told(capsys, tmp_path, "diff", "base", "2", "--json"))
    assert said["norm_a"] == 0.0
    assert said["norm_difference"] == pytest.approx(said["norm_b"])
    assert said["norm_b"] > 0.01
    assert "model.embed_tokens" in said["by_module"]
    assert "policy merge copies it" in refused(capsys, tmp_path, "export", "2", "--to", str(tmp_path / "x"))
    assert "policy-v2, copied, is in" in told(capsys, tmp_path, "merge", "2", "--to", str(tmp_path / "mine"))
    version = tmp_path / "checkpoints" / "step-000002" / "model"
    copied = {file.name: file.read_bytes() for file in (tmp_path / "mine").iterdir()}
    assert copied == {file.name: file.read_bytes() for file in version.iterdir() if file.name != "manifest.json"}
    assert "policy-v1 serves" in told(capsys, tmp_path, "rollback", "1")
    assert "stays in service" in told(capsys, tmp_path, "pin", "2")
    (version / "config.json").write_text("{}")
    assert "is not the file that was written" in refused(capsys, tmp_path, "merge", "2", "--to", str(tmp_path / "y"))


@pytest.mark.real_model
def test_a_merged_policy_computes_what_the_adapter_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """SmolLM2 with an adapter: merged as safetensors and as GGUF, read back by Transformers."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from openclaw_rl.config import ModelConfig
    from openclaw_rl.models import load_tokenizer, resolve_model
    from openclaw_rl.policy_files import write_manifest
    from openclaw_rl.training.export import merge, merge_to_gguf

    model = ModelConfig()
    path = resolve_model(model)
    torch.manual_seed(0)
    policy_model = get_peft_model(
        load_causal_lm(path), LoraConfig(r=4, target_modules=["q_proj", "k_proj", "up_proj"], task_type="CAUSAL_LM")
    )
    for name, parameter in policy_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapter = tmp_path / "adapter"
    policy_model.save_pretrained(adapter, save_embedding_layers=False)
    write_manifest(adapter, {})
    ids = torch.tensor([load_tokenizer(path)("The tide comes in twice a day.")["input_ids"]])
    with torch.no_grad():
        wanted = policy_model(ids).logits.log_softmax(-1)
        base = load_causal_lm(path)(ids).logits.log_softmax(-1)
        merge(model, adapter, tmp_path / "merged")
        plain = load_causal_lm(tmp_path / "merged")(ids).logits.log_softmax(-1)
        merge_to_gguf(model, adapter, tmp_path / "policy.gguf")
        read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="policy.gguf", dtype=torch.float32)
        from_gguf = read.eval()(ids).logits.log_softmax(-1)
    torch.testing.assert_close(plain, wanted, rtol=0, atol=1e-3)
    torch.testing.assert_close(from_gguf, wanted, rtol=0, atol=0.1)
    assert (base - wanted).abs().max() > 0.5, "the adapter says something"
    assert load_tokenizer(tmp_path / "merged").chat_template
