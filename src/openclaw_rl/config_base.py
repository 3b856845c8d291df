"""What every section of the configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
"""Also of a dropout: at 1 nothing would be left."""
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the tree: immutable, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
