"""What is looked at before an engine that is not ours reads a version's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import MODEL_DIR, WeightsKind, write_manifest
from openclaw_rl.serving.engines.protocol import EngineError, InvalidEngineRequest, UnreadableVersion
from openclaw_rl.serving.engines.weights_check import check_weights, identify
from openclaw_rl.types import PolicyVersion
from tests.engines.support import write_adapter
from tests.unreadable import FAILING, failing


def test_what_fits_passes(tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path) -> None:
    assert check_weights(Path(adapters[1].path or ""), tiny).kind is WeightsKind.LORA
    load_causal_lm(tiny).save_pretrained(tmp_path / MODEL_DIR)
    write_manifest(tmp_path / MODEL_DIR, {})
    assert check_weights(tmp_path / MODEL_DIR, tiny).kind is WeightsKind.FULL


def base_with(tiny: Path, target: Path, more: Mapping[str, torch.Tensor] | None = None, left_out: str = "") -> Path:
    """The model's files as a repository may have them: with more in them than the model has, or less."""
    shutil.copytree(tiny, target)
    file = target / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name != left_out}
    save_file({**tensors, **(more or {})}, file)
    return target


BESIDE = {
    "lm_head.weight": torch.zeros(2, 2),
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    "mtp.fc.weight": torch.zeros(2, 2),
    "model.layers.99.mlp.up_proj.weight": torch.zeros(2, 2),
}


def whole_of(tiny: Path, target: Path, changed: Mapping[str, torch.Tensor] | None = None) -> Path:
    """A version as the trainer writes one; `changed`: tensors that it has instead."""
    load_causal_lm(tiny).save_pretrained(target)
    file = target / "model.safetensors"
    save_file({**load_file(file), **(changed or {})}, file)
    write_manifest(target, {})
    return target


def test_what_a_base_has_beside_its_model_is_not_missed_in_a_version(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    """Repositories hold tied, computed and foretelling tensors, which Transformers does not write."""
    base = base_with(tiny, tmp_path / "base", BESIDE)
    assert json.loads((base / "config.json").read_text())["tie_word_embeddings"]
    assert check_weights(whole_of(tiny, tmp_path / MODEL_DIR), base).kind is WeightsKind.FULL
    assert check_weights(Path(adapters[1].path or ""), base).kind is WeightsKind.LORA


def test_what_its_model_has_is_missed(tiny: Path, tmp_path: Path) -> None:
    """It would keep the values of the version before; and what the base has not, nobody would read."""
    version = whole_of(tiny, tmp_path / "one" / MODEL_DIR)
    untied = base_with(tiny, tmp_path / "untied", {"lm_head.weight": torch.zeros(2, 2)})
    config = json.loads((untied / "config.json").read_text())
    (untied / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    for base, named in (
        (untied, "lm_head.weight"),
        (base_with(tiny, tmp_path / "more", {"model.odd.weight": torch.zeros(2)}), "model.odd.weight"),
        (base_with(tiny, tmp_path / "less", left_out="model.norm.weight"), "model.norm.weight"),
    ):
        with pytest.raises(InvalidEngineRequest, match=f"does not fit the base in {named}"):
            check_weights(version, base)
    other = whole_of(tiny, tmp_path / "two" / MODEL_DIR, {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(InvalidEngineRequest, match=r"does not fit the base in model\.norm\.weight"):
        check_weights(other, tiny)


def test_a_base_whose_shapes_cannot_be_read_is_named_and_no_version_is_at_fault(
    tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path
) -> None:
    pickled, torn = tmp_path / "pickled", base_with(tiny, tmp_path / "torn")
    pickled.mkdir()
    (torn / "model.safetensors").write_bytes(b"?" * 20)
    for base in (pickled, torn):
        with pytest.raises(EngineError, match=r"the base \(model\.path\)") as caught:
            check_weights(Path(adapters[1].path or ""), base)
        assert not isinstance(caught.value, InvalidEngineRequest)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda tensors: {**tensors, _first(tensors): torch.full((16, 64), torch.nan)}, "not finite"),
        (lambda tensors: {**tensors, _first(tensors): torch.zeros(16, 65)}, "does not fit"),
        (lambda tensors: {name: value for name, value in tensors.items() if name != _first(tensors)}, "does not fit"),
        (lambda tensors: {**tensors, "base_model.model.model.odd.lora_A.weight": torch.zeros(2, 2)}, "model.odd"),
    ],
)
def test_an_adapter_that_would_harm_a_server_never_gets_there(
    damage: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], named: str, tiny: Path, tmp_path: Path
) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)
    file = tmp_path / "step-9/adapter/adapter_model.safetensors"
    save_file(damage(load_file(file)), file)
    write_manifest(tmp_path / "step-9", {})
    with pytest.raises(InvalidEngineRequest, match=named):
        check_weights(Path(version.path or ""), tiny)


def test_altered_files_and_other_kinds_are_refused(tiny: Path, tmp_path: Path) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)
    config = tmp_path / "step-9/adapter/adapter_config.json"
    config.write_text(config.read_text().replace('"use_dora": false', '"use_dora": true'))
    with pytest.raises(InvalidEngineRequest, match="not the file that was written"):
        check_weights(Path(version.path or ""), tiny)
    write_manifest(tmp_path / "step-9", {})
    with pytest.raises(InvalidEngineRequest, match="use_dora"):
        check_weights(Path(version.path or ""), tiny)
    with pytest.raises(InvalidEngineRequest, match="neither"):
        check_weights(tmp_path / "nowhere", tiny)


@pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")
@pytest.mark.parametrize("name", ["manifest.json", "adapter/adapter_model.safetensors"])
def test_files_that_the_disk_does_not_give_are_not_refused_as_damaged(tiny: Path, tmp_path: Path, name: str) -> None:
    version = write_adapter(tiny, tmp_path / "step-9", seed=9)
    with failing(tmp_path / "step-9" / name), pytest.raises(UnreadableVersion, match="Input/output"):
        check_weights(Path(version.path or ""), tiny)
    check_weights(Path(version.path or ""), tiny)


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(tensors) if "q_proj.lora_A" in name)


def test_weights_are_identified_by_what_their_manifest_says(tiny: Path, tmp_path: Path) -> None:
    """As the engine is given them, or the checkpoint that holds them: the same; others of the same number: not."""
    digests = []
    for name, scale in (("one", 0.02), ("same", 0.02), ("other", 0.03)):
        write_adapter(tiny, tmp_path / name, seed=1, scale=scale)
        whole, part = identify(tmp_path / name), identify(tmp_path / name / "adapter")
        assert whole == part
        digests.append(whole[1])
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(InvalidEngineRequest, match="cannot be used"):
        identify(tmp_path / "nowhere")
