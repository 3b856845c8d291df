"""What every section of the configuration is made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""Hosts that only this machine can reach."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
"""Also of a dropout: at 1 nothing would be left."""
Count = Annotated[int, Field(ge=1)]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_compiles)]
"""A regular expression in Python's syntax, checked at start-up."""


class Section(BaseModel):
    """A part of the tree: immutable, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
