"""Whether owners' policies can be trained on with `training.lora` as it is now; looked at before anything is started.

The trainer takes up an owner's policy when its turn comes, which may be hours after the start. What does not fit then
stops that owner alone. But where nobody's policy fits, not an owner's checkpoint is odd but the configuration, and
whoever starts the deployment is there to hear it. Reads no tensors, and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config, LoraConfig
from openclaw_rl.config_engine import SERVERS
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.policy_files import weights_of
from openclaw_rl.serving.engines.sglang.capabilities import ready_modules
from openclaw_rl.serving.engines.vllm.capabilities import allowed_rank
from openclaw_rl.store import Store
from openclaw_rl.store.migrations import StoreSchemaError
from openclaw_rl.store.outage import STORE_ERRORS
from openclaw_rl.types import PolicyVersion, VersionState

SHOWN = 3
"""Versions that are named."""
UNSERVED = ", and is not served: an earlier version that the engine takes answers, or the base"


def check_owners(config: Config, say: Callable[[str], None]) -> None:
    """Return if some owner's policy, of those that could be trained on, fits `training.lora`; `say` which do not.

    What cannot be read is passed over: the trainer says so when it is that owner's turn. So is who is pinned.

    Raises:
        ConfigError: none fits.
    """
    if not (config.policies.owned and config.training.enabled and config.store_path.exists()):
        return
    try:
        versions = _to_train_on(config.store_path)
    except (StoreSchemaError, *STORE_ERRORS) as error:
        say(f"whether owners' policies fit training.lora cannot be told ({type(error).__name__})")
        return
    told = {version.name: found for version in versions if (found := _adapter_config(version)) is not None}
    odd = {name: words for name, found in told.items() if (words := _difference(found, config.training.lora))}
    if not odd:
        return
    unserved = {name: UNSERVED for name in odd if _refused(told[name], config)}
    some = list(odd.items())[:SHOWN]
    named = "; ".join(f"{name} was trained with {words}{unserved.get(name, '')}" for name, words in some)
    if len(odd) == len(told):
        raise ConfigError(
            f"training.lora fits no owner's policy, {len(odd)} in all: {named}: set it back, or choose another "
            "--run-dir, or have owners begin anew with openclaw-rl policy rollback base --user NAME"
        )
    say(f"training.lora does not fit {len(odd)} of {len(told)} owners' policies, which are not trained: {named}")


def _to_train_on(store_path: Path) -> list[PolicyVersion]:
    """Of each owner who has one and is not pinned: the newest candidate, else the version in service."""
    store = Store.open(store_path, migrate=False)
    try:
        pinned, every = store.versions.pinned_owners(), store.versions.all()
    finally:
        store.close()
    found: dict[str, PolicyVersion] = {}
    for state in (VersionState.SERVING, VersionState.CANDIDATE):
        found |= {one.owner: one for one in every if one.state is state and one.owner and one.owner not in pinned}
    return list(found.values())


def _adapter_config(version: PolicyVersion) -> Mapping[str, Any] | None:
    """What PEFT wrote beside an adapter; None where it cannot be read."""
    if version.path is None:
        return None
    try:
        path = weights_of(Path(version.path)).directory / "adapter_config.json"
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _difference(theirs: Mapping[str, Any], own: LoraConfig) -> str | None:
    """The first option in which an adapter differs from the configuration, in words; None where it is alike."""
    if theirs.get("r") != own.rank:
        return f"training.lora.rank = {theirs.get('r')}, not {own.rank}"
    if theirs.get("lora_alpha") != own.alpha:
        return f"training.lora.alpha = {theirs.get('lora_alpha')}, not {own.alpha:g}"
    modules = theirs.get("target_modules")
    if isinstance(modules, list) and _last_parts(modules) != _last_parts(own.target_modules):
        return f"training.lora.target_modules = {', '.join(sorted(modules))}"
    return None


def _refused(theirs: Mapping[str, Any], config: Config) -> bool:
    """Whether the engine is a vLLM or SGLang that is started here, for `training.lora`, and will not load this."""
    engine, own = config.engine, config.training.lora
    if engine.kind not in SERVERS or engine.urls:
        return False
    others = {word.partition("=")[0] for word in engine.extra_args}  # what a person says overrides ours
    rank, modules = theirs.get("r"), theirs.get("target_modules")
    most = allowed_rank(own.rank) if engine.kind == "vllm" else own.rank
    if isinstance(rank, int) and rank > most and "--max-lora-rank" not in others:
        return True
    if not isinstance(modules, list):
        return False
    if engine.kind == "vllm":  # `check_modules`
        return not set(modules) <= set(own.target_modules)
    return "--lora-target-modules" not in others and not ready_modules(modules) <= ready_modules(own.target_modules)


def _last_parts(modules: Iterable[str]) -> set[str]:
    """Of layers' names: PEFT may have shortened what comes before."""
    return {name.rsplit(".", 1)[-1] for name in modules}
