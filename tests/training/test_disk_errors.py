"""What a trainer does whose checkpoint finds no space, met as the system has it: a limit of files, `/dev/full`."""

from __future__ import annotations

import errno
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from openclaw_rl.store import Store
from openclaw_rl.store.outage import outage_of
from openclaw_rl.supervision.process import LoopReporter
from openclaw_rl.training.checkpoint import load_checkpoint, save_checkpoint
from openclaw_rl.training.disk_errors import writing
from openclaw_rl.types import LoopName, SampleState
from tests.training.support import mixed_samples, tiny_trainer
from tests.training.test_cycle import fill, make_config, make_loop

FULL = Path("/dev/full")
STATE = "trainer_state.pt"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system lets no file grow beyond this: what a library sees is what it sees of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def torch_save() -> None:
    with FULL.open("wb") as file:
        torch.save({"a": torch.zeros(100_000)}, file)


def tokenizer_save() -> None:
    Tokenizer(models.BPE(vocab={f"a{i}": i for i in range(9)}, merges=[])).save(str(FULL))


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("write", [torch_save, tokenizer_save, lambda: FULL.write_bytes(b"x")])
def test_whatever_writes_the_error_is_that_of_the_system(write: Callable[[], Any]) -> None:
    with pytest.raises(OSError, match="No space left") as caught, writing(Path("here")):
        write()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "here")


def test_weights_on_a_full_disk_are_no_error_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too large") as caught, largest_file(1000), writing(tmp_path):
        save_file({"a": torch.zeros(10_000)}, tmp_path / "a")
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), FileNotFoundError(errno.ENOENT, "gone")])
def test_a_fault_of_the_program_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, writing(Path("here")):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("use_lora", [True, False])
@pytest.mark.parametrize("fails", ["weights", STATE])
def test_a_checkpoint_that_finds_no_space_leaves_nothing_and_can_be_written_later(
    tmp_path: Path, use_lora: bool, fails: str
) -> None:
    trainer = tiny_trainer(use_lora=use_lora)
    trainer.step(mixed_samples(trainer))
    whole = save_checkpoint(trainer, tmp_path / "before")
    weights = max(path.stat().st_size for path in whole.rglob("*.safetensors"))
    state = (whole / STATE).stat().st_size
    assert weights < state  # two moments of each weight: a limit between them lets the one pass
    with (
        pytest.raises(OSError, match="too large") as caught,
        largest_file(weights - 1 if fails == "weights" else state - 1),
    ):
        save_checkpoint(trainer, tmp_path / "full")
    assert outage_of(caught.value) is not None
    assert caught.value.filename == str(tmp_path / "full" / "step-000001")
    assert list((tmp_path / "full").iterdir()) == []
    later = load_checkpoint(save_checkpoint(trainer, tmp_path / "full"))
    torch.testing.assert_close(later.weights, load_checkpoint(whole).weights, rtol=0, atol=0)


def test_a_trainer_waits_for_space_and_trains_each_sample_once(tmp_path: Path) -> None:
    store, outside = Store.open(tmp_path / "store.sqlite"), Store.open(tmp_path / "store.sqlite")
    fill(store, 2)
    told: list[str] = []
    limit = largest_file(20_000)

    class Full(LoopReporter):
        """The disk is full when the checkpoint is written, until the loop says that it waits."""

        full = False

        def working(self, activity: str, **details: Any) -> None:
            super().working(activity, **details)
            if activity.startswith("writing the checkpoint") and not told:
                limit.__enter__()
                self.full = True

        def waiting(self, waiting_for: str, **details: Any) -> None:
            if self.full:
                limit.__exit__(None, None, None)
                self.full = False
                told.append(waiting_for)
            super().waiting(waiting_for, **details)

    loop = make_loop(make_config(tmp_path), store, Full(store, LoopName.TRAINING))
    thread = threading.Thread(target=loop.run)
    thread.start()
    deadline = time.monotonic() + 60
    while not outside.samples.steps() and time.monotonic() < deadline and thread.is_alive():
        time.sleep(0.05)
    loop._stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert [step.sample_ids for step in outside.samples.steps()] == [("t0", "t1")]
    assert outside.status.counts().samples_by_state == {SampleState.TRAINED: 2}
    assert told == [f"{tmp_path / 'checkpoints' / 'step-000001'} to be usable again: the disk is full"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    store.close()
    outside.close()
