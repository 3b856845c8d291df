from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from openclaw_rl.policy_files import CorruptPolicy, UnreadablePolicy, adapter_dir, verify_manifest, write_manifest
from openclaw_rl.training import checkpoint
from openclaw_rl.training.checkpoint import (
    UnknownCheckpoints,
    discard_uncommitted,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from openclaw_rl.training.scorer import Scorer
from openclaw_rl.training.trainer import Trainer
from tests.training.support import logprobs_of, make_sample, mixed_samples, tiny_model, tiny_trainer
from tests.unreadable import FAILING, failing

LOSS = {"w_retry": 0.3}
DROPOUT = {"lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1}}


def step_on(trainer: Trainer, steps: range) -> None:
    """Steps that depend on everything: weights, optimiser, baseline and (dropout) random numbers."""
    for number in steps:
        samples = mixed_samples(tiny_trainer(LOSS))
        state = trainer.state()
        trainer.restore(state)  # building samples used random numbers of the process
        assert trainer.step(samples[number % 3 :]).refused is None


def same(one: Trainer, other: Trainer) -> bool:
    """Bit for bit."""
    a, b = one.state(), other.state()
    moments = [
        torch.equal(torch.as_tensor(a.optimizer["state"][i][key]), torch.as_tensor(b.optimizer["state"][i][key]))
        for i in a.optimizer["state"]
        for key in ("exp_avg", "exp_avg_sq", "step")
    ]
    weights = [torch.equal(a.weights[name], b.weights[name]) for name in a.weights]
    return all(moments + weights) and (a.step, a.averages) == (b.step, b.averages) and torch.equal(a.rng, b.rng)


def fresh(**values: object) -> Trainer:
    return tiny_trainer(LOSS, **{**DROPOUT, **values})  # type: ignore[arg-type]


def resumed_in_another_process(checkpoint: Path, root: Path) -> Path:
    """Resume in a new interpreter, go two steps further, save; what a restarted trainer does."""
    code = (
        "import sys, torch; from pathlib import Path; torch.set_num_threads(1)\n"
        "from tests.training.test_checkpoint import *\n"
        "trainer = fresh(); trainer.restore(load_checkpoint(Path(sys.argv[1])))\n"
        "step_on(trainer, range(2, 4)); print(save_checkpoint(trainer, Path(sys.argv[2])))"
    )
    repository = Path(__file__).parents[2]
    arguments = [sys.executable, "-W", "ignore", "-c", code, str(checkpoint), str(root)]
    done = subprocess.run(arguments, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


def test_resuming_is_never_having_stopped(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    straight = fresh()
    step_on(straight, range(4))
    first = fresh()
    step_on(first, range(2))
    half_way = save_checkpoint(first, tmp_path / "a")
    assert not same(first, straight)
    again = fresh()
    again.restore(load_checkpoint(resumed_in_another_process(half_way, tmp_path / "b")))
    assert same(again, straight)


def test_the_adapter_is_a_plain_peft_directory(tmp_path: Path) -> None:
    trainer = tiny_trainer()
    trainer.step(mixed_samples(trainer))
    path = adapter_dir(save_checkpoint(trainer, tmp_path))
    assert path == tmp_path / "step-000001" / "adapter"
    assert json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert verify_manifest(path).about == {"step": 1, "version": 1}
    loaded = PeftModel.from_pretrained(tiny_model(), path)
    sample = make_sample(trainer, 1)
    ours = logprobs_of(trainer, sample)
    trainer.scorer = Scorer(loaded)
    assert torch.equal(logprobs_of(trainer, sample), ours)


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    trainer = tiny_trainer()
    path = save_checkpoint(trainer, tmp_path)
    load_checkpoint(path)
    weights = path / "adapter" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptPolicy, match="adapter_model"):
        load_checkpoint(path)


def test_missing_extra_and_torn_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(CorruptPolicy, match="no readable"):
        verify_manifest(tmp_path)
    write_manifest(tmp_path, {})
    verify_manifest(tmp_path)
    (tmp_path / "b").write_text("y")
    with pytest.raises(CorruptPolicy, match="in: b"):
        verify_manifest(tmp_path)
    (tmp_path / "b").unlink()
    (tmp_path / "a").unlink()
    with pytest.raises(CorruptPolicy, match="in: a"):
        verify_manifest(tmp_path)


def test_writing_again_replaces_what_never_committed(tmp_path: Path) -> None:
    trainer = tiny_trainer()
    (tmp_path / ".writing-step-000000").mkdir()
    (tmp_path / ".writing-step-000000" / "torn").write_text("x")
    save_checkpoint(trainer, tmp_path)
    again = save_checkpoint(trainer, tmp_path)
    assert load_checkpoint(again).step == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000"]


def test_the_directory_of_the_first_checkpoint_is_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is in the one above it: without that on the disk, a power cut takes the whole root."""
    made_durable: list[Path] = []
    monkeypatch.setattr(checkpoint, "fsync", made_durable.append)
    root = tmp_path / "checkpoints" / "owner-1"
    save_checkpoint(tiny_trainer(), root)
    assert made_durable == [tmp_path / "checkpoints", tmp_path, root]
    save_checkpoint(tiny_trainer(), root)
    assert made_durable[3:] == [root]


def made_of(root: Path, step: int, *samples: str, store_id: str | None = None) -> Path:
    """The checkpoint of a step that trained these samples; without an id, as it was before stores had any."""
    trainer = tiny_trainer(LOSS)
    trainer.restore(dataclasses.replace(trainer.state(), step=step, trained=samples))
    return save_checkpoint(trainer, root, store_id)


def knows(*samples: str) -> Callable[[Sequence[str]], bool]:
    return lambda asked: bool(set(asked) & set(samples))


def test_leftovers_go_and_the_needed_stays(tmp_path: Path) -> None:
    for name in ("step-000001", "step-000002", "step-000003", ".writing-step-000005", "other"):
        (tmp_path / name).mkdir()
    made_of(tmp_path, 4, "deleted", "known")
    assert sorted(discard_uncommitted(tmp_path, 3, knows("known"))) == [".writing-step-000005", "step-000004"]
    assert prune_checkpoints(tmp_path, keep=1, in_use={1}) == ["step-000002"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "step-000001", "step-000003"]
    assert discard_uncommitted(tmp_path / "nowhere", 0, knows()) == []


@pytest.mark.parametrize("last", [0, 1])
def test_checkpoints_without_their_store_are_not_thrown_away(tmp_path: Path, last: int) -> None:
    """Two are one too many for a dead trainer; a lone next one is told by the samples that it was made of."""
    made_of(tmp_path, 1, "a")
    made_of(tmp_path, 2, "b")
    with pytest.raises(UnknownCheckpoints, match=f"step-000002, of which the store, whose last step is {last}, know"):
        discard_uncommitted(tmp_path, last, knows("a"))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_that_cannot_say_of_what_it_was_made_is_not_thrown_away(tmp_path: Path) -> None:
    made_of(tmp_path, 1, "a")
    (tmp_path / "step-000001" / "trainer_state.pt").unlink()
    with pytest.raises(UnknownCheckpoints, match="step-000001"):
        discard_uncommitted(tmp_path, 0, knows("a"))
    assert (tmp_path / "step-000001").is_dir()


def test_whose_a_checkpoint_is_it_says_itself(tmp_path: Path) -> None:
    """Not the samples: they may be deleted by now, and copies of them may be in another store."""
    made_of(tmp_path, 1, "deleted", store_id="ours")
    with pytest.raises(UnknownCheckpoints, match="step-000001"):
        discard_uncommitted(tmp_path, 0, knows("deleted"), "another")
    (tmp_path / "step-000001" / "trainer_state.pt").unlink()
    assert discard_uncommitted(tmp_path, 0, knows(), "ours") == ["step-000001"]
    made_of(tmp_path, 1, store_id="theirs")  # a copy, of no samples
    with pytest.raises(UnknownCheckpoints, match="step-000001"):
        discard_uncommitted(tmp_path, 0, knows(), "ours")


@pytest.mark.skipif(not FAILING.exists(), reason="needs /proc/self/mem")
@pytest.mark.parametrize("store_id", [None, "ours"])
def test_a_checkpoint_that_cannot_be_read_is_neither_ours_nor_anybody_elses(
    tmp_path: Path, store_id: str | None
) -> None:
    path = made_of(tmp_path, 1, "a", store_id=store_id)
    with failing(path / "manifest.json"), pytest.raises(UnreadablePolicy, match="Input/output"):
        discard_uncommitted(tmp_path, 0, knows("a"), "ours")
    assert discard_uncommitted(tmp_path, 0, knows("a"), "ours") == ["step-000001"]


def test_another_shape_of_adapter_is_an_error(tmp_path: Path) -> None:
    path = save_checkpoint(tiny_trainer(), tmp_path)
    other = tiny_trainer(lora={"rank": 8})
    with pytest.raises(ValueError, match=r"training\.lora"):
        other.restore(load_checkpoint(path))


def test_a_new_learning_rate_survives_resuming(tmp_path: Path) -> None:
    trainer = tiny_trainer()
    trainer.step(mixed_samples(trainer))
    other = tiny_trainer(lr=5e-3)
    other.restore(load_checkpoint(save_checkpoint(trainer, tmp_path)))
    assert [group["lr"] for group in other._optimizer.param_groups] == [5e-3]
