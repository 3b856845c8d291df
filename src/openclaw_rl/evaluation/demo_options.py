"""What a run of the demo is asked to do, and the configuration that follows from it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, Setting, from_environment, from_toml, resolve
from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS
from openclaw_rl.types import GREEDY_BELOW, Method

SOURCE = "openclaw-rl demo"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """The demo's own options. `settings` (from flags) lie over the recipe and the environment.

    `held_out` is the number of held-out questions asked before and after; at most as many as there are. `live`
    None: a live page on a terminal, plain lines elsewhere. `plot` and `report` None: into the run directory, and
    no report. `form_only`: the user minds the form of an answer, not what it says. The last updates are waited for
    until nothing has gone forward for `settle_standstill_s`, and for `settle_limit_s` at most.
    """

    preference: str = "terse"
    form_only: bool = False
    method: Method = Method.COMBINE
    seed: int = 0
    interactions: int = 48
    threads: int = 3
    temperature: float = 0.5
    max_tokens: int = 40
    words_per_second: float = 4.0
    held_out: int = 40
    held_out_parallel: int = 8
    held_out_max_tokens: int = 64
    settle_standstill_s: float = 300.0
    settle_limit_s: float = 3600.0
    request_timeout_s: float = 180.0
    report: Path | None = None
    plot: Path | None = None
    run_dir: Path | None = None
    recipe: Path | None = None
    settings: tuple[Setting, ...] = ()
    live: bool | None = None

    def __post_init__(self) -> None:
        if self.preference not in PREFERENCES:
            raise ConfigError(f"--preference {self.preference}: there are {', '.join(PREFERENCES)}")
        if not 1 <= self.interactions <= len(TRAINING_QUESTIONS):
            raise ConfigError(
                f"--interactions {self.interactions}: at least 1, and at most {len(TRAINING_QUESTIONS)}, "
                "for every interaction has a question of its own"
            )
        if not 1 <= self.held_out <= len(HELD_OUT_QUESTIONS):
            raise ConfigError(f"--held-out {self.held_out}: between 1 and {len(HELD_OUT_QUESTIONS)}")
        for flag, number in (("--threads", self.threads), ("--max-tokens", self.max_tokens)):
            if number < 1:
                raise ConfigError(f"{flag} {number}: at least 1")
        if not GREEDY_BELOW <= self.temperature <= 2.0:
            raise ConfigError(
                f"--temperature {self.temperature}: at least {GREEDY_BELOW} (below it answers are greedy, and not "
                "trained) and at most 2"
            )


def demo_config(options: DemoOptions, environ: Mapping[str, str]) -> Config:
    """The deployment's configuration: the method's recipe, the environment, the flags, and what the demo needs.

    The demo's own choices (a fresh run directory, a free port, the seed) give way to flags.

    Raises:
        ConfigError: if no recipe is found, a source cannot be used, or everybody is to have a policy of their own.
    """
    recipe = options.recipe or find_recipe(f"{options.method.value}.toml")
    chosen = {
        "run_dir": str((options.run_dir or fresh_run_dir(Path("demo-run"))).absolute()),
        "serving.port": 0,
        "training.method": options.method.value,
        "training.seed": options.seed,
    }
    own = [Setting(key=key, value=value, source=SOURCE) for key, value in chosen.items()]
    config = resolve([*from_toml(recipe), *own, *from_environment(environ), *options.settings]).config
    if config.policies.owned:
        raise ConfigError(f"policies.per = {config.policies.per}: the demo has one user, and asks the policy of all")
    return config


def find_recipe(name: str) -> Path:
    """A recipe from `recipes/` beside the sources, or below the working directory.

    Raises:
        ConfigError: if it is in neither.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package.parents[1] / "recipes", package / "recipes", Path.cwd() / "recipes")
    for place in places:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"no recipe {name} in {' or '.join(map(str, places))}")


def fresh_run_dir(parent: Path) -> Path:
    """A directory of its own for this run, created here so that no second run can take it."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        path = parent / f"{stamp}{suffix}"
        try:
            os.makedirs(path)
        except FileExistsError:
            continue
        return path
    raise ConfigError(f"no free run directory below {parent}")
