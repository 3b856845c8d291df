"""Where the configuration comes from: defaults < a TOML recipe < the environment < flags.

Every leaf of `config.Config` can be set in each of the three ways under one name: `lr` in `[training]`,
`OPENCLAW_RL_TRAINING__LR`, `--training.lr`. The sources are pure functions that give `Setting`s; `resolve` lays
them over one another and validates once, so that every error can name the key, where it came from, and the
nearest valid name. Nothing here loads torch.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from openclaw_rl.config import Config
from openclaw_rl.config_engine import as_now

ENV_PREFIX = "OPENCLAW_RL_"

OTHER_VARIABLES: Mapping[str, str] = {
    "OPENCLAW_RL_LOG_LEVEL": "how much the loops write to their log files (DEBUG, INFO, WARNING)",
}
"""Variables with our prefix that are no configuration keys."""

ENV_ALIASES: Mapping[str, str] = {"PRM_M": "judge.votes"}
"""Variables under another name; the one with our prefix wins."""

FLAG_ALIASES: Mapping[str, str] = {
    "--model-path": "model.path",
    "--host": "serving.host",
    "--port": "serving.port",
    "--backend": "engine.kind",
    "--replicas": "engine.replicas",
    "--method": "training.method",
    "--lr": "training.lr",
    "--lr-schedule": "training.schedule",
    "--warmup-steps": "training.warmup_steps",
    "--schedule-steps": "training.schedule_steps",
    "--min-lr-share": "training.min_lr_share",
    "--weight-decay": "training.weight_decay",
    "--adam-beta1": "training.adam_beta1",
    "--adam-beta2": "training.adam_beta2",
    "--use-lora": "training.use_lora",
    "--offload-optimizer-state": "training.offload_optimizer_state",
    "--lora-rank": "training.lora.rank",
    "--lora-alpha": "training.lora.alpha",
    "--lora-dropout": "training.lora.dropout",
    "--lora-target-modules": "training.lora.target_modules",
    "--save-interval": "training.save_interval",
    "--resume-from-checkpoint": "training.resume_from_checkpoint",
    "--rollout-batch-size": "rollout.batch_size",
    "--num-rollouts-per-prompt": "rollout.rollouts_per_task",
    "--rollout-function-path": "rollout.rollout_function_path",
    "--custom-generate-function-path": "rollout.custom_generate_function_path",
    "--majority-vote-n": "judge.votes",
    "--majority-vote-threshold": "judge.vote_threshold",
    "--num-judge-workers": "judge.workers",
    "--custom-loss-function-path": "training.custom_loss_function_path",
    "--custom-rm-path": "judge.custom_rm_path",
    "--run-dir": "run_dir",
    "--save-dir": "run_dir",
}
"""Short flags, most of them known from the system that this one follows."""

KNOWN_ELSEWHERE: Mapping[str, str] = {
    "--use-wandb": "here it is --training.log wandb; openclaw-rl plot draws metrics without it",
    "--advantage-estimator": "here it is training.loss.baseline and training.loss.normalise (grpo: group, group)",
    "ppo.advantage_estimator": "here it is training.loss.baseline and training.loss.normalise (grpo: group, group)",
    "ppo.clip_range": "here it is training.loss.clip_low and training.loss.clip_high",
    "ppo.kl_coef": "here it is training.loss.kl_coef",
    "ppo.rollout_batch_size": "here it is rollout.batch_size",
    "ppo.max_new_tokens": "here it is serving.default_max_tokens",
    "prm.judge_samples": "here it is judge.votes",
    "prm.score_range": "here it is judge.score_range",
    "slime.rollout_function_path": "here it is rollout.rollout_function_path",
    "slime.custom_generate_function_path": "here it is rollout.custom_generate_function_path",
    "slime.custom_rm_path": "here it is judge.custom_rm_path, with judge.kind = custom",
    "server.api_port": "here it is serving.port",
}
"""Names known from that system that mean nothing here, and what to do instead."""


SECRET = frozenset({"serving.api_keys", "engine.api_key"})
"""Keys whose values no message repeats."""

SYNONYMS: Mapping[str, str] = {"learning_rate": "lr", "learning-rate": "lr", "model": "model-path"}
"""Other words for the last part of a name, that its letters would not lead to."""
CLOSE = 0.9
"""How like one of them (0 to 1) a misspelling has to be."""


class ConfigError(ValueError):
    """The configuration cannot be used. The message is one line for the person who wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One leaf of the tree."""

    path: tuple[str, ...]
    annotation: Any
    bounds: str
    default: Any
    description: str

    @property
    def key(self) -> str:
        """Its dotted name, `training.lora.rank`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Its environment variable, `OPENCLAW_RL_TRAINING__LORA__RANK`."""
        return ENV_PREFIX + "__".join(part.upper() for part in self.path)

    @property
    def flag(self) -> str:
        """Its flag, `--training.lora.rank`."""
        return f"--{self.key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key set by one source; `source` is told to people, as in `recipes/opd.toml` or `--lr`."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The tree that came out, and for each key that is not a default the source that won."""

    config: Config
    origins: Mapping[str, str]


# --- the tree ----------------------------------------------------------------------------------------------


@cache
def options() -> tuple[Option, ...]:
    """Every leaf of the tree, in the order in which it is written."""
    return tuple(_leaves(Config, ()))


@cache
def sections() -> frozenset[str]:
    """The dotted names of the sections, such as `training.loss`."""
    return frozenset(".".join(option.path[:depth]) for option in options() for depth in range(1, len(option.path)))


@cache
def _by_key() -> Mapping[str, Option]:
    return {option.key: option for option in options()}


def _leaves(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterable[Option]:
    """Keys first, then the sections below, as TOML wants them written."""
    below: list[tuple[type[BaseModel], tuple[str, ...]]] = []
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            below.append((field.annotation, path))
            continue
        yield Option(
            path=path,
            annotation=field.annotation,
            bounds=_bounds(field.metadata),
            default=field.default,
            description=" ".join((field.description or "").split()),
        )
    for section, path in below:
        yield from _leaves(section, path)


def _bounds(metadata: Sequence[Any]) -> str:
    """`0 to 1`, `above 0`, `at least 1`, from the constraints of a field."""
    limits = {
        name: getattr(item, name) for item in metadata for name in ("gt", "ge", "lt", "le") if hasattr(item, name)
    }
    if "ge" in limits and "le" in limits:
        return f"{limits['ge']:g} to {limits['le']:g}"
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    return ", ".join(f"{words[name]} {value:g}" for name, value in limits.items())


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name that looks most like `name`; one with the same last part comes first."""
    start, dot, last = name.rpartition(".")
    bare = last.removeprefix("--")
    if meant := difflib.get_close_matches(bare, SYNONYMS, n=1, cutoff=CLOSE):
        last = last.replace(bare, SYNONYMS[meant[0]])
        name = f"{start}{dot}{last}"

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        part = difflib.SequenceMatcher(None, last.lower(), candidate.rpartition(".")[2].lower()).ratio()
        return max(whole, part) + 0.01 * whole

    return max(valid, key=likeness)


def unknown(name: str, source: str, valid: Iterable[str]) -> ConfigError:
    """The error for a name that means nothing: it says what was written, where, and what it may have meant."""
    where = f" ({source})" if source else ""
    if name in KNOWN_ELSEWHERE:
        return ConfigError(f"unknown option {name}{where}: {KNOWN_ELSEWHERE[name]}")
    return ConfigError(f"unknown option {name}{where}: the nearest valid name is {nearest(name, valid)}")


# --- the sources -------------------------------------------------------------------------------------------


def from_toml(path: Path) -> list[Setting]:
    """The settings of a recipe.

    Raises:
        ConfigError: if the file cannot be read, is no TOML, or holds a key that the tree does not have.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return list(from_tree(tree, str(path)))


def from_tree(tree: Mapping[str, Any], source: str, prefix: str = "") -> Iterable[Setting]:
    """The settings of nested tables, checked against the names of the tree."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in _by_key():
            yield Setting(key=key, value=value, source=source)
        elif key not in sections():
            if not isinstance(value, Mapping):
                raise unknown(key, source, _by_key())
            below = [f"{key}.{inner}" for inner in value]
            wanted = next((inner for inner in below if inner in KNOWN_ELSEWHERE), key)
            raise unknown(wanted, source, sections())
        elif isinstance(value, Mapping):
            yield from from_tree(value, source, f"{key}.")
        else:
            raise ConfigError(f"{key} ({source}) is a section, not a value: write [{key}] and its keys below it")


def from_environment(environ: Mapping[str, str]) -> list[Setting]:
    """The settings of the environment.

    Raises:
        ConfigError: for a variable with our prefix that names no key.
    """
    variables = {option.variable: option for option in options()}
    settings = [
        Setting(key=key, value=_parse(key, environ[name]), source=name)
        for name, key in ENV_ALIASES.items()
        if name in environ
    ]
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in OTHER_VARIABLES:
            continue
        if name not in variables:
            raise unknown(name, "environment", [*variables, *OTHER_VARIABLES])
        key = variables[name].key
        settings.append(Setting(key=key, value=_parse(key, environ[name]), source=name))
    return settings


def from_flags(flags: Iterable[tuple[str, str]]) -> list[Setting]:
    """The settings of flags, each a name (`--lr`, `--training.lr`, `--set`) and its text, in the order given.

    Raises:
        ConfigError: for a flag that names no key, or a `--set` that is not `key=value`.
    """
    settings = []
    for flag, text in flags:
        if flag == "--set":
            key, equals, text = text.partition("=")
            key = key.strip()
            if not equals:
                raise ConfigError(f"--set {key}: write --set key=value, as in --set training.lr=1e-4")
        else:
            key = flag_key(flag)
        if key not in _by_key():
            raise unknown(key if flag == "--set" else flag, "--set" if flag == "--set" else "", _by_key())
        if flag == "--backend" and text not in typing.get_args(_by_key()["engine.kind"].annotation):
            raise ConfigError(_no_such_backend(text))
        settings.append(Setting(key=key, value=_parse(key, text), source=flag))
    return settings


def flag_key(flag: str) -> str:
    """The key that a flag sets; it may not exist. `--training.weight-decay` is `training.weight_decay`."""
    return FLAG_ALIASES.get(flag, flag.removeprefix("--").replace("-", "_"))


def _no_such_backend(name: str) -> str:
    *most, last = typing.get_args(_by_key()["engine.kind"].annotation)
    have = f"{', '.join(most)} and {last}"
    known = name == "tinker"
    return f"--backend {name}: {'not available yet' if known else 'no such engine'}; this version has {have}"


def _parse(key: str, text: str) -> Any:
    """The value that `text` stands for, as far as its type needs more than pydantic does.

    Lists are separated by commas or written as JSON; an empty text is None where None is allowed.
    """
    annotation = _by_key()[key].annotation
    stripped = text.strip()
    if not stripped and type(None) in typing.get_args(annotation):
        return None
    if tuple not in {typing.get_origin(kind) for kind in (annotation, *typing.get_args(annotation))}:
        return stripped
    if not stripped.startswith("["):
        return [part.strip() for part in stripped.split(",") if part.strip()]
    try:
        return json.loads(stripped)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{key} is not a JSON list: {error}") from error


# --- putting them together ---------------------------------------------------------------------------------


def resolve(settings: Iterable[Setting]) -> Resolved:
    """Lay the settings over the defaults, later ones winning, and validate the whole.

    Raises:
        ConfigError: naming each key that cannot be used, its source and why.
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in settings:
        *parents, leaf = setting.key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = setting.value
        origins[setting.key] = setting.source
    try:
        return Resolved(config=Config.model_validate(tree), origins=types.MappingProxyType(origins))
    except ValidationError as error:
        problems = [_describe(item, origins) for item in error.errors(include_url=False)]
        raise ConfigError("; ".join(problems)) from None


def load(recipe: Path | None, environ: Mapping[str, str], flags: Iterable[tuple[str, str]] = ()) -> Resolved:
    """The configuration from all sources: a recipe (or none), the environment, and flags.

    Raises:
        ConfigError: see the sources.
    """
    recipe_settings = from_toml(recipe) if recipe is not None else []
    return resolve([*recipe_settings, *from_environment(environ), *from_flags(flags)])


def load_json(path: Path) -> Config:
    """The configuration of a deployment, as its supervisor wrote it for the loops.

    Raises:
        ConfigError: if the file cannot be read or does not fit this version.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return resolve(from_tree(as_now(tree), str(path))).config


def _describe(error: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """One of pydantic's errors as a sentence; it repeats the value unless it could hold a secret."""
    location = [str(part) for part in error["loc"]]
    key = ".".join(location)
    parents = [".".join(location[:depth]) for depth in range(len(location), 0, -1)]
    leaf = next((parent for parent in parents if parent in _by_key()), None)
    message = str(error["msg"]).removeprefix("Value error, ")
    if leaf is None:
        return message
    source = origins.get(leaf)
    where = f" ({source})" if source else ""
    if error["type"] == "extra_forbidden":
        model = next(arg for arg in typing.get_args(_by_key()[leaf].annotation) if hasattr(arg, "model_fields"))
        return str(unknown(key, source or "", [f"{'.'.join(location[:-1])}.{name}" for name in model.model_fields]))
    shown = f" = {error['input']!r}" if key == leaf and leaf not in SECRET else ""
    return f"{key}{shown}{where}: {message[:1].lower()}{message[1:]}"
