"""The pool of replicas' processes: what ends it, and what does not."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.replicas.pool import _is_first_life, _mind
from openclaw_rl.supervision.child import EXIT_CONFIGURATION
from openclaw_rl.supervision.children import Backoff, Child
from openclaw_rl.supervision.state import ChildPhase, ChildState, Phase, SupervisorState
from openclaw_rl.types import LoopName

ONCE = """
import pathlib, sys
seen = pathlib.Path(sys.argv[1])
code = 78 if seen.exists() else 1
seen.touch()
sys.exit(code)
"""


def child_of(tmp_path: Path, program: str) -> Child:
    command = [sys.executable, "-c", f"{program}", str(tmp_path / "seen")]
    return Child(LoopName.ENGINE, command, dict(os.environ), tmp_path / "log", Backoff(0.01, 0.01))


def minded(name: str, child: Child, times: int, *, strict: bool = True) -> list[int | None]:
    """Mind it until it has ended so often; its codes."""
    codes: list[int | None] = []
    child.start()
    deadline = time.monotonic() + 30
    while len(codes) < times:
        assert time.monotonic() < deadline
        was = child.state.last_exit
        _mind(name, child, strict=strict)
        if child.state.last_exit is not was and child.state.last_exit is not None:
            codes.append(child.state.last_exit.code)
        time.sleep(0.01)
    return codes


def test_one_that_cannot_be_started_at_all_ends_the_deployment_by_name(tmp_path: Path) -> None:
    fails = child_of(tmp_path, f"import sys; print('no such model'); sys.exit({EXIT_CONFIGURATION})")
    with pytest.raises(ConfigError, match="replica 2: no such model"):
        minded("replica 2", fails, 1)


def test_one_that_ran_before_is_tried_again_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU may fail, a Python be installed anew: that is no reason to end who answers."""
    with caplog.at_level(logging.WARNING):
        assert minded("replica 1", child_of(tmp_path, ONCE), 3) == [1, EXIT_CONFIGURATION, EXIT_CONFIGURATION]
    assert "replica 1" in caplog.text


def test_one_that_may_come_back_as_it_should_be_is_tried_again(tmp_path: Path) -> None:
    """A server of somebody else's, or one of ours where the pool itself was started again."""
    fails = child_of(tmp_path, f"import sys; sys.exit({EXIT_CONFIGURATION})")
    assert minded("http://10.0.0.1:8000", fails, 2, strict=False) == [EXIT_CONFIGURATION] * 2


@pytest.mark.parametrize(("whose", "restarts", "first"), [(0, 0, True), (0, 1, False), (1, 1, True)])
def test_it_is_the_supervisor_that_knows_of_earlier_pools(
    tmp_path: Path, whose: int, restarts: int, first: bool
) -> None:
    """Not that of an earlier deployment, whose word is still there when ours starts its processes."""
    config = Config(run_dir=tmp_path)
    assert _is_first_life(config)
    engine = ChildState(phase=ChildPhase.RUNNING, pid=1, created_at=None, since=0.0, restarts=restarts)
    SupervisorState(
        phase=Phase.READY,
        pid=os.getppid() + whose,
        created_at=0.0,
        started_at=0.0,
        run_dir=str(tmp_path),
        url="",
        engine_url="",
        children={LoopName.ENGINE.value: engine},
    ).write()
    assert _is_first_life(config) == first
