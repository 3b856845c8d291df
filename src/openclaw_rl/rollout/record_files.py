"""The files of the conversation records: appended to, rotated, and rewritten only to delete a session.

`conversations.jsonl` is the newest; a full one becomes `conversations.1.jsonl`, the one before it `.2`, and so on.
Whoever touches the files holds the lock beside their directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK_TIMEOUT_S = 30.0
_STEM = "conversations"


class RecordsLocked(RuntimeError):
    """Another process holds the lock of the records."""


class RecordFiles:
    """The records in one directory, which is made with the first line."""

    def __init__(self, directory: Path, *, max_bytes: int = 64 * 2**20, keep: int = 10) -> None:
        """`max_bytes`: a file that would grow beyond is rotated. `keep`: files kept beside the newest."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._keep = keep

    @property
    def current(self) -> Path:
        """The file that grows."""
        return self._file(0)

    def files(self) -> list[Path]:
        """All files, the newest first."""
        numbers = range(len(list(self._directory.glob(f"{_STEM}*.jsonl"))) + self._keep + 1)
        return [path for number in numbers if (path := self._file(number)).is_file()]

    @contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Keep everybody else from the files.

        Raises:
            RecordsLocked: the lock was not to be had within `timeout_s`.
        """
        path = self._directory.with_name(f"{self._directory.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(path))
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout as error:
            raise RecordsLocked(f"the records in {self._directory} are in use by another process") from error
        try:
            yield
        finally:
            lock.release()

    def append(self, lines: Sequence[str]) -> None:
        """Add lines, on disk when this returns; the lock is held by the caller."""
        if not lines:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = "".join(f"{line}\n" for line in lines).encode()
        if self.current.is_file() and self.current.stat().st_size + len(data) > self._max_bytes:
            self._rotate()
        descriptor = os.open(self.current, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> bool:
        """Cut off a last line that a killed writer left without its end; whether there was one."""
        if not self.current.is_file():
            return False
        with self.current.open("r+b") as file:
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if whole == len(data):
                return False
            file.truncate(whole)
            return True

    def newest(self) -> list[dict[str, Any]]:
        """The lines of the two newest files: among them are all that a killed writer may not have accounted for."""
        return [json.loads(line) for path in self.files()[:2] for line in path.read_bytes().splitlines()]

    def without(self, session_ids: Set[str]) -> int:
        """Drop every line of these sessions; how many. The lock is held by the caller."""
        return sum(_rewrite(path, session_ids) for path in self.files())

    def _file(self, number: int) -> Path:
        return self._directory / (f"{_STEM}.{number}.jsonl" if number else f"{_STEM}.jsonl")

    def _rotate(self) -> None:
        for number in range(len(self.files()) - 1, -1, -1):
            path = self._file(number)
            if not path.is_file():
                continue
            if number >= self._keep:
                path.unlink()
            else:
                path.replace(self._file(number + 1))


def _rewrite(path: Path, session_ids: Set[str]) -> int:
    """Drop lines from one file, which is replaced whole if there are any. What is no JSON is a torn line: it goes."""
    kept, dropped = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        if _session_of(line) in session_ids or not line.endswith(b"\n"):
            dropped += 1
        else:
            kept.append(line)
    if dropped:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"".join(kept))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return dropped


def _session_of(line: bytes) -> str | None:
    try:
        return str(json.loads(line)["session_id"])
    except (ValueError, KeyError, TypeError):
        return None
