"""What is looked at before an engine that is not ours reads a version's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_rl.models import load_causal_lm
from openclaw_rl.policy_files import MODEL_DIR, WeightsKind, write_manifest
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest, UnreadableVersion
from openclaw_rl.serving.engines.weights_check import check_weights, identify
from openclaw_rl.types import PolicyVersion
from tests.engines.support import write_adapter
from tests.unreadable import FAILING, failing


def test_what_fits_passes(tiny: Path, adapters: dict[int, PolicyVersion], tmp_path: Path) -> None:
    assert check_weights(Path(adapters[1].path or ""), tiny).kind is WeightsKind.LORA
    load_causal_lm(tiny).save_pretrained(tmp_path / MODEL_DIR)
    write_manifest(tmp_path / MODEL_DIR, {})
    assert check_weights(tmp_path / MODEL_DIR, tiny).kind is WeightsKind.FULL


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
