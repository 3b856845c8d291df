"""A side in a process of its own, so that its peak memory is its own; it takes a step when it is told to."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from benchmarks.training_sides import Limit, Ours, Plain, Side, Task, old_logprobs
from benchmarks.training_trl import Trl

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
"""Processes that have imported all but TRL, and nothing more: importing takes ten seconds and more."""

DEADLINE_S = 3600.0
"""For any one answer of a side: the slowest, the plain loop over a session, takes ten minutes and more here."""

SIDES: dict[str, Callable[[Task], Side]] = {
    "ours": Ours,
    "limit": Limit,
    "plain": Plain,
    "trl_1": lambda task: Trl(task, 1),
    "trl_2": lambda task: Trl(task, 2),
    "trl_one_row": lambda task: Trl(task, 0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One step: its time, and the process's peak memory so far."""

    seconds: float
    peak_mib: float


class SideProcess:
    """A side that was started and is asked by name: `step`, `gradient`. A context: it ends with it."""

    def __init__(self, side: str, task: Task, threads: int) -> None:
        self.name = side
        self._connection, there = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(there, side, task, threads), daemon=True)
        self._process.start()
        there.close()
        self._answer()

    def step(self) -> Measured:
        """Take a step, and say on stderr how it went: a benchmark of many minutes should be seen to go on."""
        measured: Measured = self._ask("step")
        print(f"{self.name}: {measured.seconds:.2f} s, {measured.peak_mib:.0f} MiB", file=sys.stderr, flush=True)
        return measured

    def gradient(self) -> Tensor:
        """The last step's gradient."""
        return torch.from_numpy(self._ask("gradient"))

    def close(self) -> None:
        """End the process and free its memory."""
        self._connection.close()
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, what: str) -> Any:
        self._connection.send(what)
        return self._answer()

    def _answer(self) -> Any:
        """Raises TimeoutError, or EOFError where the process died (its own traceback is on stderr)."""
        if not self._connection.poll(DEADLINE_S):
            raise TimeoutError(f"a side of the benchmark said nothing for {DEADLINE_S:.0f} s")
        return self._connection.recv()


def old_logprobs_apart(task: Task, threads: int) -> list[list[float]]:
    """`old_logprobs`, in a process whose memory is gone afterwards."""
    with CONTEXT.Pool(1, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.apply_async(old_logprobs, (task,)).get(DEADLINE_S)


def _serve(connection: Connection, name: str, task: Task, threads: int) -> None:
    torch.set_num_threads(threads)
    side = SIDES[name](task)
    connection.send("ready")
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if asked == "gradient":
            connection.send(side.gradient().numpy())
            continue
        begin = time.perf_counter()
        side.step()
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        connection.send(Measured(seconds=seconds, peak_mib=peak))
