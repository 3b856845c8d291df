"""Training steps on a device that is not the CPU (a pretended one, see `tests.pretended_device`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.models import available_devices
from openclaw_rl.testing.tiny_model import build_tiny_model
from openclaw_rl.training.checkpoint import STATE_FILE, load_checkpoint, save_checkpoint
from openclaw_rl.training.learned import WEIGHTS_FILE
from openclaw_rl.training.loop import load_trainer
from openclaw_rl.training.trainer import StepOutcome, Trainer
from tests.pretended_device import ELSEWHERE, PretendedDevice
from tests.training.support import logprobs_of, mixed_samples, teacher_prompt, tiny_config, tiny_model

# Torch takes the pretended device for one without numbers, and believes that nothing is copied to it.
pytestmark = pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")

CPU = torch.device("cpu")


def trainer_on(device: torch.device, loss: dict[str, Any], **values: Any) -> Trainer:
    return Trainer(
        config=tiny_config(loss, **values),
        model=tiny_model().to(device),
        base_path="tiny",
        teacher_prompt=teacher_prompt,
        full_batch=8,
    )


def train(device: torch.device, root: Path) -> tuple[list[Mapping[str, float]], list[bytes], Trainer]:
    """Two steps, and between them a checkpoint from which another trainer goes on."""
    first = trainer_on(device, {"w_retry": 0.5})
    outcomes: list[StepOutcome] = [first.step(mixed_samples(first))]
    second = trainer_on(device, {"w_retry": 0.5})
    second.restore(load_checkpoint(save_checkpoint(first, root)))
    outcomes.append(second.step(mixed_samples(second)))
    assert [outcome.refused for outcome in outcomes] == [None, None]
    assert {parameter.device for parameter in second.model.parameters()} == {device}
    saved = save_checkpoint(second, root)
    files = [(saved / name).read_bytes() for name in (STATE_FILE, f"adapter/{WEIGHTS_FILE}")]
    return [outcome.metrics for outcome in outcomes], files, second


def test_steps_and_checkpoints_are_the_same_on_another_device(tmp_path: Path) -> None:
    """Nothing is left on the CPU, and what is saved comes back to it: metrics and files are alike in every bit."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels differ from device to device
        expected, files, _ = train(CPU, tmp_path / "cpu")
        with PretendedDevice() as pretended:
            metrics, files_there, trainer = train(ELSEWHERE, tmp_path / "there")
            state = trainer.state()
            logprobs = logprobs_of(trainer, mixed_samples(trainer)[0])
    assert metrics == expected
    assert files_there == files
    assert pretended.operations > 5000
    tensors = [leaf for leaf in tree_leaves([state.weights, state.optimizer]) if isinstance(leaf, torch.Tensor)]
    assert {tensor.device for tensor in [*tensors, logprobs]} == {CPU}


def test_the_other_ways_to_a_loss_stay_on_the_device_too() -> None:
    loss = {"opd_top_k": 0, "reduction": "tokens", "baseline": "none"}
    with sdpa_kernel(SDPBackend.MATH):
        here = trainer_on(CPU, loss, epochs_per_batch=2)
        expected = here.step(mixed_samples(here))
        with PretendedDevice():
            there = trainer_on(ELSEWHERE, loss, epochs_per_batch=2)
            outcome = there.step(mixed_samples(there))
    assert outcome.refused is None
    assert outcome.metrics == expected.metrics


def test_a_refused_step_can_be_gone_back_from_on_another_device() -> None:
    with PretendedDevice(), sdpa_kernel(SDPBackend.MATH):
        trainer = trainer_on(ELSEWHERE, {}, gate={"max_kl_to_base": 1e-9, "probes": 0})
        before = trainer.state()
        outcome = trainer.step(mixed_samples(trainer))
        refused = trainer.state()
        trainer.restore(before)
        after = trainer.state()
        assert {parameter.device for parameter in trainer.model.parameters()} == {ELSEWHERE}
    assert outcome.refused == "kl_to_base"
    assert not all(torch.equal(refused.weights[name], tensor) for name, tensor in before.weights.items())
    assert all(torch.equal(after.weights[name], tensor) for name, tensor in before.weights.items())


@pytest.mark.skipif("cuda" in available_devices(), reason="there is a GPU")
def test_a_trainer_for_a_gpu_that_is_not_there_does_not_start(tmp_path: Path) -> None:
    path = build_tiny_model(tmp_path / "model")
    config = Config.model_validate({"model": {"path": str(path), "device": "cuda"}})
    with pytest.raises(ConfigError, match=r"'cuda' is not there; torch finds: cpu"):
        load_trainer(config)
