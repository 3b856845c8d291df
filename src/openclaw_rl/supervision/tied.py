"""Becomes another program, which ends with its parent.

    python -m openclaw_rl.supervision.tied PARENT_PID [NAME=]... -- COMMAND...

For programs that are not ours and cannot tie themselves. The tie outlives the exec, and kills: a program that took
its time over ending would hold the port that its successor needs. What it starts in its turn is its own affair. Each
`NAME=` is a variable that the program shall not see: our own Python needs it to get here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from openclaw_rl.supervision.process import die_with_parent

EXIT_USAGE = 2
EXIT_NOT_FOUND = 127
"""What shells say of a command that is not there."""


def tied_command(parent_pid: int, command: Sequence[str], *, without: Sequence[str] = ()) -> list[str]:
    """What runs `command`, without some variables, until the process with `parent_pid`, which starts it, ends."""
    unset = [f"{name}=" for name in without]
    return [sys.executable, "-m", "openclaw_rl.supervision.tied", str(parent_pid), *unset, "--", *command]


def main(argv: Sequence[str]) -> int:
    """Returns only where there is nothing to become."""
    mark = argv.index("--") if "--" in argv else 0
    unset, command = argv[1:mark], list(argv[mark + 1 :])
    if mark < 1 or not command or not argv[0].isdigit() or not all(name.endswith("=") for name in unset):
        sys.stderr.write("usage: python -m openclaw_rl.supervision.tied PARENT_PID [NAME=]... -- COMMAND...\n")
        return EXIT_USAGE
    die_with_parent(int(argv[0]), signal.SIGKILL)
    hidden = {name.removesuffix("=") for name in unset}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
    return EXIT_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
