"""Manifests: what a directory on disk holds, with checksums, so that a torn or altered policy never serves.

Shared by the trainer, which writes them, and by whoever loads a version; imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class UnreadablePolicy(OSError):
    """A file that the system does not let us read. It may be sound: nothing may be concluded about what is in it."""

    def __init__(self, path: Path, error: OSError) -> None:
        """`error`: what the system said."""
        super().__init__(error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        """Which file, and what the system says."""
        return f"{self.filename} cannot be read ({self.strerror})"


_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""A file that is not what was written, as against one that cannot be read."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around whatever reads the file or directory `path`: a file that is missing is another thing than a failure.

    Raises:
        UnreadablePolicy: the system did not let it be read.
    """
    try:
        yield
    except (UnreadablePolicy, *_NOT_THERE):
        raise
    except OSError as error:
        raise UnreadablePolicy(Path(error.filename or path), error) from error


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


def read_manifest(directory: Path) -> Manifest:
    """What the manifest says, no file looked at.

    Raises:
        CorruptPolicy: if it is missing, or no manifest.
        UnreadablePolicy: if the system does not let it be read.
    """
    path = directory / MANIFEST
    try:
        with reading(path):
            body = json.loads(path.read_text(encoding="utf-8"))
    except (*_NOT_THERE, ValueError) as error:
        raise CorruptPolicy(f"{directory} has no readable {MANIFEST}: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CorruptPolicy(f"{path} is not of format {FORMAT}")
    if not all(isinstance(body.get(part), dict) for part in ("files", "about")):
        raise CorruptPolicy(f"{path} says nothing of files")
    return Manifest(files=body["files"], about=body["about"])


def verify_manifest(directory: Path) -> Manifest:
    """Check every file against the manifest.

    Raises:
        CorruptPolicy: if the manifest is missing or none, or a file is missing, changed or not listed.
        UnreadablePolicy: if the system does not let a file be read.
    """
    manifest = read_manifest(directory)
    with reading(directory):
        found = set(_files(directory))
    if found != set(manifest.files):
        odd = ", ".join(sorted(found.symmetric_difference(manifest.files)))
        raise CorruptPolicy(f"{directory} differs from its manifest in: {odd}")
    for name, expected in manifest.files.items():
        path = directory / name
        with reading(path):
            if sha256_of(path) != expected:
                raise CorruptPolicy(f"{path} is not the file that was written")
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
        UnreadablePolicy: if the system does not let us look.
    """
    with reading(path):
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
    """Every file under `directory` but its manifest, as sorted POSIX paths.

    Raises:
        OSError: a directory cannot be listed, which `Path.rglob` would pass over as if there were nothing in it.
    """

    def fail(error: OSError) -> None:
        raise error

    walked = os.walk(directory, onerror=fail)
    found = (path for root, _, names in walked for name in names if (path := Path(root, name)).is_file())
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name != MANIFEST)
