"""A version's files, as they lie on the disk: what they are, and whether they are what was written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from openclaw_rl.policy_files import CorruptPolicy, Weights, verify_manifest, weights_of
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
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


def verify(weights: Weights) -> None:
    """Return if they are whole and unaltered; reads every file.

    Raises:
        InvalidEngineRequest: they are not what was written.
    """
    with _usable_files():
        verify_manifest(weights.directory)


@contextlib.contextmanager
def _usable_files() -> Iterator[None]:
    try:
        yield
    except (CorruptPolicy, OSError) as error:
        raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error
