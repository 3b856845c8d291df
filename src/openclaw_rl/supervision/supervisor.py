"""`openclaw-rl up`: starts the loops of one deployment as processes, keeps them alive, and ends them in order.

As a module of its own (`python -m openclaw_rl.supervision.supervisor --config FILE`) it is the process behind
`deployment.Deployment`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.serving.engines.check import check_engine
from openclaw_rl.serving.engines.interpreter import check_python
from openclaw_rl.supervision.child import EXIT_CONFIGURATION, EXIT_NO_RESTART, EXIT_USAGE, configure_logging
from openclaw_rl.supervision.children import (
    Backoff,
    Child,
    cpu_count,
    loop_command,
    loop_environment,
    loops_of,
)
from openclaw_rl.supervision.owners_fit import check_owners
from openclaw_rl.supervision.ports import base_url, resolve_ports
from openclaw_rl.supervision.process import TIED_TO_PARENT, die_with_parent, stop_event
from openclaw_rl.supervision.readiness import ReadinessProbe, ready_within_s
from openclaw_rl.supervision.state import (
    Phase,
    RunDirLock,
    SupervisorState,
    child_config_path,
    process_created_at,
    read_state,
    state_path,
)
from openclaw_rl.types import LoopName

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
TELL_AGAIN_S = 1.0
ENGINE_SHARE_OF_SHUTDOWN = 1 / 3
"""The part of the shutdown time kept for the engine, which ends last: streams that are open need it."""

CommandFor = Callable[[LoopName, Config], Sequence[str]]


def prepare(config: Config) -> Config:
    """The tree that the loops run with: an absolute run_dir, real ports, a real number of engine threads.

    Raises:
        ConfigError: if a port cannot be bound.
    """
    engine = config.engine.model_copy(update={"threads": config.engine.threads or max(1, cpu_count() - 1)})
    absolute = config.run_dir.expanduser().absolute()
    return resolve_ports(config.model_copy(update={"run_dir": absolute, "engine": engine}))


class Supervisor:
    """One deployment. `say` gets sentences for the person who started it, `on_ready` the URL for clients."""

    def __init__(
        self,
        config: Config,
        say: Callable[[str], None],
        *,
        on_ready: Callable[[str], None] | None = None,
        command_for: CommandFor = loop_command,
    ) -> None:
        self._requested = config
        self._say = say
        self._on_ready = on_ready
        self._command_for = command_for
        self._run_dir = config.run_dir.expanduser().absolute()
        self._lock = RunDirLock(self._run_dir)
        self._children: list[Child] = []
        self._phase = Phase.STARTING
        self._started_at = time.time()
        self._failure: str | None = None
        self._exit_code = 0
        self._untold = False
        self._tell_again_at = 0.0

    def run(self, stop: threading.Event) -> int:
        """Start the loops and mind them until `stop` is set.

        The exit code: 0; 1 if they were not ready in time; 2 if one of them cannot run with this configuration.

        Call it from the main thread, to which the processes are tied.

        Raises:
            ConfigError: if the engine's Python is not there, the directory is in use or cannot be written, a port
                cannot be bound, the engine lacks what the configuration needs, or no owner's policy fits it; nothing
                was started then.
        """
        check_python(self._requested)  # before there is a directory
        with self._told_of_directory():
            self._run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.acquire()
        try:
            self._end_leftovers()
            self._config = prepare(self._requested)
            self._check_model()
            check_owners(self._config, self._say)
            check_engine(self._config, self._say)
            with self._told_of_directory():
                self._prepare_files()
            try:
                self._start()
                self._mind(stop)
            finally:
                self._shut_down()
        finally:
            self._lock.release()
        if self._failure is not None:
            self._say(self._failure)
        return self._exit_code

    # --- starting ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _told_of_directory(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot use run_dir {self._run_dir}: {error.strerror or error}") from error

    def _end_leftovers(self) -> None:
        """End the loops of a supervisor that was killed, before others are started on their store.

        Where the system ties them to it they have been told already, and must not be told twice: they would drop
        what they are at. They get the time that a shutdown gives them.
        """
        try:
            before = read_state(self._run_dir)
        except ConfigError as error:
            logger.warning("%s; it will be replaced", error)
            return
        left = {} if before is None else {name: child for name, child in before.children.items() if child.alive}
        for child in left.values() if not TIED_TO_PARENT else ():
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + self._requested.supervisor.shutdown_timeout_s
        while any(child.alive for child in left.values()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        for name, child in left.items():
            if child.alive:
                logger.warning("%s of an earlier deployment (pid %s) does not end and is killed", name, child.pid)
                child.send(signal.SIGKILL)

    def _check_model(self) -> None:
        """What was learned belongs to one base: on another of the same shape it would load, and mean nothing."""
        path, checkpoints = child_config_path(self._run_dir), self._config.checkpoints_dir
        if not path.exists() or not checkpoints.is_dir() or not any(checkpoints.iterdir()):
            return
        try:
            before = load_json(path).model.path
        except ConfigError as error:  # of another version of this program, perhaps
            logger.warning("%s: it cannot be told for which model it was", error)
            return
        if _place(before) != _place(self._config.model.path):
            raise ConfigError(
                f"{self._run_dir} has learned on the model {before}, not on {self._config.model.path}: choose "
                f"another directory with --run-dir (if that model was only moved, remove {path} first)"
            )

    def _prepare_files(self) -> None:
        self._config.logs_dir.mkdir(exist_ok=True, mode=0o700)
        write_private_json(self._config, child_config_path(self._run_dir))
        serving, engine = self._config.serving, self._config.engine
        self._gateway_url = base_url(serving.host, serving.port)
        elsewhere = engine.kind == "openai"
        self._engine_url = engine.urls[0] if elsewhere else base_url(engine.host, engine.port)
        settings = self._config.supervisor
        self._children = [
            Child(
                loop,
                self._command_for(loop, self._config),
                loop_environment(loop, self._config, os.environ),
                self._config.logs_dir / f"{loop.value}.log",
                Backoff(settings.restart_backoff_s, settings.max_backoff_s),
            )
            for loop in loops_of(self._config)
        ]

    def _start(self) -> None:
        for child in self._children:
            child.start()
        self._write_state()

    # --- running -------------------------------------------------------------------------------------------

    def _mind(self, stop: threading.Event) -> None:
        probe = ReadinessProbe(self._gateway_url, since=self._started_at)
        probe.start()
        deadline = time.monotonic() + ready_within_s(self._config)
        try:
            while not stop.wait(POLL_INTERVAL_S) and self._failure is None:
                changed = self._reap_and_restart()
                if self._phase is Phase.STARTING:
                    changed |= self._check_ready(probe, deadline)
                if changed or (self._untold and time.monotonic() > self._tell_again_at):
                    self._write_state()
        finally:
            probe.stop()
        if stop.is_set():
            self._say("stopping")

    def _reap_and_restart(self) -> bool:
        changed = False
        for child in self._children:
            ended = child.reap(restart=True)
            if ended is not None:
                changed = True
                self._tell_end(child, ended.words(), fatal=ended.code in EXIT_NO_RESTART)
            changed |= child.start_if_due()
        return changed

    def _tell_end(self, child: Child, words: str, *, fatal: bool) -> None:
        last = child.last_log_line()
        reason = f": {last}" if last else ""
        if fatal:
            child.cancel_restart()
            self._failure = f"{child.loop} cannot run with this configuration{reason}"
            self._exit_code = EXIT_USAGE
            return
        wait = max(0.0, (child.state.next_start_at or 0.0) - time.time())
        self._say(f"{child.loop}: {words}, restarting in {wait:.1f} s ({child.log}{reason})")

    def _check_ready(self, probe: ReadinessProbe, deadline: float) -> bool:
        if probe.ready:
            self._phase = Phase.READY
            self._say(f"ready after {time.time() - self._started_at:.0f} s: {self._gateway_url}/v1")
            if self._on_ready is not None:
                self._on_ready(f"{self._gateway_url}/v1")
            return True
        if time.monotonic() > deadline:
            waited = ready_within_s(self._config)
            self._exit_code = 1
            self._failure = f"not ready after {waited:.0f} s: {probe.last}; see the logs in {self._config.logs_dir}"
        return False

    # --- stopping ------------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        """SIGTERM in reverse order, the engine once nobody asks it for anything any more; SIGKILL at the end.

        The trainer asks it for nothing but to load a version, which the next start does, and may be long in one
        computation: the engine does not wait for it.
        """
        self._phase = Phase.STOPPING
        self._write_state()
        timeout = self._config.supervisor.shutdown_timeout_s
        end = time.monotonic() + timeout
        engine = [child for child in self._children if child.loop is LoopName.ENGINE]
        others = [child for child in reversed(self._children) if child.loop is not LoopName.ENGINE]
        asking = [child for child in others if child.loop is not LoopName.TRAINING]
        self._terminate(others, asking, end - timeout * ENGINE_SHARE_OF_SHUTDOWN)
        self._terminate(engine, self._children, end)
        for child in self._children:
            if child.running:
                logger.warning("%s did not end within %.0f s and is killed", child.loop, timeout)
                child.kill()
                child.reap(restart=False)
        self._phase = Phase.STOPPED
        self._write_state()

    def _terminate(self, children: Sequence[Child], awaited: Sequence[Child], deadline: float) -> None:
        """Ask `children` to end, and wait until all of `awaited` have."""
        for child in children:
            child.cancel_restart()
            child.terminate()
        while any(child.running for child in awaited) and time.monotonic() < deadline:
            for child in self._children:
                child.reap(restart=False)
            time.sleep(POLL_INTERVAL_S / 5)

    # --- telling others ------------------------------------------------------------------------------------

    def _write_state(self) -> None:
        """Tell others how things stand. A full disk must not end what it cannot describe: that is tried again."""
        try:
            self._state_of_things().write()
        except OSError as error:
            if not self._untold:
                self._say(
                    f"cannot write {state_path(self._run_dir)}: {error.strerror or error}; status shows old news"
                )
            self._untold, self._tell_again_at = True, time.monotonic() + TELL_AGAIN_S
        else:
            self._untold = False

    def _state_of_things(self) -> SupervisorState:
        return SupervisorState(
            phase=self._phase,
            pid=os.getpid(),
            created_at=process_created_at(os.getpid()) or self._started_at,
            started_at=self._started_at,
            run_dir=str(self._run_dir),
            url=f"{self._gateway_url}/v1",
            engine_url=self._engine_url,
            children={child.loop.value: child.state for child in self._children},
        )


def _place(model: str) -> str:
    """A model's path as one that can be compared; a name such as `smollm2` is no path, and compares as well."""
    return os.path.realpath(os.path.expanduser(model))


def main(argv: Sequence[str] | None = None) -> int:
    """The supervisor as a process of its own; its sentences go to the log on standard error."""
    parser = argparse.ArgumentParser(prog="openclaw_rl.supervision.supervisor")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    stop = stop_event()
    configure_logging("supervisor")
    try:
        return Supervisor(load_json(arguments.config), logger.info).run(stop)
    except ConfigError as error:
        logger.error("%s", error)
        return EXIT_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
