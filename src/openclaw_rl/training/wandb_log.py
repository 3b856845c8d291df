"""Metrics of committed steps to Weights & Biases, for those who have the package: `training.log` names `wandb`.

A small file in the run directory says which run it is and how far it has come, and is brought up to date *before* a
step is logged: so no step is there twice, whatever is killed. A kill in that moment costs W&B that one step; the
store, and the files beside it, have them all.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.metric_names import METRICS
from openclaw_rl.types import StepRecord

logger = logging.getLogger(__name__)

FOLDER = "wandb"
STATE = "openclaw-rl.json"
LETTING_GO_S = 1.0
"""How long the package is waited for after it failed; what takes longer goes on beside."""
CLOSING = 0.5
"""The share of `supervisor.shutdown_timeout_s` within which W&B has to end a run."""


def load_wandb(package: str = "wandb") -> Any:
    """The package, by its name.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "training.log names wandb, and the package is not installed: install the extra `wandb` (docs/12)"
        ) from error


class WandbLog:
    """One W&B run that follows the steps of a store."""

    def __init__(self, config: Config, module: Any) -> None:
        """`module` is the package `wandb`. The run begins with the first step that it lacks.

        Raises:
            ConfigError: the file that says how far it has come is none of ours.
        """
        self._wandb = module
        self._training = config.training
        self._run_dir = config.run_dir
        self._state_path = config.run_dir / FOLDER / STATE
        self._closing_s = CLOSING * config.supervisor.shutdown_timeout_s
        self._run: Any = None
        self._run_id, self._last = _state(self._state_path)

    def follow(self, steps: Sequence[StepRecord], refused: Mapping[int, str | None]) -> int:
        """Log those that are not there, in their order; how many. `refused`: the reasons, by version.

        What W&B refuses is said in the log and tried again after the next step: training does not wait for it, nor
        end by it. What the package raises is of many kinds (its own `Error`, a plain `Exception` where its service
        ended, a broken pipe), and its names for them change. The next try begins with a new service: the run that
        failed may be of one that is no more, and the same run is gone on with by its id.
        """
        new = [step for step in steps if step.step > self._last]
        for done, step in enumerate(new):
            before = self._last
            self._remember(step.step)
            try:
                self._started().log(_values(step, refused.get(step.version)), step=step.step, commit=True)
            except Exception as error:  # noqa: BLE001 - whatever the package raises: all steps are in the store
                logger.warning("W&B did not take step %d (%s)", step.step, type(error).__name__)
                self._remember(before)
                self._let_go()
                return done
        return len(new)

    def close(self) -> None:
        """Let W&B send what it still holds, and mark the run as ended: nobody else does at the end of the process.

        A stop is not to fail by it, nor to take longer than the supervisor waits: it has `CLOSING` of that time.
        """
        run, self._run = self._run, None
        if run is None:
            return
        if not _done_within(self._closing_s, run.finish, "the end of the run"):
            logger.warning("W&B did not take what it still holds within %.1f s", self._closing_s)

    def _let_go(self) -> None:
        """Have the package forget its service: else it would give the run that failed again, over what is dead."""
        self._run = None
        _done_within(LETTING_GO_S, self._wandb.teardown, "the end of its service")

    def _started(self) -> Any:
        """The run, begun or gone on with. It is told no configuration but what metrics are in: paths stay here."""
        if self._run is None:
            self._run = self._wandb.init(
                project=self._training.wandb_project,
                mode=self._training.wandb_mode,
                id=self._run_id,
                resume="allow",
                dir=str(self._run_dir),
                config={"method": self._training.method.value, "units": {one.name: one.unit for one in METRICS}},
            )
        return self._run

    def _remember(self, step: int) -> None:
        self._state_path.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._state_path, json.dumps({"run_id": self._run_id, "last_step": step}) + "\n")
        self._last = step


def _done_within(seconds: float, call: Callable[[], object], what: str) -> bool:
    """Whether a call into the package came to an end in time; else it goes on beside, for as long as we do."""

    def do() -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises: all steps are in the store
            logger.warning("W&B did not take %s (%s)", what, type(error).__name__)

    doing = threading.Thread(target=do, name="wandb-ending", daemon=True)
    doing.start()
    doing.join(seconds)
    return not doing.is_alive()


def _state(path: Path) -> tuple[str, int]:
    """The run's id and the last step that it was given; a new id where there is no file."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return str(tree["run_id"]), int(tree["last_step"])
    except FileNotFoundError:
        return secrets.token_hex(8), 0
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} does not say which W&B run this is: move the file away") from error


def _values(step: StepRecord, refused: str | None) -> dict[str, float]:
    metrics = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
    return {**metrics, "seconds": step.seconds, "refused": float(refused is not None)}
