"""Manifests: what a directory on disk holds, with checksums, so that a torn or altered policy never serves.

Shared by the trainer, which writes them, and by whoever loads a version; imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
ADAPTER_DIR = "adapter"
MODEL_DIR = "model"
FORMAT = 1


class CorruptPolicy(ValueError):
    """A directory that is not what its manifest says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a directory holds: relative path to sha256 (hex), and what its writer said about it."""

    files: Mapping[str, str]
    about: Mapping[str, Any]


def sha256_of(path: Path) -> str:
    """The checksum of one file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, about: Mapping[str, Any]) -> Manifest:
    """Describe every file under `directory` in its manifest, and make both durable."""
    manifest = Manifest(files={name: sha256_of(directory / name) for name in _files(directory)}, about=dict(about))
    body = {"format": FORMAT, "about": manifest.about, "files": manifest.files}
    (directory / MANIFEST).write_text(json.dumps(body, indent=1, sort_keys=True), encoding="utf-8")
    for path in [directory / name for name in manifest.files] + [directory / MANIFEST]:
        fsync(path)
    for path in [*(p for p in directory.rglob("*") if p.is_dir()), directory]:
        fsync(path)
    return manifest


def verify_manifest(directory: Path) -> Manifest:
    """Check every file against the manifest.

    Raises:
        CorruptPolicy: if the manifest is missing or unreadable, or a file is missing, changed or not listed.
    """
    try:
        body = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptPolicy(f"{directory} has no readable {MANIFEST}: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CorruptPolicy(f"{directory / MANIFEST} is not of format {FORMAT}")
    manifest = Manifest(files=body["files"], about=body["about"])
    found = set(_files(directory))
    if found != set(manifest.files):
        odd = ", ".join(sorted(found.symmetric_difference(manifest.files)))
        raise CorruptPolicy(f"{directory} differs from its manifest in: {odd}")
    for name, expected in manifest.files.items():
        if sha256_of(directory / name) != expected:
            raise CorruptPolicy(f"{directory / name} is not the file that was written")
    return manifest


def adapter_dir(path: Path) -> Path:
    """The PEFT directory of a version: `path` itself, or the `adapter` in it where `path` is a checkpoint."""
    inner = path / ADAPTER_DIR
    return inner if inner.is_dir() else path


class WeightsKind(StrEnum):
    """What a version's directory holds."""

    LORA = "lora"
    """A PEFT adapter, which lies over the base."""
    FULL = "full"
    """A whole model, in the format of Transformers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version's weights on disk: `directory` is what a loader of that kind takes."""

    kind: WeightsKind
    directory: Path


def weights_of(path: Path) -> Weights:
    """What a version's path holds: an adapter's or a model's directory, or a checkpoint with one of them in it.

    Raises:
        CorruptPolicy: if it holds neither.
    """
    for directory in (path, path / ADAPTER_DIR, path / MODEL_DIR):
        if (directory / "adapter_config.json").is_file():
            return Weights(kind=WeightsKind.LORA, directory=directory)
        if (directory / "config.json").is_file():
            return Weights(kind=WeightsKind.FULL, directory=directory)
    raise CorruptPolicy(f"{path} holds neither an adapter nor a model")


def fsync(path: Path) -> None:
    """Make a file's content, or a directory's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path) -> list[str]:
    """Every file under `directory` but its manifest, as sorted POSIX paths."""
    found = (path for path in directory.rglob("*") if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name != MANIFEST)
