"""`python -m benchmarks.crash`: exit code 0 if nothing was lost and nothing trained twice, 1 if anything is amiss."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.crash import report
from benchmarks.crash.killer import Kill
from benchmarks.crash.run import Options, crash_test

BAR = 40


class Bar:
    """Progress on standard error: a bar where that is a terminal, else a line every tenth kill."""

    def __init__(self, kills: int) -> None:
        self._kills = kills
        self._started = time.monotonic()

    def __call__(self, kill: Kill, left: int) -> None:
        """Show that one more was done."""
        done = self._kills - left
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        words = f"{done}/{self._kills} kills, {minutes}:{seconds:02d}, last {kill.target} ({kill.hit or 'idle'})"
        if sys.stderr.isatty():
            filled = BAR * done // self._kills
            sys.stderr.write(f"\r\033[K[{'#' * filled}{'.' * (BAR - filled)}] {words}" + ("" if left else "\n"))
        elif done % 10 == 0 or not left:
            sys.stderr.write(words + "\n")
        sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test, print what it showed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="an object in place of the table")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="run there and leave everything; DIR must be new")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="crash-test-"))
    directory.mkdir(parents=True, exist_ok=arguments.keep is None)
    options = Options(kills=arguments.kills, seed=arguments.seed, clients=arguments.clients)
    shown = crash_test(options, directory.absolute(), Bar(arguments.kills))
    print(json.dumps(shown, indent=2) if arguments.json else report.table(shown))
    if shown["amiss"]:
        print(f"everything is left in {directory}", file=sys.stderr)
    elif arguments.keep is None:
        shutil.rmtree(directory)
    print(report.last_line(shown))
    return 1 if shown["amiss"] else 0


if __name__ == "__main__":
    sys.exit(main())
