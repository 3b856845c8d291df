"""What a person sees while the demo runs: a live page on a terminal, a line now and then elsewhere.

It only reads: the client's ledger, and the store's counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from openclaw_rl.evaluation.ledger import CONVERSATION, Entry, Ledger, preference_score
from openclaw_rl.rollout.batches import samples_words
from openclaw_rl.types import TurnState

PLAIN_INTERVAL_S = 10.0
REFRESH_PER_SECOND = 2.0
STATE_WORDS: Mapping[str, str] = {
    TurnState.SERVED: "just served",
    TurnState.AWAITING_NEXT_STATE: "waiting for what follows",
    TurnState.JUDGING: "being judged",
    TurnState.SAMPLED: "samples",
    TurnState.EXCLUDED: "set aside",
}


@dataclass(kw_only=True, slots=True)
class PhaseProgress:
    """What the demo is doing now. Written by the demo, read by the view; `total` 0: no bar. `counts`: of what."""

    name: str = "starting"
    detail: str = ""
    done: int = 0
    total: int = 0
    counts: str = ""
    started_at: float = field(default_factory=time.time)

    def start(self, name: str) -> None:
        """Begin a phase."""
        self.name, self.detail, self.done, self.total, self.counts = name, "", 0, 0, "answers"

    def advance(self, done: int, total: int) -> None:
        """Say how far the phase is."""
        self.done, self.total = done, total

    @property
    def figures(self) -> str:
        """`3 of 40 answers`; empty where nothing is counted."""
        return f"{self.done} of {self.total} {self.counts}".rstrip() if self.total else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemState:
    """The few figures of the system that are shown."""

    sessions: int = 0
    turns_by_state: Mapping[str, int] = field(default_factory=dict)
    judged: int = 0
    hints: int = 0
    samples_waiting: int = 0
    samples_training: int = 0
    samples_trained: int = 0
    batch_size: int = 0
    version: str = "base"
    steps: int = 0
    trainer: str = ""


class LiveView:
    """Shows the run until the end of the block; on anything but a terminal a plain line each 10 seconds."""

    def __init__(
        self,
        console: Console,
        ledger: Ledger,
        phase: PhaseProgress,
        read_state: Callable[[], SystemState | None],
        *,
        title: str,
        plain: bool,
    ) -> None:
        self._console = console
        self._ledger = ledger
        self._phase = phase
        self._read_state = read_state
        self._title = title
        self._plain = plain
        self._state = SystemState()
        self._read_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._say_lines, name="live-view", daemon=True)
        self._live = Live(
            console=console,
            get_renderable=self.page,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveView:
        if self._plain:
            self._thread.start()
        else:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._plain:
            self._stop.set()
            self._thread.join()
        else:
            self._live.stop()

    def note(self, words: str) -> None:
        """A line that stays."""
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def page(self) -> RenderableType:
        """The whole page."""
        state = self._fresh_state()
        parts: list[RenderableType] = [self._phase_line()]
        if len(self._ledger):
            parts += [Text(), figures_table(self._ledger, state)]
        latest = latest_exchange(self._ledger)
        if latest is not None:
            parts += [Text(), latest]
        return Panel(Group(*parts), title=self._title, title_align="left", border_style="cyan", padding=(1, 2))

    def line(self) -> str:
        """The whole state in one line."""
        state = self._fresh_state()
        phase = self._phase
        progress = f": {phase.figures}" if phase.total else ""
        parts = [f"[{elapsed(phase.started_at)}] {phase.name}{progress}"]
        if phase.detail:
            parts.append(phase.detail)
        if any(entry.purpose in CONVERSATION for entry in self._ledger):
            parts += [
                f"{self._ledger.answers} answers",
                f"{state.judged} judged ({state.hints} hints)",
                samples_words(state.samples_waiting, state.batch_size),
                f"{state.version} after {state.steps} updates",
                f"preference score {share(preference_score(self._ledger.first_answers))}",
            ]
        return " | ".join(parts)

    def _phase_line(self) -> RenderableType:
        """What is going on, for how long, and a bar where the end is known."""
        phase = self._phase
        grid = Table.grid(padding=(0, 2))
        name = Text(phase.name, style="bold cyan")
        cells: list[RenderableType] = [Text(elapsed(phase.started_at), style="bold"), name]
        if phase.total:
            progress = ProgressBar(total=phase.total, completed=phase.done, width=30)
            cells += [progress, Text(phase.figures)]
        if phase.detail:
            cells.append(Text(phase.detail, style="dim"))
        grid.add_row(*cells)
        return grid

    def _fresh_state(self) -> SystemState:
        """The system's state, read at most once a second."""
        if time.monotonic() - self._read_at >= 1.0:
            self._state = self._read_state() or self._state
            self._read_at = time.monotonic()
        return self._state

    def _say_lines(self) -> None:
        """Print a line now and then until told to stop."""
        while not self._stop.wait(PLAIN_INTERVAL_S):
            self.note(self.line())


def figures_table(ledger: Ledger, state: SystemState) -> Table:
    """The figures, in pairs."""
    present = [(state.turns_by_state.get(name, 0), words) for name, words in STATE_WORDS.items()]
    turns = ", ".join(f"{number} {words}" for number, words in present if number)
    samples = samples_words(state.samples_waiting, state.batch_size)
    if state.samples_training:
        samples += f", {state.samples_training} in training"
    score = preference_score(ledger.first_answers)
    rows = [
        ("sessions", f"{state.sessions}"),
        ("conversation", f"{ledger.interactions} questions, {ledger.answers} answers"),
        ("turns", turns or "none yet"),
        ("judged", f"{state.judged}, {state.hints} with a hint"),
        ("samples", f"{samples}, {state.samples_trained} trained"),
        ("in service", f"{state.version} after {state.steps} updates"),
        ("trainer", state.trainer or "-"),
        ("preference score", f"{share(score)} {bar(score)} (the last 16 first answers)"),
    ]
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, words in rows:
        table.add_row(name, Text(words))
    return table


def latest_exchange(ledger: Ledger) -> Table | None:
    """The last answer that the user has read, and what it said to it."""
    read = ledger.select(lambda entry: entry.verdict is not None)
    if not read:
        return None
    entry: Entry = read[-1]
    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("asked", shorten(entry.question))
    table.add_row("answer", Text(shorten(entry.text), style="green" if entry.verdict == 1 else "yellow"))
    if entry.reaction:
        table.add_row("reaction", Text(shorten(entry.reaction), style="italic"))
    return table


def shorten(text: str, limit: int = 160) -> str:
    """One line of at most `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def share(value: float | None) -> str:
    """A share with two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def bar(value: float | None, width: int = 16) -> str:
    """A share as a bar of characters."""
    filled = 0 if value is None else round(value * width)
    return "█" * filled + "░" * (width - filled)


def elapsed(since: float) -> str:
    """Minutes and seconds since then."""
    seconds = int(time.time() - since)
    return f"{seconds // 60}:{seconds % 60:02d}"
