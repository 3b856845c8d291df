"""What is wrong with one owner's directory of checkpoints, as against what is everybody's.

Only for the first is one owner put off. Put off for what is everybody's, each would be tried in its turn, one after the
other without a pause, and `status` would name the directory of one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from openclaw_rl.training.checkpoint import make_durably

_OF_ONE_DIRECTORY = (PermissionError, NotADirectoryError, FileExistsError)


def check_writable(root: Path) -> None:
    """Find out whether a checkpoint could be written to `root`, an owner's, before a step is computed for it.

    The directory above, in which those of all owners are, comes first: what is wrong there is said of it.

    Raises:
        OSError: it could not; `filename` is the directory.
    """
    for directory in (root.parent, root):
        make_durably(directory)
        if not _may_be_written(directory):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def is_of_one_owner(error: OSError, root: Path) -> bool:
    """Whether an error is one of an owner's directory `root`, or of what is in it, and of nothing else.

    Everybody's are a disk that is full or can only be read, a process that may open no more files or has no more
    memory, and whatever is above.
    """
    of_a_directory = isinstance(error, _OF_ONE_DIRECTORY) or error.errno == errno.EIO
    below = error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(root)
    return of_a_directory and below and _may_be_written(root.parent)


def _may_be_written(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
