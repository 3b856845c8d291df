"""From the configuration to the teacher and its prompts; what cannot work is an error at start-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from openclaw_rl.config import Config, TeacherConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.judging.hints import insert_hint
from openclaw_rl.models import load_causal_lm, load_tokenizer, resolve_model
from openclaw_rl.policy_files import ADAPTER_DIR, CorruptPolicy, verify_manifest
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.checkpoint import WEIGHTS_FILE, checkpoint_path
from openclaw_rl.training.scorer import Scorer
from openclaw_rl.training.teacher import (
    AverageTeacher,
    BaseTeacher,
    FrozenTeacher,
    LiveTeacher,
    ModelTeacher,
    Teacher,
    TeacherOf,
    Weights,
    vocabulary_difference,
)
from openclaw_rl.training.trainer import TeacherPrompt
from openclaw_rl.types import BASE_VERSION, Sample

DEFAULT_DECAY = 0.9
_PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})


def teacher_of(config: Config, tokenizer: Any) -> TeacherOf:
    """What makes the configured teacher once the trainer's model is there; files are read and checked at once.

    Args:
        config: the whole configuration.
        tokenizer: the policy's own.

    Raises:
        ConfigError: the version is not there, the other model's vocabulary is another one.
    """
    teacher = config.training.teacher
    match teacher.kind:
        case "live":
            return LiveTeacher
        case "average":
            decay = DEFAULT_DECAY if teacher.decay is None else teacher.decay
            return lambda scorer: AverageTeacher(scorer, decay=decay)
        case "model":
            other = _other_model(config, tokenizer)
            return lambda scorer: _checked(other, scorer, teacher)
        case "frozen":
            version = teacher.version or BASE_VERSION
            if version == BASE_VERSION:
                return BaseTeacher
            weights = _weights_of(config.checkpoints_dir, version)
            return lambda scorer: FrozenTeacher(scorer, weights=weights, version=version)


def frozen_version(teacher: TeacherConfig) -> int | None:
    """The version whose checkpoint has to stay on disk for the teacher's sake, or None."""
    return (teacher.version or None) if teacher.kind == "frozen" else None


def teacher_prompt(renderer: Renderer, teacher: TeacherConfig | None = None) -> TeacherPrompt:
    """The prompt that the teacher reads: the sample's messages with its hint put in, rendered as the engine does.

    Raises:
        ConfigError: the chat template refuses a hint in that place, whatever the messages.
    """
    placement = (teacher or TeacherConfig()).hint_placement
    try:
        renderer.render(insert_hint(_PROBE, "d", placement))
    except InvalidEngineRequest as error:
        raise ConfigError(f"training.teacher.hint_placement = {placement} does not work here: {error}") from error

    def prompt(sample: Sample) -> tuple[int, ...]:
        if sample.hint is None:
            raise ValueError("a sample without a hint has no teacher prompt")
        return tuple(renderer.render(insert_hint(sample.messages, sample.hint, placement), sample.tools))

    return prompt


def _weights_of(checkpoints: Path, version: int) -> Weights:
    directory = checkpoint_path(checkpoints, version) / ADAPTER_DIR
    if not directory.is_dir():
        known = sorted(path.name for path in checkpoints.glob("step-*")) if checkpoints.is_dir() else []
        there = f"there are {', '.join(known)}" if known else "there is none yet"
        raise ConfigError(f"training.teacher.version = {version} has no checkpoint in {checkpoints}: {there}")
    try:
        verify_manifest(directory)
    except CorruptPolicy as error:
        raise ConfigError(f"training.teacher.version = {version} cannot be read: {error}") from error
    weights: Weights = load_file(directory / WEIGHTS_FILE)
    return weights


def _other_model(config: Config, tokenizer: Any) -> ModelTeacher:
    named = str(config.training.teacher.path)
    try:
        path = resolve_model(config.model.model_copy(update={"path": named}))
    except ConfigError as error:
        raise ConfigError(f"training.teacher.path = {named!r} holds no model: {error}") from error
    difference = vocabulary_difference(tokenizer.get_vocab(), load_tokenizer(path).get_vocab())
    if difference is not None:
        raise ConfigError(f"training.teacher.path = {named!r} has another vocabulary than the policy: {difference}")
    model = load_causal_lm(path, config.model.dtype, config.model.device)
    return ModelTeacher(model, name=path.name)


def _checked(other: ModelTeacher, scorer: Scorer, teacher: TeacherConfig) -> Teacher:
    """The other model, if its head has as many entries: padded heads may differ under one tokenizer."""
    if other.head_size != scorer.head_size:
        raise ConfigError(
            f"training.teacher.path = {teacher.path!r} has an output head of {other.head_size} entries, and the "
            f"policy one of {scorer.head_size}"
        )
    return other
