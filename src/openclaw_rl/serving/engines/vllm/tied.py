"""`python -m openclaw_rl.serving.engines.vllm.tied PARENT COMMAND...`: become COMMAND, which ends when PARENT ends.

A program of another interpreter cannot call `die_with_parent` itself; the tie holds across `exec`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from openclaw_rl.supervision.process import die_with_parent


def main(arguments: Sequence[str]) -> None:
    """Become the command; does not return."""
    parent, command = int(arguments[0]), list(arguments[1:])
    die_with_parent(parent)
    os.environ.pop("PYTHONPATH", None)  # ours, which the other interpreter must not see
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
