"""`openclaw-rl demo`: a simulated user talks to a real model, and the model learns what it wants.

Everything that a run does is in `demo_run`, phase by phase; here it is given a deployment, a screen and a report.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console

from openclaw_rl.config import Config, ModelConfig
from openclaw_rl.config_sources import load_json
from openclaw_rl.evaluation.demo_options import DemoOptions, demo_config
from openclaw_rl.evaluation.demo_results import closing_lines, curve_of, failures, gather_report, results_page
from openclaw_rl.evaluation.demo_run import DemoRun
from openclaw_rl.evaluation.held_out import EvaluationFailed
from openclaw_rl.evaluation.ledger import Ledger
from openclaw_rl.evaluation.live_view import LiveView, PhaseProgress, SystemState
from openclaw_rl.evaluation.memory import PeakMemory
from openclaw_rl.evaluation.plot import save_plot
from openclaw_rl.evaluation.report import DemoReport
from openclaw_rl.evaluation.system_view import judge_scores, read_system_state
from openclaw_rl.serving.engines.factory import connect
from openclaw_rl.serving.engines.protocol import EngineError
from openclaw_rl.store import Store
from openclaw_rl.supervision.deployment import Deployment, DeploymentError
from openclaw_rl.supervision.state import child_config_path

__all__ = ["DemoOptions", "main"]

INTERRUPTED = 130


class DemoFailed(RuntimeError):
    """The demo could not come to its end; the message is a sentence for the person who started it."""


def main(options: DemoOptions) -> int:
    """Run the demo; the exit code: 0, 1 with a sentence on standard error if something failed, 130 on Ctrl-C.

    Raises:
        ConfigError: if the options make no configuration that can be used.
    """
    console = Console()
    try:
        return Demo(options, demo_config(options, os.environ), console).run()
    except DemoFailed as error:
        Console(stderr=True).print(f"openclaw-rl demo: {error}", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("openclaw-rl demo: interrupted; all loops were ended", highlight=False)
        return INTERRUPTED


class Demo:
    """One run with everything around it."""

    def __init__(self, options: DemoOptions, config: Config, console: Console) -> None:
        self._options = options
        self._config = config
        self._console = console
        self._ledger = Ledger()
        self._phase = PhaseProgress()
        self._store: Store | None = None
        self._plot_path = options.plot or config.run_dir / "learning.png"
        self._title = (
            f"openclaw-rl demo: {config.model.path} learns from a user who likes {options.preference} answers "
            f"({config.training.method}, seed {options.seed})"
        )

    def run(self) -> int:
        """Prepare, run all phases, and tell what came of it.

        A run that could not come to its end is reported as far as it came.

        Raises:
            DemoFailed: if it could not even begin.
        """
        problem: Exception | None = None
        with PeakMemory() as memory, self._view():
            self._prepare_model()
            self._phase.start("starting the loops")
            try:
                with Deployment(self._config) as deployment:
                    self._store = Store.open(self._config.store_path)
                    run = self._phases(deployment, self._store)
                    try:
                        asyncio.run(run.run_and_close())
                    except (DeploymentError, EvaluationFailed, EngineError) as error:
                        problem = error
                    report = self._report(run, deployment, memory)
            except (DeploymentError, OSError) as error:
                raise DemoFailed(str(error)) from error
            finally:
                if self._store is not None:
                    self._store.close()
        return self._tell(report, run, problem)

    def _view(self) -> LiveView:
        """The live page, or plain lines where there is no terminal."""
        live = self._options.live if self._options.live is not None else sys.stdout.isatty()
        opening = f"{self._title}\nEverything of this run goes to {self._config.run_dir}"
        self._console.print(opening, markup=False, highlight=False, soft_wrap=True)
        return LiveView(
            self._console, self._ledger, self._phase, self._read_state, title="openclaw-rl demo", plain=not live
        )

    def _read_state(self) -> SystemState | None:
        """The system's figures for the view, once there is a store."""
        return None if self._store is None else read_system_state(self._store, self._config)

    def _prepare_model(self) -> None:
        """Have the model on disk, converted if need be; in a process of its own, whose memory goes with it.

        Raises:
            DemoFailed: if there is no such model.
        """
        model = self._config.model
        there = model.path != "smollm2" or any(model.cache_dir.expanduser().glob("*/model.safetensors"))
        if self._config.engine.kind == "scripted" or there:
            return  # the loops open it themselves, and say so if they cannot
        self._phase.start("preparing the model (once)")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            problem = pool.submit(_resolve, model).result()
        if problem is not None:
            raise DemoFailed(problem)

    def _phases(self, deployment: Deployment, store: Store) -> DemoRun:
        """The run itself, on a deployment that is ready."""
        engine = connect(load_json(child_config_path(deployment.config.run_dir)))  # with the port that was taken
        return DemoRun(self._options, self._config, deployment, store, engine, self._ledger, self._phase)

    def _report(self, run: DemoRun, deployment: Deployment, memory: PeakMemory) -> DemoReport:
        """All figures, while the deployment is still there to be asked."""
        assert self._store is not None
        report = gather_report(
            self._options,
            self._config,
            self._store,
            self._ledger,
            run.results,
            seconds=time.time() - self._phase.started_at,
            peak_memory_gib=memory.gib,
            restarts={name: child.restarts for name, child in deployment.state.children.items()},
            plot=self._plot_path,
        )
        curve = curve_of(self._title, self._ledger, judge_scores(self._store), run.results)
        save_plot(curve, self._plot_path)
        self._ledger.write(self._config.run_dir / "ledger.jsonl")
        if self._options.report is not None:
            report.write(self._options.report)
        return report

    def _tell(self, report: DemoReport, run: DemoRun, problem: Exception | None) -> int:
        """Show what came of the run; the exit code."""
        say = self._console.print
        say(results_page(report, run.results))
        for line in closing_lines(report, run.results):
            say(line, markup=False, highlight=False, soft_wrap=True)
        found = failures(report, self._options)
        if problem is not None:
            found.insert(0, f"The run stopped early: {problem}")
        for sentence in found:
            Console(stderr=True).print(f"openclaw-rl demo: {sentence}", markup=False, highlight=False, soft_wrap=True)
        return 1 if found else 0


def _resolve(config: ModelConfig) -> str | None:
    """Have the model's directory made; the problem in words, or None. Runs in a process of its own."""
    from openclaw_rl.model_paths import ModelNotFound
    from openclaw_rl.models import resolve_model

    try:
        resolve_model(config)
    except (ModelNotFound, OSError) as error:
        return str(error)
    return None
