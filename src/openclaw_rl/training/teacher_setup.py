"""From the configuration to the teacher and its prompts; what cannot work is an error at start-up."""

from __future__ import annotations

from typing import Any

from openclaw_rl.config import Config, TeacherConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.judging.hints import insert_hint
from openclaw_rl.models import load_causal_lm, load_tokenizer, resolve_model
from openclaw_rl.policy_files import (
    CorruptPolicy,
    Weights,
    WeightsKind,
    verify_manifest,
    weights_of,
)
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.serving.engines.rendering import Renderer
from openclaw_rl.training.checkpoint import checkpoint_path
from openclaw_rl.training.learned import read_weights
from openclaw_rl.training.scorer import Scorer
from openclaw_rl.training.teacher import (
    AverageTeacher,
    BaseTeacher,
    FrozenTeacher,
    LiveTeacher,
    Teacher,
    TeacherOf,
    vocabulary_difference,
)
from openclaw_rl.training.teacher_models import AverageModelTeacher, FrozenModelTeacher, ModelTeacher
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
            if config.training.use_lora:
                return lambda scorer: AverageTeacher(scorer, decay=decay)
            return lambda scorer: AverageModelTeacher(scorer.model, decay=decay)
        case "model":
            other = _other_model(config, tokenizer)
            return lambda scorer: _checked(other, scorer, teacher)
        case "frozen":
            version = teacher.version or BASE_VERSION
            if version == BASE_VERSION:
                return BaseTeacher
            found = _checkpointed(config, version)
            if found.kind is WeightsKind.FULL:
                frozen = load_causal_lm(found.directory, config.dtype, config.model.device)
                return lambda scorer: FrozenModelTeacher(frozen, version=version)
            _, weights = read_weights(found.directory)
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


def _checkpointed(config: Config, version: int) -> Weights:
    """The files of a version of this run, checked, and that they are of what this run trains.

    Raises:
        ConfigError: they are not there, not what was written, or of another kind.
        UnreadablePolicy: the system does not let them be read. They may be sound: the next start tries again.
    """
    checkpoints, option = config.checkpoints_dir, f"training.teacher.version = {version}"
    directory = checkpoint_path(checkpoints, version)
    if not directory.is_dir():
        known = sorted(path.name for path in checkpoints.glob("step-*")) if checkpoints.is_dir() else []
        there = f"there are {', '.join(known)}" if known else "there is none yet"
        raise ConfigError(f"{option} has no checkpoint in {checkpoints}: {there}")
    try:
        found = weights_of(directory)
        verify_manifest(found.directory)
    except CorruptPolicy as error:
        raise ConfigError(f"{option} cannot be read: {error}") from error
    if (found.kind is WeightsKind.LORA) is not config.training.use_lora:
        own = str(config.training.use_lora).lower()
        raise ConfigError(f"{option} holds a {found.kind} policy, and training.use_lora = {own}")
    return found


def _other_model(config: Config, tokenizer: Any) -> ModelTeacher:
    named = str(config.training.teacher.path)
    try:
        path = resolve_model(config.model.model_copy(update={"path": named}))
    except ConfigError as error:
        raise ConfigError(f"training.teacher.path = {named!r} holds no model: {error}") from error
    difference = vocabulary_difference(tokenizer.get_vocab(), load_tokenizer(path).get_vocab())
    if difference is not None:
        raise ConfigError(f"training.teacher.path = {named!r} has another vocabulary than the policy: {difference}")
    model = load_causal_lm(path, config.dtype, config.model.device)
    return ModelTeacher(model, name=path.name)


def _checked(other: ModelTeacher, scorer: Scorer, teacher: TeacherConfig) -> Teacher:
    """The other model, if its head has as many entries: padded heads may differ under one tokenizer."""
    if other.head_size != scorer.head_size:
        raise ConfigError(
            f"training.teacher.path = {teacher.path!r} has an output head of {other.head_size} entries, and the "
            f"policy one of {scorer.head_size}"
        )
    return other
