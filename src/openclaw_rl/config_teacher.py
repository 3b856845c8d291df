"""The section `training.teacher` of the configuration tree: who reads the hint, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from openclaw_rl.config_base import Section

KIND_OF = {"version": "frozen", "decay": "average", "path": "model"}
"""Options that mean something for one kind of teacher only."""


class TeacherConfig(Section):
    """Who scores the answer under the hint: what the student is distilled from."""

    kind: Literal["live", "frozen", "average", "model"] = "live"
    """`live`: the policy itself, as it is before each step. `frozen`: one version for good. `average`: a moving
    average of the policy's adapters. `model`: another model with the same vocabulary, kept in memory beside it."""
    version: int | None = Field(default=None, ge=0)
    """kind = frozen: which version; 0 is the base, which is also what is meant where none is named."""
    decay: float | None = Field(default=None, ge=0.0, lt=1.0)
    """kind = average: the weight of the past at each step, 0.9 where none is named."""
    path: str | None = None
    """kind = model: its Hugging Face directory."""
    hint_placement: Literal["user", "system"] = "user"
    """Where the hint is put in: after the last user message of the turn's own context, or as a system note at its
    beginning."""

    @model_validator(mode="after")
    def _options_of_this_kind(self) -> TeacherConfig:
        for name, kind in KIND_OF.items():
            if getattr(self, name) is not None and self.kind != kind:
                raise ValueError(
                    f"training.teacher.{name} is only for training.teacher.kind = {kind}, and it is {self.kind}"
                )
        if self.kind == "model" and self.path is None:
            raise ValueError("training.teacher.kind = model needs training.teacher.path")
        return self
