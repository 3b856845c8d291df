"""Checkpoints: a directory that is wholly there or not there, and from which training goes on bit for bit.

    step-000012/
      adapter/           a plain PEFT directory with a manifest of its own: what engines and Transformers load
      model/             in its place, without LoRA: a plain Transformers directory with the tokenizer, likewise
      trainer_state.pt   optimiser, random numbers, counters, averages of rewards, samples trained, what the gate
                         remembers; and `config`, the section `[training]` that the step was made with, for who looks
      manifest.json      checksums of everything above, and the id of the store that the step belongs to

Which one to resume from is never guessed from the disk: the store's last committed step names it. Resuming goes by
the configuration of the run, never by that in the checkpoint, which is not all of one (`[model]` and `[rollout]` are
elsewhere, and `[serving]` holds keys).
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import CorruptPolicy, fsync, read_manifest, reading, verify_manifest, write_manifest
from openclaw_rl.training.disk_errors import writing
from openclaw_rl.training.learned import DIRECTORIES, read_weights
from openclaw_rl.training.trainer import Trainer, TrainerState

log = logging.getLogger(__name__)

STATE_FILE = "trainer_state.pt"
STORE = "store"
"""Where the manifest names the store that the step belongs to; checkpoints of before stores had ids have none."""
_PREFIX = "step-"
_TEMPORARY = ".writing-"


def checkpoint_path(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"{_PREFIX}{step:06d}"


def save_checkpoint(trainer: Trainer, root: Path, store_id: str | None = None) -> Path:
    """Write the trainer's present state as the checkpoint of its step; returns its directory.

    Written beside its place, made durable, then renamed there: a crash leaves the old world or the new one. A
    directory already there is of a step that never committed (a committed one is resumed from, not repeated).
    `store_id`: the store that the step belongs to.

    Raises:
        OSError: the disk cannot be written for now; nothing of the checkpoint is left.
    """
    state = trainer.state(copied=False)
    final = checkpoint_path(root, state.step)
    temporary = root / f"{_TEMPORARY}{final.name}"
    with writing(final):
        make_durably(root)
        for leftover in (temporary, final):
            if leftover.exists():
                _remove(leftover)
        temporary.mkdir()
        try:
            _write(trainer, state, temporary, store_id)
            os.rename(temporary, final)
        except BaseException:
            _free(temporary)
            raise
        fsync(root)
    trainer.rest()
    return final


def make_durably(root: Path) -> None:
    """A directory that survives a power cut, which its own `fsync` does not see to: its name is in the one above."""
    made = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in made:
        fsync(path.parent)


def _write(trainer: Trainer, state: TrainerState, directory: Path, store_id: str | None) -> None:
    """The files of a checkpoint and their manifests, all of them durable."""
    weights = directory / DIRECTORIES[state.kind]
    trainer.learned.save(weights)
    saved = {
        "step": state.step,
        "averages": state.averages,
        "optimizer": state.optimizer,
        "rng": state.rng,
        "trained": list(state.trained),
        "teacher": state.teacher,
        "gate": state.gate,
        "config": trainer.config.model_dump_json(),
    }
    with (directory / STATE_FILE).open("wb") as file:  # given a path, torch does not say what the disk said
        torch.save(saved, file)
    about: dict[str, Any] = {"step": state.step, "version": state.step}
    write_manifest(weights, about)
    write_manifest(directory, about if store_id is None else {**about, STORE: store_id})


def load_checkpoint(path: Path) -> TrainerState:
    """Read a checkpoint, every file checked against its manifest first.

    Raises:
        CorruptPolicy: if it is not what was written.
        UnreadablePolicy: if the system does not let it be read, which says nothing about what is in it.
    """
    verify_manifest(path)
    with reading(path):
        saved = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True, mmap=True)
        kind, weights = read_weights(path)
    return TrainerState(
        step=saved["step"],
        averages=saved["averages"],
        kind=kind,
        weights=weights,
        optimizer=saved["optimizer"],
        rng=saved["rng"],
        trained=tuple(saved["trained"]),
        teacher=saved.get("teacher"),  # checkpoints of before there was one have none
        gate=saved.get("gate", {}),  # nor this
    )


class UnknownCheckpoints(ConfigError):
    """Checkpoints that the store knows nothing of: it was lost or exchanged, and overwriting them would lose more."""


def discard_uncommitted(
    root: Path, last_step: int, known: Callable[[Sequence[str]], bool], store_id: str | None = None
) -> list[str]:
    """Remove what a dead trainer left: half-written directories, and the checkpoint of the step it did not commit.

    Whose a checkpoint of the next step is, it says itself: it names its store, and `store_id` is this one. Where it
    was written before stores had ids, `known` says whether the store knows any of its samples (turn ids); one that
    was made of none is a copy (`origin`), and is made again.

    Raises:
        UnknownCheckpoints: if there are any that no dead trainer of this store can have left.
        UnreadablePolicy: if the system does not let us see whose one is.
    """
    found = _directories(root)
    ahead = [path for path in found if (_step_of(path) or 0) > last_step]
    strange = [path.name for path in ahead if _step_of(path) != last_step + 1 or not _is_ours(path, known, store_id)]
    if strange:
        raise UnknownCheckpoints(
            f"{root} holds {', '.join(sorted(strange))}, of which the store, whose last step is {last_step}, knows "
            "nothing: put the store back that they belong to, or move them away"
        )
    removed = [*(path for path in found if path.name.startswith(_TEMPORARY)), *ahead]
    for path in removed:
        _remove(path)
    return [path.name for path in removed]


def _is_ours(path: Path, known: Callable[[Sequence[str]], bool], store_id: str | None) -> bool:
    """Whether a checkpoint is of this store: it says so or, from before it could, its samples do; not if damaged."""
    try:
        owner = read_manifest(path).about.get(STORE)
        if owner is not None:
            return bool(owner == store_id)
        trained = load_checkpoint(path).trained
    except CorruptPolicy:
        return False
    return not trained or known(trained)


def prune_checkpoints(root: Path, *, keep: int, in_use: Collection[int]) -> list[str]:
    """Remove all but the last `keep` checkpoints; never one in `in_use` (steps), nor the last, whatever `keep` is."""
    found = sorted((step, path) for path in _directories(root) if (step := _step_of(path)) is not None)
    removed = []
    for step, path in found[: -max(keep, 1)]:
        if step not in in_use:
            _remove(path)
            removed.append(path.name)
    return removed


def _remove(path: Path) -> None:
    """Remove a directory here. What is half removed must not look like a checkpoint: it is renamed first."""
    leaving = path.with_name(f"{_TEMPORARY}removed-{uuid.uuid4().hex}")
    os.rename(path, leaving)
    shutil.rmtree(leaving)


def _free(path: Path) -> None:
    """Give back the space of what could not be written. What cannot be removed now is when training resumes."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("%s is left behind (%s)", path, error.strerror)


def _directories(root: Path) -> list[Path]:
    with reading(root):
        return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _step_of(path: Path) -> int | None:
    digits = path.name.removeprefix(_PREFIX)
    return int(digits) if path.name.startswith(_PREFIX) and digits.isdigit() else None
