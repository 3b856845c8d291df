"""A version's files, as they lie on the disk: what they are, and whether they are what was written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from openclaw_rl.policy_files import UnreadablePolicy, Weights, WeightsKind, verify_manifest, weights_of
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest, UnreadableVersion
from openclaw_rl.types import PolicyVersion


def version_weights(version: PolicyVersion) -> Weights:
    """What a version is, and where.

    Raises:
        InvalidEngineRequest: it has no path, or there is nothing.
    """
    if version.path is None:
        raise InvalidEngineRequest(f"version {version.version} has no path", param="path")
    with _usable_files():
        return weights_of(Path(version.path).absolute())


def verify(weights: Weights, modules: Collection[str] | None) -> None:
    """Return if they are whole and unaltered; reads every file. `modules`: what an adapter may change; None: all.

    Raises:
        InvalidEngineRequest: they are not what was written, or vLLM would leave out a part of it.
    """
    with _usable_files():
        verify_manifest(weights.directory)
    if modules is not None and weights.kind is WeightsKind.LORA:
        check_modules(weights.directory, modules)


def check_modules(directory: Path, served: Collection[str]) -> None:
    """Return if an adapter changes no other modules than those that vLLM was started for: it would leave them out.

    Raises:
        InvalidEngineRequest: naming them.
    """
    with _usable_files():
        changed = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8")).get("target_modules")
    beyond = {changed} if isinstance(changed, str) else set(changed or ())
    beyond -= set(served)
    if beyond:
        names = ", ".join(sorted(beyond))
        message = f"the adapter changes {names}, and vLLM was started for {', '.join(served)} only"
        raise InvalidEngineRequest(f"{message} (training.lora.target_modules)", param="path")


@contextlib.contextmanager
def _usable_files() -> Iterator[None]:
    try:
        yield
    except UnreadablePolicy as error:  # they may be sound
        raise UnreadableVersion(str(error)) from error
    except (OSError, ValueError) as error:
        raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error
