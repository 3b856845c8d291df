"""Metrics of committed steps in files for other programs: JSON lines, and TensorBoard's events. (W&B: `wandb_log`.)

The record is the store. The files follow it: what of its steps is not yet in a file is appended, after each commit
and at each start, so that every step is in it exactly once, also after a kill. A torn end is cut off first.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.store import Store
from openclaw_rl.training import event_file
from openclaw_rl.training.wandb_log import WandbLog, load_wandb
from openclaw_rl.types import StepRecord, VersionState

log = logging.getLogger(__name__)

SECONDS = "seconds"
"""How long the step took; told beside the metrics of `metric_names`."""


class Format(Protocol):
    """How steps become bytes."""

    def end_and_last_step(self, path: Path) -> tuple[int, int]:
        """Where the whole entries of a file end, in bytes, and the step of the last of them; 0 for none."""
        ...

    def opening(self, first: StepRecord) -> bytes:
        """What an empty file begins with, before its first step."""
        ...

    def entry(self, step: StepRecord, refused: str | None) -> bytes:
        """One step."""
        ...


class JsonLines:
    """An object on a line for each step: its numbers, why it was refused (null: it was not), and its metrics."""

    def end_and_last_step(self, path: Path) -> tuple[int, int]:
        """See `Format`.

        Raises:
            ConfigError: a whole line is none of these objects: another program's file.
        """
        end = last = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                if not line.strip():
                    end += len(line)
                    continue
                try:
                    last = int(json.loads(line)["step"])
                except (ValueError, KeyError, TypeError) as error:
                    raise ConfigError(
                        f"line {number} of {path} is no step of a trainer: move the file away"
                    ) from error
                end += len(line)
        return end, last

    def opening(self, first: StepRecord) -> bytes:
        """Nothing."""
        return b""

    def entry(self, step: StepRecord, refused: str | None) -> bytes:
        """See `Format`."""
        body = {
            "step": step.step,
            "version": step.version,
            "created_at": step.created_at,
            SECONDS: step.seconds,
            "refused": refused,
            "metrics": _finite(step.metrics),
            **({"owner": step.owner} if step.owner else {}),
        }
        return json.dumps(body, allow_nan=False).encode() + b"\n"


class Events:
    """A TensorBoard event for each step, with all its metrics; a refused one has the scalar `refused`, 1, too."""

    def end_and_last_step(self, path: Path) -> tuple[int, int]:
        """See `Format`."""
        end = last = 0
        with path.open("rb") as file:
            for end, payload in event_file.records(file):  # noqa: B007
                last = event_file.step_of(payload)
        return end, last

    def opening(self, first: StepRecord) -> bytes:
        """The format's version."""
        return event_file.record(event_file.first_event(first.created_at))

    def entry(self, step: StepRecord, refused: str | None) -> bytes:
        """See `Format`."""
        values = {**_finite(step.metrics), SECONDS: step.seconds, "refused": float(refused is not None)}
        return event_file.record(event_file.scalars_event(step.step, step.created_at, values))


class MetricFile:
    """One file that follows the steps of a store."""

    def __init__(self, path: Path, form: Format) -> None:
        """Find out what is in it already."""
        self.path = path
        self._format = form
        self._end, self._last = self._found()

    def follow(self, steps: Sequence[StepRecord], refused: Mapping[int, str | None]) -> int:
        """Append those that are not in it, in their order; how many. `refused`: the reasons, by version.

        Where somebody removed or cut the file meanwhile, what it lacks by now is appended. One that is no trainer's
        any more (its front was cut off, in the middle of a line) is left alone, and said each time: a start refuses
        it, and a step that is committed is no moment to end.
        """
        if self._size() < self._end:
            try:
                self._end, self._last = self._found()
            except ConfigError as error:
                log.error("steps are not written to it: %s", error)
                return 0
        new = [step for step in steps if step.step > self._last]
        if not new:
            return 0
        opening = b"" if self._end else self._format.opening(new[0])
        entries = [self._format.entry(step, refused.get(step.version)) for step in new]
        self._append(opening + b"".join(entries))
        self._last = new[-1].step
        return len(new)

    def close(self) -> None:
        """Nothing is held open between two steps."""

    def _found(self) -> tuple[int, int]:
        return self._format.end_and_last_step(self.path) if self.path.exists() else (0, 0)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _append(self, data: bytes) -> None:
        """Write after the last whole entry, over whatever a kill or a full disk left there, and make it durable."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(data)


class Follower(Protocol):
    """What is brought up to date with the steps of a store."""

    def follow(self, steps: Sequence[StepRecord], refused: Mapping[int, str | None]) -> int:
        """Take those that it lacks, in their order; how many. `refused`: the reasons, by version."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


def metric_files(config: Config) -> list[Follower]:
    """What `training.log` names, as far as it was written.

    Raises:
        ConfigError: `wandb` is named and not installed, or a file is another program's.
    """
    places: dict[str, tuple[Path, Format]] = {
        "jsonl": (config.run_dir / "metrics.jsonl", JsonLines()),
        "tensorboard": (config.run_dir / "tensorboard" / "events.out.tfevents.0.openclaw-rl", Events()),
    }
    kinds = dict.fromkeys(config.training.log)
    files: list[Follower] = [MetricFile(*places[kind]) for kind in kinds if kind in places]
    return [*files, WandbLog(config, load_wandb())] if "wandb" in kinds else files


class MetricFiles:
    """All of them at once; as a context, closed at its end, each whatever comes of the others."""

    def __init__(self, files: Sequence[Follower]) -> None:
        """`files`: those of `metric_files`."""
        self._files = files
        self._closing = ExitStack()
        for file in files:
            self._closing.callback(file.close)

    def follow(self, store: Store) -> None:
        """Bring the files up to what is committed."""
        steps = store.samples.steps()
        refused = {v.version: v.reason for v in store.versions.all() if v.state is VersionState.REJECTED}
        for file in self._files:
            file.follow(steps, refused)

    def __enter__(self) -> MetricFiles:
        """Nothing is opened before there is something to write."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close them, also where something was raised."""
        self._closing.close()


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
