"""Settings of `[rollout]` about rollouts that nobody asks for: tasks, and the code that goes through them."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from openclaw_rl.config_base import Count, Positive, Section


class TaskSettings(Section):
    """Rollouts of tasks, made by a process of their own, the driver."""

    tasks: Path | None = None
    """A JSONL file of tasks that the driver makes rollouts of; without it, and without rollout_function_path, there
    is no driver."""
    custom_generate_function_path: str | None = None
    """`module:attribute` or `file.py:attribute`: an async function (task, policy) that makes one rollout."""
    rollout_function_path: str | None = None
    """`module:attribute` or `file.py:attribute`: an async generator (tasks, generate, runner) that takes the place of
    our way through the tasks."""
    rollouts_per_task: Count = 4
    """The rollouts of one task are a group: they are trained in one batch, and can be compared with one another."""
    passes: Count = 1
    """How often the driver goes through the tasks."""
    max_parallel_rollouts: Count = 4
    """A further group begins while fewer rollouts than this are going on or waiting for a place."""
    rollout_timeout_s: Positive = 600.0
    """The longest that one rollout may take; then it has failed."""
    rollout_attempts: Count = 3
    """How often a rollout is begun again when the driver was killed in it."""
    reward_range: tuple[float, float] = (-1.0, 1.0)
    """The lowest and the highest reward of a rollout, which count as -1 and 1."""
    judge_steps: bool = False
    """False: each answer of a rollout has its reward. True: the last one has; the others have what the judge makes of
    what followed them (step-wise process rewards)."""

    @property
    def makes_rollouts(self) -> bool:
        """Whether there is a driver."""
        return self.tasks is not None or self.rollout_function_path is not None

    @model_validator(mode="after")
    def _something_to_do(self) -> TaskSettings:
        if self.tasks is not None and not (self.custom_generate_function_path or self.rollout_function_path):
            raise ValueError(
                "rollout.tasks needs rollout.custom_generate_function_path, which says what a good rollout is"
            )
        if self.custom_generate_function_path is not None and not self.makes_rollouts:
            raise ValueError("rollout.custom_generate_function_path needs rollout.tasks, the tasks that it is for")
        if not self.makes_rollouts and (unused := self._changed()):
            raise ValueError(f"{unused[0]} does nothing without rollout.tasks")
        low, high = self.reward_range
        if not low < high:
            raise ValueError("rollout.reward_range begins with the lower of two different numbers")
        return self

    def _changed(self) -> list[str]:
        fields = TaskSettings.model_fields
        return [f"rollout.{name}" for name in fields if getattr(self, name) != fields[name].default]
