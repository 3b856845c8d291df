"""Files that the system does not let anybody read: on a disk that fails, or without the right to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FAILING = Path("/proc/self/mem")
"""On Linux, a regular file whose first byte cannot be read: nothing is mapped there, which is an I/O error."""
_NOBODY = 65534


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """In place of a file, one that can be opened and not be read (EIO)."""
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(FAILING)
    try:
        yield
    finally:
        path.unlink()
        path.write_bytes(content)


@contextmanager
def without_rights(path: Path, left: int = 0) -> Iterator[None]:
    """A file that may not be read, or a directory that may not be looked into (EACCES), but for the rights `left`.

    Root may do everything: it is somebody else meanwhile, who may look into the directories above.
    """
    with ExitStack() as undone:
        if os.geteuid() == 0:
            for parent in path.parents:
                _chmod(parent, parent.stat().st_mode & 0o7777 | 0o055, undone)
        _chmod(path, left, undone)
        if os.geteuid() == 0:
            os.seteuid(_NOBODY)
            undone.callback(os.seteuid, 0)
        yield


def open_to_all(directory: Path) -> None:
    """So that whoever `without_rights` makes of this process can go on with what it has there."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)


def _chmod(path: Path, mode: int, undone: ExitStack) -> None:
    before = path.stat().st_mode & 0o7777
    if before != mode:
        undone.callback(path.chmod, before)
        path.chmod(mode)
