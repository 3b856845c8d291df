"""What a server must offer to serve this configuration, and by which option it would. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.serving.engines.installed import release
from openclaw_rl.serving.engines.requirements import OTHER_DIRECTORY, Situation

WRITTEN_FOR = "0.5.23"
"""The version of SGLang whose HTTP this adapter was written for, and tested with."""
_POSSIBLE = f"SGLang {WRITTEN_FOR}, which this is made for and tested with, can be started as is needed"


def unmet(info: Mapping[str, Any], situation: Situation, *, context: int) -> list[str]:
    """What the server of this `GET /server_info` lacks, a sentence each; empty where it serves everything.

    `context`: the tokens that it has to hold.
    """
    lacking = []
    length = info.get("context_length")
    if isinstance(length, int) and length < context:
        lacking.append(f"SGLang's --context-length is {length}, engine.context_length is {context}")
    if situation.serves_adapters:
        lacking += _unmet_by_adapters(info, situation)
    if situation.serves_whole_models:
        lacking += unmet_by_swaps(info)
    if info.get("skip_tokenizer_init"):
        lacking.append("SGLang was started with --skip-tokenizer-init: stop strings would not end an answer")
    return [*_unmet_by_version(info), *(f"{sentence} ({_POSSIBLE})" for sentence in lacking)]


def unmet_by_swaps(info: Mapping[str, Any]) -> list[str]:
    """What whole models ask for: a pause of generation has to come when all that was drawn has been counted."""
    lacking = []
    if not info.get("disable_overlap_schedule"):
        lacking.append(
            "SGLang was started without --disable-overlap-schedule: where whole models replace each other it would "
            "tell a token of the old weights as one of the new"
        )
    pipelines = info.get("pp_size")
    unpaused = {"--pp-size": isinstance(pipelines, int) and pipelines > 1, "--enable-pdmux": info.get("enable_pdmux")}
    lacking += [
        f"SGLang was started with {option}, with which it does not pause: whole models could not replace each other "
        "between two tokens"
        for option, given in unpaused.items()
        if given
    ]
    return lacking


def another_model(info: Mapping[str, Any], path: str, directory: Path) -> str | None:
    """What the server calls its model, where that is not what `model.path` names; names are compared, not weights."""
    served = info.get("model_path")
    if not isinstance(served, str) or served == path or Path(served).expanduser().resolve() == directory.resolve():
        return None
    return served


def _unmet_by_version(info: Mapping[str, Any]) -> list[str]:
    version = str(info.get("version") or "")
    if release(version) >= release(WRITTEN_FOR) or ".dev" in version:  # from sources, as `installed` has it
        return []
    return [
        f"SGLang {version or 'of unknown version'} is too old: {WRITTEN_FOR} or newer is needed (made for and tested "
        f"with {WRITTEN_FOR})"
    ]


def _unmet_by_adapters(info: Mapping[str, Any], situation: Situation) -> list[str]:
    """What LoRA versions ask for. The rank and the modules of those that exist already are their own, not ours."""
    lora = situation.config.training.lora
    if not info.get("enable_lora") and not situation.trains_adapters:
        return [
            "SGLang was started without --enable-lora, --max-lora-rank and --lora-target-modules: it could not serve "
            f"the adapters of this run_dir ({OTHER_DIRECTORY})"
        ]
    if not info.get("enable_lora"):
        modules = " ".join(lora.target_modules)
        return [
            f"SGLang was started without --enable-lora --max-lora-rank {lora.rank} --lora-target-modules {modules}: "
            "it could not serve what is learned"
        ]
    if not situation.trains_adapters:
        return []
    lacking = []
    rank = info.get("max_lora_rank")
    if isinstance(rank, int) and rank < lora.rank:
        lacking.append(f"SGLang's --max-lora-rank is {rank}, training.lora.rank is {lora.rank}")
    served = info.get("lora_target_modules")
    if isinstance(served, Collection) and "all" not in served and set(lora.target_modules) - set(served):
        missing = ", ".join(sorted(set(lora.target_modules) - set(served)))
        lacking.append(f"SGLang's --lora-target-modules lacks {missing}")
    return lacking
