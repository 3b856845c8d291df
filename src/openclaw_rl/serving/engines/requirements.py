"""What a recipe needs of an engine, as a table; and what is missing, in sentences. Pure.

A row says which setting needs which feature and what to change where the engine lacks it; `FOUND_IN` says which
engines have it, and since which version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import WeightsKind
from openclaw_rl.serving.engines.protocol import EngineCapabilities


class EngineAway(ConfigError):
    """It was not there for as long as was waited for it, so what it has is not known."""


class Feature(StrEnum):
    """What an engine may have, in the words of an error."""

    TOKEN_IDS = "the ids of the tokens"
    LOGPROBS = "the log-probabilities of the tokens"
    LORA_VERSIONS = "loading adapters while it serves"
    FULL_WEIGHTS = "loading whole models while it serves"
    BASE_BESIDE = "the base beside a whole model"
    SCORE = "scoring given tokens"
    CONTEXT_LENGTH = "so long a context"


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """What an engine turned out to have. `name` is how an error calls it; `context_length` None: it does not say."""

    name: str
    capabilities: EngineCapabilities
    context_length: int | None = None

    def has(self, feature: Feature, config: Config) -> bool:
        """Whether it has a feature, as far as `config` asks for it."""
        if feature is Feature.CONTEXT_LENGTH:
            return self.context_length is None or self.context_length >= config.engine.context_length
        return bool(getattr(self.capabilities, feature.name.lower()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is to be run, and what kind of version is in service already (None: the base, or nothing yet)."""

    config: Config
    in_service: WeightsKind | None = None

    @property
    def trains(self) -> bool:
        """Whether versions will be made."""
        return self.config.training.enabled

    @property
    def trains_adapters(self) -> bool:
        """Whether they will be adapters."""
        return self.trains and self.config.training.use_lora

    @property
    def serves_adapters(self) -> bool:
        """Whether adapters will be loaded: those in service, those that are made, or those of owners."""
        return self.trains_adapters or self.in_service is WeightsKind.LORA or self.config.policies.owned

    @property
    def serves_whole_models(self) -> bool:
        """Whether a whole model is in service, or will be."""
        return self.in_service is WeightsKind.FULL or (self.trains and not self.trains_adapters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """A setting that needs a feature. `change`: what to do where the engine has it not, beside taking another."""

    setting: str
    feature: Feature
    needed: Callable[[Situation], bool]
    change: str


NO_TRAINING = "set training.enabled = false (--eval) to serve and judge only"
OTHER_DIRECTORY = "bring the base back first (openclaw-rl policy rollback base), or choose another --run-dir"

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        setting="training.enabled = true",
        feature=Feature.TOKEN_IDS,
        needed=lambda situation: situation.trains,
        change=NO_TRAINING,
    ),
    Requirement(
        setting="training.enabled = true",
        feature=Feature.LOGPROBS,
        needed=lambda situation: situation.trains,
        change=NO_TRAINING,
    ),
    Requirement(
        setting="training.enabled = true",
        feature=Feature.LORA_VERSIONS,
        needed=lambda situation: situation.trains_adapters,
        change=NO_TRAINING,
    ),
    Requirement(
        setting="policies.per",
        feature=Feature.LORA_VERSIONS,
        needed=lambda situation: situation.config.policies.owned,
        change="set policies.per = none: without them everybody is served by the base",
    ),
    Requirement(
        setting="training.use_lora = false",
        feature=Feature.FULL_WEIGHTS,
        needed=lambda situation: situation.trains and not situation.trains_adapters,
        change=f"train adapters (training.use_lora = true), or {NO_TRAINING}",
    ),
    Requirement(
        setting="judge.kind = verdict_logits",
        feature=Feature.SCORE,
        needed=lambda situation: situation.config.judge.kind == "verdict_logits",
        change="choose another judge.kind: classifier needs no engine",
    ),
    Requirement(
        setting="judge.kind = verdict_logits with training.use_lora = false",
        feature=Feature.BASE_BESIDE,
        needed=lambda situation: situation.serves_whole_models and situation.config.judge.kind == "verdict_logits",
        change="choose another judge.kind, or train adapters (training.use_lora = true)",
    ),
    Requirement(
        setting="judge.kind = llm without judge.base_url, with training.use_lora = false",
        feature=Feature.BASE_BESIDE,
        needed=lambda situation: (
            situation.serves_whole_models
            and situation.config.judge.kind == "llm"
            and situation.config.judge.base_url is None
        ),
        change="give the judge a model of its own (judge.base_url), or train adapters (training.use_lora = true)",
    ),
    Requirement(
        setting="the version in service in this run_dir",
        feature=Feature.LORA_VERSIONS,
        needed=lambda situation: situation.in_service is WeightsKind.LORA and not situation.trains_adapters,
        change=OTHER_DIRECTORY,
    ),
    Requirement(
        setting="the version in service in this run_dir",
        feature=Feature.FULL_WEIGHTS,
        needed=lambda situation: situation.in_service is WeightsKind.FULL,
        change=OTHER_DIRECTORY,
    ),
    Requirement(
        setting="engine.context_length",
        feature=Feature.CONTEXT_LENGTH,
        needed=lambda _situation: True,
        change="set a smaller engine.context_length, or start that engine with a longer one",
    ),
)

_OURS = "embedded, vllm (vLLM from 0.32), sglang (SGLang from 0.5.23)"
FOUND_IN: Mapping[Feature, str] = {
    Feature.TOKEN_IDS: f"{_OURS}; as an upstream, vLLM from 0.10.2 (return_token_ids) and this program's own gateway",
    Feature.LOGPROBS: f"{_OURS}; as an upstream, what answers logprobs beside token ids, as vLLM does from 0.10.2",
    Feature.LORA_VERSIONS: (
        f"{_OURS}; as an upstream, vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    ),
    Feature.FULL_WEIGHTS: f"{_OURS}; of vllm and sglang only without replicas",
    Feature.BASE_BESIDE: "embedded",
    Feature.SCORE: _OURS,
    Feature.CONTEXT_LENGTH: "",
}
"""Which engines have a feature, and since when."""


def unmet(situation: Situation, offered: Offered) -> tuple[Requirement, ...]:
    """The requirements that the engine does not meet, in the order of the table."""
    return tuple(
        row for row in REQUIREMENTS if row.needed(situation) and not offered.has(row.feature, situation.config)
    )


def explain(row: Requirement, offered: Offered) -> str:
    """One unmet requirement in a sentence: what needs it, what is missing, what to change, who has it."""
    has = FOUND_IN[row.feature]
    found = f" (found in: {has})" if has else ""
    said = "" if offered.context_length is None else f" ({offered.context_length} tokens)"
    shown = said if row.feature is Feature.CONTEXT_LENGTH else ""
    return f"{row.setting} needs {row.feature.value}, and {offered.name} has not that{shown}: {row.change}{found}"
