"""What is wrong with one owner's directory of checkpoints, as against what is everybody's.

Only for the first is one owner put off. Put off for what is everybody's, each would be tried in its turn, one after
the other without a pause, and `status` would name the directory of one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from openclaw_rl.training.checkpoint import make_durably
from openclaw_rl.training.own_steps import root_of
from openclaw_rl.training.put_off import PutOff

_OF_ONE_DIRECTORY = (PermissionError, NotADirectoryError, FileExistsError)


class Directories:
    """Where checkpoints are written; an owner whose directory does not let it is put off."""

    def __init__(self, checkpoints: Path, put_off: PutOff) -> None:
        """`checkpoints`: the directory of the shared policy's, in which those of all owners are."""
        self._checkpoints = checkpoints
        self._put_off = put_off

    def root(self, owner: str) -> Path:
        """An owner's; "" is the shared policy."""
        return root_of(self._checkpoints, owner)

    def usable(self, owner: str) -> bool:
        """Whether a checkpoint could be written: else no step is to be computed, and a held batch to be left held.

        The shared policy's is not looked at: nobody has a turn meanwhile, and what fails is waited for.

        Raises:
            OSError: nobody's could.
        """
        try:
            if owner:
                check_writable(self.root(owner))
        except OSError as error:
            self.leave_alone(owner, error)
            return False
        return True

    def leave_alone(self, owner: str, error: OSError) -> None:
        """Put an owner off by an error over what was written; raise it where it is everybody's."""
        if not owner or not is_of_one_owner(error, self.root(owner)):
            raise error
        self._put_off.leave_alone(owner, f"{error.filename} to be writable ({error.strerror})", error)


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
