"""A version's files, looked at before an upstream is asked to read them."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.policy_files import UnreadablePolicy, WeightsKind, reading, verify_manifest, weights_of
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest, UnreadableVersion
from openclaw_rl.types import PolicyVersion


def check_files(version: PolicyVersion) -> None:
    """Return if they are what was written, or lie where only the upstream sees them. Reads every file.

    An upstream knows no manifests: it would serve what a full disk, or a copy that broke off, has left of an adapter.

    Raises:
        InvalidEngineRequest: they are not, or are no adapter.
        UnreadableVersion: the system does not let us read them; they may be sound.
    """
    if version.path is None:
        raise InvalidEngineRequest(f"version {version.version} has no path", param="path")
    path = Path(version.path)
    try:
        with reading(path):
            if not path.exists():
                return
        weights = weights_of(path)
        verify_manifest(weights.directory)
    except UnreadablePolicy as error:
        raise UnreadableVersion(str(error)) from error
    except (OSError, ValueError) as error:
        raise InvalidEngineRequest(f"the version's files cannot be used: {error}", param="path") from error
    if weights.kind is WeightsKind.FULL:
        raise InvalidEngineRequest("an upstream loads adapters, and this version is a whole model", param="path")
