"""What the disk said, where a library that writes files said it in words of its own.

`safetensors`, `tokenizers` and `torch.save` meet a full disk as everybody does, and raise what is no `OSError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.store.outage import outage_of

_OF_RUST = re.compile(r"\(os error (\d+)\)")
"""How the standard library of Rust ends what it says of an error of the system."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever writes `path`.

    Raises:
        OSError: the disk cannot be written for now, whichever library met it; all other errors are as they were.
    """
    try:
        yield
    except Exception as error:
        number = _system_error(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _system_error(error: BaseException) -> int | None:
    """The first outage of the disk among an error and what it came of; None where there is none."""
    found: BaseException | None = error
    while found is not None:
        said = _OF_RUST.search(str(found))
        number = found.errno if isinstance(found, OSError) else int(said[1]) if said else None
        if number is not None and outage_of(OSError(number, "")) is not None:
            return number
        found = found.__cause__ or found.__context__
    return None
