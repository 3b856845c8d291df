"""What comes of an exception that code of the user's own raised in the middle of a run: a refusal with a name."""

from __future__ import annotations

import logging
import re

import torch

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import origin
from openclaw_rl.store.outage import Outage, outage_of

log = logging.getLogger(__name__)

MAX_REASON = 46
"""Characters of a reason that still make a counter's name with `samples_rejected_` before them."""
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
_NO_CPU_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
"""What torch says on a CPU, where what it raises is a plain RuntimeError."""
_OF_THE_DISK = frozenset({Outage.DISK_FULL, Outage.IO_ERROR})
"""What passes, whoever meets it. That a file may not be opened, or a database of the user's own is busy, is about the
user's code: no waiting for the record ends it."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on whichever device."""
    return isinstance(error, OUT_OF_MEMORY) or (
        isinstance(error, RuntimeError) and _NO_CPU_MEMORY.search(str(error)) is not None
    )


def refusal(what: str, option: str, error: BaseException) -> str:
    """Why a step is refused in which `what`, the function that `option` names, raised: `evaluation_raised_KeyError`.

    At start-up such a thing is an error of configuration; in a run it may be about this one batch, and training goes
    on with the next. The log has the place; the message, which may quote what users wrote, only at the level DEBUG.

    Raises:
        BaseException: `error`, where it is not about the function: memory ran out, or a disk is full or fails.
    """
    if out_of_memory(error) or (isinstance(error, OSError) and outage_of(error) in _OF_THE_DISK):
        raise error
    log.error("%s raised %s", option, origin(error))
    log.debug("%s raised", option, exc_info=error)
    if isinstance(error, ConfigError):
        return f"{what}_unusable"
    return f"{what}_raised_{type(error).__name__}"[:MAX_REASON]
