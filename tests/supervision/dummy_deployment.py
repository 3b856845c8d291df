"""A supervisor with dummy loops, as a process: `python dummy_deployment.py CONFIG`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.supervision.process import stop_event
from openclaw_rl.supervision.state import child_config_path
from openclaw_rl.supervision.supervisor import Supervisor
from openclaw_rl.types import LoopName

DUMMY = Path(__file__).with_name("dummy_loop.py")


def dummy_command(loop: LoopName, config: Config) -> list[str]:
    return [sys.executable, str(DUMMY), loop.value, str(child_config_path(config.run_dir)), str(os.getpid())]


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    stop = stop_event()
    try:
        return Supervisor(load_json(Path(sys.argv[1])), say, command_for=dummy_command).run(stop)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
