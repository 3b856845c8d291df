"""`openclaw-rl status`: what each loop does or waits for and since when, and how far the work has come.

Two witnesses are heard: the loops themselves (the store's `loops` table) and the supervisor (supervisor.json).
A loop that has died cannot say so, and a supervisor does not know what a live one waits for.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy.exc import SQLAlchemyError

from openclaw_rl.config_sources import load_json
from openclaw_rl.rollout.waiting import waiting_samples
from openclaw_rl.store import Store
from openclaw_rl.store.migrations import StoreSchemaError
from openclaw_rl.store.outage import NOT_RECORDED, REFUSED, WORDS, Outage
from openclaw_rl.supervision.bars import bar, rollout_words
from openclaw_rl.supervision.children import START_ORDER
from openclaw_rl.supervision.readiness import RecordHealth, ask_gateway
from openclaw_rl.supervision.state import ChildPhase, ChildState, SupervisorState, child_config_path, read_state
from openclaw_rl.supervision.status_judge import JudgeReport, judge_report
from openclaw_rl.supervision.status_owners import OwnersReport, owners_report
from openclaw_rl.supervision.status_replicas import ReplicaLine, replicas_of
from openclaw_rl.supervision.status_steps import step_warning
from openclaw_rl.types import LoopName, LoopStatus, VersionState

SILENT_AFTER_S = 10.0
"""A loop whose last word is older than this is said to be silent: loops report at least each 2 s, except inside
one long tensor operation."""
REJECTED_SHOWN = 3
"""Rejected versions that are named."""


class Condition(StrEnum):
    """How a loop is."""

    WORKING = "working"
    WAITING = "waiting"
    STARTING = "starting"
    SILENT = "silent"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopReport:
    """One loop: its condition, what it does or waits for in words, and since when (seconds since the epoch)."""

    loop: str
    condition: Condition
    text: str
    since: float | None
    pid: int | None
    restarts: int
    last_exit: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the work has come; `due` says what the next batch waits for."""

    sessions: int
    turns_by_state: Mapping[str, int]
    turns_by_reason: Mapping[str, int]
    judgements: int
    hints: int
    samples_by_state: Mapping[str, int]
    samples_ready: int
    batch_size: int
    due: str
    version: str
    steps: int
    last_step_at: float | None
    last_step_samples: int | None
    side_turns: Mapping[str, int] = field(default_factory=dict)
    signals: Mapping[str, int] = field(default_factory=dict)
    exact_extensions: int = 0
    broken_chains: int = 0
    not_recorded: Mapping[str, int] = field(default_factory=dict)
    """Turns that were served and are not in the record, by reason."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Requests refused because they could not be recorded, by reason (`rollout.on_store_failure`)."""
    judge: JudgeReport | None = None
    owners: OwnersReport | None = None
    """Whose policies there are; None with one for all."""
    samples_rejected: Mapping[str, int] = field(default_factory=dict)
    """Samples that no step could use, or whose step the gate refused, by reason."""
    versions_rejected: tuple[tuple[str, str], ...] = ()
    """The last few versions that never serve, and why."""
    warning: str | None = None
    """What is odd about the version that the last step made; None where nothing is."""
    rollouts: str | None = None
    """How far the rollouts of tasks have come; None where there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusReport:
    """Everything that `status` shows. `running` tells whether a supervisor lives; `url` is for OpenAI clients."""

    run_dir: str
    running: bool
    headline: str
    url: str | None
    loops: tuple[LoopReport, ...]
    progress: Progress | None
    problem: str | None = None
    """Why the record cannot be read, which is where `progress` and what the loops say of themselves come from."""
    record: RecordHealth | None = None
    """What the gateway says of the record; None where no gateway answers."""
    replicas: tuple[ReplicaLine, ...] = ()
    """The engine's replicas, as the gateway sees them; none where there is one engine."""

    def to_json(self) -> dict[str, Any]:
        """The same, in JSON's types."""
        return asdict(self)


def collect(run_dir: Path, now: float | None = None) -> StatusReport:
    """Look at the deployment in `run_dir`, running or not.

    Raises:
        ConfigError: if what a supervisor left there cannot be read.
    """
    moment = time.time() if now is None else now
    where = run_dir.expanduser()
    state = read_state(where)
    store_path = where / "store.sqlite"
    said: Mapping[LoopName, LoopStatus] = {}
    progress, problem = None, None
    if state is not None and store_path.exists():
        try:
            said, progress = _read(store_path, where, moment)
        except StoreSchemaError as error:
            problem = str(error)
        except (SQLAlchemyError, sqlite3.Error) as error:
            reason = str(getattr(error, "orig", None) or type(error).__name__)
            problem = f"the record {store_path} cannot be read: {reason}"
    running = state is not None and state.alive
    record = ask_gateway(state.url) if state is not None and running else None
    loops = () if state is None or not running else tuple(_loops(state, said, moment))
    if problem is not None:
        loops = tuple(_unheard(loop) for loop in loops)
    return StatusReport(
        run_dir=str(run_dir),
        running=running,
        headline=_headline(run_dir, state, moment),
        url=state.url if state is not None and running else None,
        loops=loops,
        progress=progress if progress is None or record is None else _with_unsaved(progress, record),
        problem=problem,
        record=record,
        replicas=replicas_of(said.get(LoopName.GATEWAY)) if running else (),
    )


def _read(store_path: Path, run_dir: Path, now: float) -> tuple[Mapping[LoopName, LoopStatus], Progress]:
    store = Store.open(store_path, migrate=False)
    try:
        said = {status.loop: status for status in store.status.loops()}
        judge = judge_report(store.feedback.agreement(), said.get(LoopName.JUDGING))
        owners = owners_report(store, load_json(child_config_path(run_dir)), now)
        return said, replace(_progress(store, run_dir, now), judge=judge, owners=owners)
    finally:
        store.close()


def _unheard(loop: LoopReport) -> LoopReport:
    """A loop whose own word is in a record that cannot be read: only the supervisor was heard."""
    if loop.condition is not Condition.STARTING:
        return loop
    return replace(loop, condition=Condition.SILENT, text="its process lives; what it says cannot be read")


def _headline(run_dir: Path, state: SupervisorState | None, now: float) -> str:
    # A relative path is shown as one that cannot be taken for an option or a plain word.
    where = run_dir if run_dir.is_absolute() or str(run_dir).startswith("~") else f"./{run_dir}"
    start = f"start one with: openclaw-rl up recipes/combine.toml --run-dir {run_dir}"
    if state is None:
        return f"no deployment in {where}: {start}"
    if state.alive:
        age = duration(now - state.started_at)
        return f"deployment in {where}: {state.phase.value}, {state.url}, supervisor {state.pid}, for {age}"
    if state.phase.value == "stopped":
        return f"no deployment in {where} (the last one was stopped): {start}"
    return f"no deployment in {where} (its supervisor, pid {state.pid}, is gone without a word): {start}"


def _loops(state: SupervisorState, said: Mapping[LoopName, LoopStatus], now: float) -> list[LoopReport]:
    loops = [*START_ORDER, *([LoopName.DRIVER] if LoopName.DRIVER.value in state.children else [])]
    return [assess(loop, state.children.get(loop.value), said.get(loop), now) for loop in loops]


def assess(loop: LoopName, child: ChildState | None, said: LoopStatus | None, now: float) -> LoopReport:
    """Weigh what the supervisor knows of a loop's process against what the loop last said of itself."""
    condition, text, since = _condition(child, said, now)
    pid = child.pid if child is not None else said.pid if said is not None else None
    return LoopReport(
        loop=loop.value,
        condition=condition,
        text=text,
        since=since,
        pid=pid,
        restarts=child.restarts if child is not None else 0,
        last_exit=child.last_exit.words() if child is not None and child.last_exit is not None else None,
    )


def _condition(child: ChildState | None, said: LoopStatus | None, now: float) -> tuple[Condition, str, float | None]:
    if child is not None and child.phase is not ChildPhase.RUNNING:
        ended = child.last_exit.words() if child.last_exit is not None else "not started yet"
        if child.phase is ChildPhase.STOPPED or child.next_start_at is None:
            return Condition.STOPPED, ended, child.since
        wait = max(0.0, child.next_start_at - now)
        return Condition.RESTARTING, f"{ended}, restarting in {wait:.1f} s", child.since
    if child is not None and (said is None or said.pid != child.pid):
        return Condition.STARTING, "starting: it has not reported yet", child.since
    if said is None:
        return Condition.GONE, "never seen", None
    if not psutil.pid_exists(said.pid):
        return Condition.GONE, f"its process ({said.pid}) is gone; it last said: {_words(said)}", said.heartbeat_at
    age = now - said.heartbeat_at
    if age > SILENT_AFTER_S:
        text = f"silent for {duration(age)} (its process lives); it last said: {_words(said)}"
        return Condition.SILENT, text, said.heartbeat_at
    condition = Condition.WORKING if said.waiting_for is None else Condition.WAITING
    return condition, _words(said), said.since


def _words(said: LoopStatus) -> str:
    return said.activity if said.waiting_for is None else f"waiting for {said.waiting_for}"


def _progress(store: Store, run_dir: Path, now: float) -> Progress:
    config = load_json(child_config_path(run_dir))
    counts, waiting, steps = store.status.counts(), waiting_samples(store, config, now), store.samples.steps()
    last = steps[-1] if steps else None
    return Progress(
        sessions=counts.sessions,
        turns_by_state=counts.turns_by_state,
        turns_by_reason=counts.turns_by_reason,
        judgements=counts.judgements,
        hints=counts.hints,
        samples_by_state=counts.samples_by_state,
        samples_ready=waiting.count,
        batch_size=config.rollout.batch_size,
        due=waiting.why,
        version=store.versions.serving().name,
        steps=len(steps),
        last_step_at=last.created_at if last is not None else None,
        last_step_samples=len(last.sample_ids) if last is not None else None,
        side_turns=_counted("side_turns_", counts.counters),
        signals=_counted("signals_", counts.counters),
        exact_extensions=counts.counters.get("prompts_extending_parent", 0),
        broken_chains=counts.counters.get("prompts_breaking_chain", 0),
        not_recorded=_counted(NOT_RECORDED, counts.counters),
        refused=_counted(REFUSED, counts.counters),
        samples_rejected=_counted("samples_rejected_", counts.counters),
        versions_rejected=tuple(
            (version.name, version.reason or "no reason was kept")
            for version in store.versions.all()
            if version.state is VersionState.REJECTED
        )[-REJECTED_SHOWN:],
        warning=step_warning(store, last),
        rollouts=_rollouts(store),
    )


def _rollouts(store: Store) -> str | None:
    counts = store.rollouts.counts()
    if not counts.groups:
        return None
    driver = next((one for one in store.status.loops() if one.loop is LoopName.DRIVER), None)
    wanted = None if driver is None else driver.details.get("groups_wanted")
    return rollout_words(counts.rollouts, counts.groups, wanted)


def _with_unsaved(progress: Progress, record: RecordHealth) -> Progress:
    """The counts with what only the gateway knows as yet."""
    counted = {NOT_RECORDED: Counter(progress.not_recorded), REFUSED: Counter(progress.refused)}
    for prefix, counter in counted.items():
        counter.update(_counted(prefix, record.unsaved))
    return replace(progress, not_recorded=dict(counted[NOT_RECORDED]), refused=dict(counted[REFUSED]))


def _counted(prefix: str, counters: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(prefix): value for name, value in counters.items() if name.startswith(prefix)}


# --- as text -----------------------------------------------------------------------------------------------


def render(report: StatusReport, now: float | None = None) -> str:
    """The report as lines of text: the headline, one line per loop, then the counts."""
    moment = time.time() if now is None else now
    lines = [report.headline]
    if report.problem is not None:
        lines.append(report.problem)
    if report.record is not None and report.record.problem is not None:
        lines.append(_record_line(report.record, moment))
    if report.loops:
        lines.append("")
        lines += [_loop_line(loop, moment) for loop in report.loops]
        lines += [f"  replica   {one.words()}" for one in report.replicas]
    if report.progress is not None:
        lines.append("")
        lines += _progress_lines(report.progress, moment)
    return "\n".join(lines)


def _loop_line(loop: LoopReport, now: float) -> str:
    times = "once" if loop.restarts == 1 else f"{loop.restarts} times"
    restarts = f"  [restarted {times}; before: {loop.last_exit}]" if loop.restarts else ""
    hidden = loop.condition in {Condition.RESTARTING, Condition.STOPPED, Condition.SILENT} or loop.since is None
    since = "" if hidden or loop.since is None else f"  (for {duration(now - loop.since)})"
    return f"  {loop.loop:<9} {loop.text}{since}{restarts if loop.condition is not Condition.RESTARTING else ''}"


def _record_line(record: RecordHealth, now: float) -> str:
    problem = record.problem or ""
    words = WORDS[Outage(problem)] if problem in set(Outage) else problem
    age = f", for {duration(now - record.since)}" if record.since is not None else ""
    lost = _tally({name: number for name, number in record.unsaved.items() if number})
    return f"the record cannot be written: {words}{age}" + (f"; meanwhile {lost}" if lost else "")


def _batch_words(progress: Progress) -> str:
    """What the next batch waits for."""
    if progress.owners is not None:
        return progress.owners.batch()
    return f"{bar(progress.samples_ready, progress.batch_size)}  {progress.due}"


def _progress_lines(progress: Progress, now: float) -> list[str]:
    turns = sum(progress.turns_by_state.values())
    last = "none yet"
    if progress.last_step_at is not None:
        moment = datetime.fromtimestamp(progress.last_step_at).strftime("%H:%M:%S")
        age = duration(now - progress.last_step_at)
        last = f"step {progress.steps}, {progress.last_step_samples} samples, at {moment} ({age} ago)"
    rows = [
        ("sessions", str(progress.sessions)),
        ("turns", f"{turns}  {_tally(progress.turns_by_state)}".rstrip()),
        ("excluded", _tally(progress.turns_by_reason) or "none"),
        ("side", _tally(progress.side_turns) or "none"),
        ("signals", _tally(progress.signals) or "none"),
        ("chains", _chains(progress)),
        ("judged", f"{progress.judgements}, {progress.hints} with a hint"),
        *(("judge", words) for words in (progress.judge.words() if progress.judge is not None else ())),
        ("samples", _tally(progress.samples_by_state) or "none"),
        *(("owners", words) for words in (progress.owners.words() if progress.owners is not None else ())),
        ("batch", _batch_words(progress)),
        *(("rollouts", words) for words in (() if progress.rollouts is None else (progress.rollouts,))),
        ("version", f"{progress.version} in service" + " for nobody's policy" * (progress.owners is not None)),
        ("last step", last),
    ]
    # Only where there were any: a healthy deployment has none of these.
    rows += [("warning", words) for words in (() if progress.warning is None else (progress.warning,))]
    rows += [("rejected", words) for words in _rejections(progress)]
    rows += [("unwritten", f"served and not recorded: {_tally(progress.not_recorded)}")] * bool(progress.not_recorded)
    rows += [("refused", f"not recorded, so not served: {_tally(progress.refused)}")] * bool(progress.refused)
    return [f"  {name:<9} {text}" for name, text in rows]


def _rejections(progress: Progress) -> list[str]:
    versions = ", ".join(f"{name} ({reason})" for name, reason in progress.versions_rejected)
    samples = _tally(progress.samples_rejected)
    return [f"{what}: {words}" for what, words in (("samples", samples), ("versions, the last", versions)) if words]


def _chains(progress: Progress) -> str:
    prompts = progress.exact_extensions + progress.broken_chains
    if not prompts:
        return "no prompt with a parent yet"
    return f"{progress.exact_extensions / prompts:.0%} of {prompts} prompts extend their parent's tokens exactly"


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
