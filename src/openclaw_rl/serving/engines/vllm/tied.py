"""`python -m openclaw_rl.serving.engines.vllm.tied PARENT COMMAND...`: become COMMAND, which ends when PARENT ends.

A program of another interpreter cannot call `die_with_parent` itself; the tie holds across `exec`. All that COMMAND
sees of our sources is the folder `in_vllm`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.supervision.process import die_with_parent

SEEN_BY_VLLM = Path(__file__).resolve().parent / "in_vllm"


def main(arguments: Sequence[str]) -> None:
    """Become the command; does not return."""
    parent, command = int(arguments[0]), list(arguments[1:])
    die_with_parent(parent)
    os.environ["PYTHONPATH"] = str(SEEN_BY_VLLM)  # not ours, which the other interpreter must not see
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
