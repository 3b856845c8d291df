"""Beginning a run directory from a checkpoint of another one: `training.resume_from_checkpoint`.

A policy can only be trained by answers of its own, so the weights must first be in service here. They become
version 1 of the new run, made by a step 1 without samples; from there everything is as after any other step. Steps
are counted anew, because each run's versions are named by them; optimiser, moving averages and random numbers go on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import ADAPTER_DIR, CorruptPolicy, UnreadablePolicy, WeightsKind, reading, weights_of
from openclaw_rl.store import Store
from openclaw_rl.training.checkpoint import STATE_FILE, load_checkpoint, save_checkpoint
from openclaw_rl.training.trainer import Trainer, TrainerState
from openclaw_rl.types import PolicyVersion, StepRecord, VersionState

log = logging.getLogger(__name__)

OPTION = "training.resume_from_checkpoint"
AUTO = "auto"
BEGUN_FROM = "begun_from"
"""Where the first step's record says which checkpoint the run was begun from."""
FIRST = 1


def begin(config: Config, store: Store, trainer: Trainer) -> bool:
    """Make the configured checkpoint the first version of a run without steps; whether that was done now.

    A run that was begun from this very checkpoint goes on by itself, whether or not it is still there.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged or does not fit, or this run has steps of its own.
    """
    if config.training.resume_from_checkpoint == AUTO:
        return False
    source = Path(config.training.resume_from_checkpoint).expanduser().resolve()
    steps = store.samples.steps()
    if steps and steps[0].teacher.get(BEGUN_FROM) == str(source):
        return False
    if steps:
        raise ConfigError(
            f"{OPTION} begins a new run, and {config.run_dir} has {len(steps)} steps: choose another --run-dir, or "
            "go back to one of its versions by openclaw-rl policy rollback"
        )
    started = time.monotonic()
    state = _fitting(source, trainer)
    trainer.restore(dataclasses.replace(state, step=FIRST, trained=()), weights_version=FIRST)
    checkpoint = save_checkpoint(trainer, config.checkpoints_dir.resolve(), store.identity.get())
    record, version = _rows(source, checkpoint, time.monotonic() - started)
    store.samples.commit_step(record, version)
    log.info("begun from %s, there step %d", source, state.step)
    return True


def _fitting(source: Path, trainer: Trainer) -> TrainerState:
    """The state at `source`, its files checked, and that they mean the same here."""
    try:
        with reading(source):
            there = (source / STATE_FILE).is_file()
        if not there:
            raise ConfigError(f"{OPTION}: there is no checkpoint in {source}")
        state = load_checkpoint(source)
    except CorruptPolicy as error:
        raise ConfigError(f"{OPTION}: {source} is no whole checkpoint: {error}") from error
    except UnreadablePolicy as error:
        raise ConfigError(f"{OPTION}: {error}: make it readable, or name another") from error
    if state.kind is WeightsKind.LORA:
        check_adapter(source, trainer, said_by=OPTION)
    return state


def check_adapter(source: Path, trainer: Trainer, *, said_by: str) -> None:
    """That the scale and the base of the adapter in checkpoint `source` are this run's; `said_by` begins the message.

    With another alpha the same numbers are another policy: one that nobody trained, and that no answer is drawn from.

    Raises:
        ConfigError: its scale is another one.
    """
    if not trainer.config.use_lora:
        return  # refused where it is restored, as are other shapes
    theirs = json.loads((source / ADAPTER_DIR / "adapter_config.json").read_text(encoding="utf-8"))
    alpha = trainer.config.lora.alpha
    if theirs["lora_alpha"] != alpha:
        raise ConfigError(
            f"{said_by}: it was trained with training.lora.alpha = {theirs['lora_alpha']:g}, not {alpha:g}"
        )
    own_base = trainer.model.peft_config["default"].base_model_name_or_path
    if theirs["base_model_name_or_path"] != own_base:
        log.warning(
            "%s was trained over %s, and here the base is %s", source, theirs["base_model_name_or_path"], own_base
        )


def _rows(source: Path, checkpoint: Path, seconds: float) -> tuple[StepRecord, PolicyVersion]:
    now = time.time()
    record = StepRecord(
        step=FIRST,
        version=FIRST,
        sample_ids=(),
        metrics={},
        checkpoint=str(checkpoint),
        seconds=seconds,
        teacher={BEGUN_FROM: str(source)},
        created_at=now,
    )
    version = PolicyVersion(
        version=FIRST,
        state=VersionState.CANDIDATE,
        path=str(weights_of(checkpoint).directory),
        step=FIRST,
        created_at=now,
    )
    return record, version
