"""All weights learn: the reference stays, checkpoints are whole models, and resuming is never having stopped."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw_rl.config import Config, TrainingConfig
from openclaw_rl.config_sources import ConfigError, from_flags, resolve
from openclaw_rl.policy_files import WeightsKind, verify_manifest, weights_of
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import load_checkpoint, save_checkpoint
from openclaw_rl.training.compare_whole import compare_whole
from openclaw_rl.training.scorer import Mode
from openclaw_rl.training.teacher import BaseTeacher
from openclaw_rl.training.teacher_models import AverageModelTeacher, FrozenModelTeacher
from openclaw_rl.training.trainer import Trainer
from openclaw_rl.types import VersionState
from tests.training.support import (
    logprobs_of,
    make_sample,
    mixed_samples,
    tiny_config,
    tiny_model,
    tiny_trainer,
    with_logprobs,
)
from tests.training.test_cycle import RefusingPublisher, fill, make_config, make_loop, work_off

LOOSE = {"max_kl_to_base": 1e9, "max_kl_to_last": 1e9, "probes": 0}
LOSS = {"w_retry": 0.3}


def full(**values: Any) -> Trainer:
    return tiny_trainer(LOSS, use_lora=False, **{"lr": 1e-3, "gate": LOOSE, **values})


def steps(trainer: Trainer, numbers: range) -> None:
    for number in numbers:
        samples = mixed_samples(tiny_trainer(LOSS))
        trainer.restore(trainer.state())  # building samples used random numbers of the process
        assert trainer.step(samples[number % 3 :]).refused is None


def same(one: Trainer, other: Trainer) -> bool:
    """Bit for bit."""
    a, b = one.state(), other.state()
    assert a.weights.keys() == b.weights.keys()
    assert a.optimizer["state"].keys() == b.optimizer["state"].keys()
    equal = [torch.equal(a.weights[name], b.weights[name]) for name in a.weights]
    for number, moments in a.optimizer["state"].items():
        equal += [torch.equal(moments[name], b.optimizer["state"][number][name]) for name in moments]
    return all(equal) and (a.step, a.averages) == (b.step, b.averages) and torch.equal(a.rng, b.rng)


def test_one_step_of_adam_by_hand() -> None:
    """The first step of Adam moves every weight by lr times the sign of its gradient, whatever the gradient."""
    trainer = full(max_grad_norm=1e9)
    before = {name: tensor.clone() for name, tensor in trainer.learned.tensors().items()}
    assert trainer.step(mixed_samples(trainer)).refused is None
    for name, parameter in trainer.model.named_parameters():
        assert parameter.grad is not None
        clear = parameter.grad.abs() > 1e-6  # far above Adam's epsilon
        moved = (parameter.detach() - before[name])[clear]
        torch.testing.assert_close(moved, -1e-3 * parameter.grad[clear].sign(), rtol=2e-2, atol=1e-7)
        assert clear.any()


def test_the_reference_is_the_base_whatever_was_trained() -> None:
    trainer = full()
    sample = make_sample(trainer, 1)
    base = logprobs_of(trainer, sample)
    steps(trainer, range(3))
    assert torch.equal(logprobs_of(trainer, sample, Mode.REFERENCE), base)
    assert (logprobs_of(trainer, sample) - base).abs().max() > 1e-3
    prompts = [sample.tokens.prompt_ids]
    answers = [trainer.scorer.generate(prompts, mode, max_tokens=5)[0] for mode in (Mode.REFERENCE, Mode.TEACHER)]
    fresh = full().scorer.generate(prompts, Mode.TEACHER, max_tokens=5)[0]
    assert answers[0] == fresh
    assert answers[1].logprobs != fresh.logprobs


def test_the_gate_reads_kl_to_base_and_to_last_with_the_heads_of_then() -> None:
    """KL of the gate against KL computed here from whole distributions."""
    trainer = tiny_trainer({"baseline": "none"}, use_lora=False, lr=3e-3, gate=LOOSE)
    sample = make_sample(trainer, 1, response=6)
    last: torch.Tensor | None = None
    for _ in range(2):
        last = distribution(trainer.model, sample)
        outcome = trainer.step([with_logprobs(sample, logprobs_of(trainer, sample).tolist())])
        now, base = distribution(trainer.model, sample), distribution(tiny_model(), sample)
        for name, other in (("kl_after", base), ("kl_to_last", last)):
            expected = float((now.exp() * (now - other)).sum(-1).mean())
            assert outcome.metrics[name] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert outcome.metrics["kl_after"] != pytest.approx(outcome.metrics["kl_to_last"], rel=0.05)


@torch.no_grad()
def distribution(model: Any, sample: Any) -> torch.Tensor:
    ids = torch.tensor([[*sample.tokens.prompt_ids, *sample.tokens.response_ids]])
    plain = tiny_model()  # the trainer's attention is for packed rows
    plain.load_state_dict(model.state_dict())
    logits: torch.Tensor = plain(input_ids=ids).logits[0, len(sample.tokens.prompt_ids) - 1 : -1]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("offload", [False, True])
def test_resuming_is_never_having_stopped(tmp_path: Path, offload: bool) -> None:
    torch.set_num_threads(1)
    values: dict[str, Any] = {"offload_optimizer_state": offload, "offload_to": tmp_path / "spill"}
    straight, first, again = full(**values), full(**values), full(**values)
    steps(straight, range(4))
    steps(first, range(2))
    again.restore(load_checkpoint(save_checkpoint(first, tmp_path)))
    assert same(again, first)
    steps(again, range(2, 4))
    assert same(again, straight)


@pytest.mark.parametrize("use_lora", [False, True])
def test_offloading_changes_no_bit_and_leaves_no_file(tmp_path: Path, use_lora: bool) -> None:
    torch.set_num_threads(1)
    lr: dict[str, Any] = {"lr": 1e-3, "use_lora": use_lora}
    kept = tiny_trainer(LOSS, **lr)
    spilled = tiny_trainer(LOSS, offload_optimizer_state=True, offload_to=tmp_path, **lr)
    for trainer in (kept, spilled):
        steps(trainer, range(3))
    assert same(kept, spilled)
    assert list(tmp_path.iterdir()) == []
    files = [
        (save_checkpoint(trainer, tmp_path / name) / "trainer_state.pt").stat().st_size
        for name, trainer in (("a", kept), ("b", spilled))
    ]
    assert files[0] == pytest.approx(files[1], rel=0.01), "the moments are in both"


def test_a_checkpoint_with_or_without_offloading_is_resumed_from_by_the_other(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    kept, spilled = full(), full(offload_optimizer_state=True, offload_to=tmp_path)
    steps(kept, range(2))
    spilled.restore(load_checkpoint(save_checkpoint(kept, tmp_path / "a")))
    back = full()
    back.restore(load_checkpoint(save_checkpoint(spilled, tmp_path / "b")))
    for trainer in (kept, spilled, back):
        steps(trainer, range(2, 3))
    assert same(kept, spilled)
    assert same(kept, back)


def test_a_disk_without_room_for_the_moments_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.raises(ConfigError, match=r"offload_optimizer_state needs \d+ MB in .*: No space left"):
        full(offload_optimizer_state=True, offload_to=tmp_path)


BREAKING_LOSS = """
from pathlib import Path
CALLS, BREAKS_AT = Path(__file__).with_suffix(".calls"), Path(__file__).with_suffix(".breaks")
def compute_loss(policy_logprobs, reference_logprobs, rewards, advantages, config):
    calls = int(CALLS.read_text()) + 1
    CALLS.write_text(str(calls))
    return -(policy_logprobs.mean() * (float("nan") if BREAKS_AT.read_text() == str(calls) else 1.0))
"""


def test_a_step_that_came_to_nothing_changes_nothing(tmp_path: Path) -> None:
    """With one pass nothing is copied beforehand; with two, what the first changed is put back."""
    for epochs in (1, 2):
        mine = tmp_path / f"mine{epochs}.py"
        mine.write_text(BREAKING_LOSS)
        calls, breaks_at = mine.with_suffix(".calls"), mine.with_suffix(".breaks")
        calls.write_text("0")
        breaks_at.write_text("never")
        trainer = tiny_trainer(
            {"opd_top_k": 0},
            use_lora=False,
            lr=1e-3,
            gate=LOOSE,
            epochs_per_batch=epochs,
            custom_loss_function_path=f"{mine}:compute_loss",
        )
        assert trainer.step([make_sample(trainer, 0)]).refused is None
        before = trainer.state()
        breaks_at.write_text(str(int(calls.read_text()) + epochs))  # in the last pass of the next step
        outcome = trainer.step([make_sample(trainer, 1, reward=-1.0)])
        assert outcome.refused == "loss_not_finite"
        assert not outcome.weights_changed
        after = trainer.state()
        assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
        assert torch.equal(before.rng, after.rng)


def test_the_checkpoint_is_a_transformers_directory(tmp_path: Path) -> None:
    trainer = full()
    steps(trainer, range(1))
    path = save_checkpoint(trainer, tmp_path)
    found = weights_of(path)
    assert (found.kind, found.directory) == (WeightsKind.FULL, path / "model")
    assert verify_manifest(found.directory).about == {"step": 1, "version": 1}
    names = {file.name for file in found.directory.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "manifest.json"} <= names
    loaded = AutoModelForCausalLM.from_pretrained(found.directory)
    sample = make_sample(trainer, 1)
    assert torch.equal(distribution(loaded, sample), distribution(trainer.model, sample))


def test_the_other_kind_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    adapted = save_checkpoint(tiny_trainer(), tmp_path / "a")
    whole = save_checkpoint(full(), tmp_path / "b")
    with pytest.raises(ConfigError, match=r"training\.use_lora = false, and the checkpoint .* holds a LoRA adapter"):
        full().restore(load_checkpoint(adapted))
    with pytest.raises(ConfigError, match=r"training\.use_lora = true, and the checkpoint .* holds a whole model"):
        tiny_trainer().restore(load_checkpoint(whole))


# --- teachers ----------------------------------------------------------------------------------------------


def told(trainer: Trainer) -> float:
    """The distillation loss of a hint that changes nothing: 0 where the teacher is the student."""
    sample = dataclasses.replace(make_sample(trainer, 1), reward=None, hint="same")
    return abs(trainer.step([sample]).metrics["loss_opd"])


def test_the_base_and_a_frozen_version_teach_by_their_own_heads() -> None:
    frozen = full()
    steps(frozen, range(2))
    for teacher in (BaseTeacher, lambda _: FrozenModelTeacher(model_like(frozen), version=2)):
        trainer = full(teacher=teacher)
        if teacher is not BaseTeacher:
            trainer.learned.put(frozen.learned.tensors())
        assert told(trainer) < 1e-5
        steps(trainer, range(1))
        assert told(trainer) > 1e-4
    assert FrozenModelTeacher(tiny_model(), version=2).name(7) == "policy-v2"


def model_like(trainer: Trainer) -> Any:
    model = tiny_model()
    model.load_state_dict(trainer.model.state_dict())
    return model


def test_the_average_follows_all_weights_and_survives_a_restart(tmp_path: Path) -> None:
    def average(scorer: Any) -> AverageModelTeacher:
        return AverageModelTeacher(scorer.model, decay=0.75)

    trainer = full(teacher=average)
    start = trainer.state().weights
    steps(trainer, range(1))
    kept = trainer.teacher.state()
    assert kept is not None
    for name, tensor in trainer.state().weights.items():
        torch.testing.assert_close(kept[name], 0.75 * start[name] + 0.25 * tensor)
    again = full(teacher=average)
    again.restore(load_checkpoint(save_checkpoint(trainer, tmp_path)))
    resumed = again.teacher.state()
    assert resumed is not None
    assert all(torch.equal(resumed[name], tensor) for name, tensor in kept.items())


# --- the cycle ---------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def whole_config(run_dir: Path, **training: Any) -> Config:
    return make_config(run_dir, **{"use_lora": False, "lr": 1e-3, "gate": LOOSE, **training})


def test_batches_become_whole_versions_and_old_ones_are_pruned(tmp_path: Path, store: Store) -> None:
    fill(store, 6)
    work_off(make_loop(whole_config(tmp_path, keep_checkpoints=1, offload_optimizer_state=True), store))
    assert store.versions.serving().name == "policy-v3"
    assert store.versions.serving().path == str(tmp_path / "checkpoints" / "step-000003" / "model")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]


def test_a_refused_version_is_kept_and_training_goes_on_from_the_last_good_one(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    work_off(make_loop(whole_config(tmp_path), store))
    good = load_checkpoint(tmp_path / "checkpoints" / "step-000001").weights
    fill(store, 2, first=2)
    loop = make_loop(whole_config(tmp_path, gate={"max_kl_to_base": 1e-9}), store)
    work_off(loop)
    (version,) = [v for v in store.versions.all() if v.state is VersionState.REJECTED]
    assert (version.name, version.reason) == ("policy-v2", "kl_to_base")
    assert weights_of(Path(str(version.path))).kind is WeightsKind.FULL
    assert store.versions.serving().version == 1
    now = loop._trainer.state().weights
    assert all(torch.equal(now[name], tensor) for name, tensor in good.items())


def test_after_a_refusal_by_the_engine_the_base_is_the_base_again(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    loop = make_loop(whole_config(tmp_path), store)
    loop._candidates.publisher = RefusingPublisher(store, 1)
    work_off(loop)
    base = dict(tiny_model().named_parameters())
    now = loop._trainer.state()
    assert all(torch.equal(now.weights[name], tensor) for name, tensor in base.items())
    assert now.step == 1


def test_a_run_that_began_otherwise_does_not_go_on(tmp_path: Path, store: Store) -> None:
    fill(store, 2)
    work_off(make_loop(make_config(tmp_path), store))
    with pytest.raises(ConfigError, match=r"training\.use_lora = false.*another --run-dir"):
        make_loop(whole_config(tmp_path), store).resume()


def test_a_new_run_begins_from_a_whole_checkpoint_only_as_one(tmp_path: Path, store: Store) -> None:
    source = full()
    steps(source, range(2))
    path = save_checkpoint(source, tmp_path / "source")
    loop = make_loop(whole_config(tmp_path, resume_from_checkpoint=str(path)), store)
    work_off(loop)
    assert store.versions.serving().name == "policy-v1"
    now = loop._trainer.state().weights
    assert all(torch.equal(now[name], tensor) for name, tensor in source.state().weights.items())
    (tmp_path / "other").mkdir()
    other = Store.open(tmp_path / "other" / "store.sqlite")
    with pytest.raises(ConfigError, match=r"training\.use_lora = true"):
        make_loop(make_config(tmp_path / "other", resume_from_checkpoint=str(path)), other).resume()
    other.close()


# --- configuration and comparison --------------------------------------------------------------------------


def test_flags() -> None:
    def training(*flags: tuple[str, str]) -> TrainingConfig:
        return resolve(from_flags(flags)).config.training

    assert training().use_lora
    assert not training(("--use-lora", "false")).use_lora
    assert training(("--offload-optimizer-state", "true")).offload_optimizer_state
    with pytest.raises(ConfigError, match=r"training\.lora does nothing"):
        training(("--use-lora", "false"), ("--lora-rank", "4"))
    with pytest.raises(ConfigError, match=r"needs model\.dtype = float32"):
        resolve(from_flags((("--use-lora", "false"), ("--model.dtype", "bfloat16"))))
    with pytest.raises(ConfigError):
        training(("--use-lora", "perhaps"))
    assert tiny_config(use_lora=False).lora == TrainingConfig().lora


def test_two_whole_versions_lie_apart_by_the_norms_of_their_differences(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "base")
    trainer = full()
    paths = []
    for _ in range(2):
        steps(trainer, range(1))
        paths.append(save_checkpoint(trainer, tmp_path) / "model")
    base, a, b = (
        torch.nn.utils.parameters_to_vector(AutoModelForCausalLM.from_pretrained(path).parameters())
        for path in (tmp_path / "base", *paths)
    )
    found = compare_whole(tmp_path / "base", *paths)
    assert found.norm_a == pytest.approx(float((a - base).norm().detach()), rel=1e-4)
    assert found.norm_b == pytest.approx(float((b - base).norm().detach()), rel=1e-4)
    assert found.norm_difference == pytest.approx(float((a - b).norm().detach()), rel=1e-4)
    assert math.sqrt(sum(norm**2 for norm in found.by_module.values())) == pytest.approx(found.norm_difference)
    assert compare_whole(tmp_path / "base", None, paths[0]).norm_a == 0.0
