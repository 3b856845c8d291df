"""`openclaw-rl judge`: try the configured judge on labelled cases, or judge stored turns once more."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw_rl.cli_store import store_of
from openclaw_rl.config import Config
from openclaw_rl.config_sources import (
    ConfigError,
    Setting,
    from_environment,
    from_flags,
    from_toml,
    from_tree,
    resolve,
)
from openclaw_rl.supervision.state import child_config_path, read_state

if TYPE_CHECKING:
    from openclaw_rl.judging.base import Judge
    from openclaw_rl.judging.evaluate import Agreement, Evaluation
    from openclaw_rl.judging.replay import Replayed

OK, FAILED = 0, 1
SHOWN_MISSES = 20
MAX_REPLAYED = 10_000
_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)")

T = TypeVar("T")


def add_judge(commands: Any, command: Callable[..., argparse.ArgumentParser], configure: Callable[..., None]) -> None:
    """Add `judge try` and `judge replay`; `command` and `configure` are those of the other commands."""
    parser = commands.add_parser("judge", help="try a judge, or judge again", allow_abbrev=False)
    below = parser.add_subparsers(dest="judge_command", required=True, metavar="COMMAND")
    trying = command(below, "try", run_try, "run the configured judge over labelled cases")
    trying.add_argument("cases", type=Path, metavar="FILE.jsonl", help="task, output, next_state, score, corrective")
    replaying = command(below, "replay", run_replay, "judge stored turns once more")
    replaying.add_argument("--since", required=True, help="how long ago (2h, 3d), or a date and time")
    replaying.add_argument("--limit", type=int, default=MAX_REPLAYED, help=f"at most so many turns ({MAX_REPLAYED})")
    replaying.add_argument("--no-record", action="store_true", help="show what would come of it, and keep nothing")
    for one in (trying, replaying):
        one.add_argument("--json", action="store_true", help="for programs")
        one.add_argument("--recipe", help="a TOML file, or a name in recipes/")
        configure(one, ("--run-dir", "--custom-rm-path", "--majority-vote-n", "--majority-vote-threshold"))


def run_try(parsed: argparse.Namespace) -> int:
    """`judge try FILE.jsonl`: how often the judge agrees with the labels."""
    from openclaw_rl.judging.cases import InvalidCase, load_cases
    from openclaw_rl.judging.evaluate import evaluate

    config = settle(parsed, ())
    if parsed.dry_run:
        return show(config)
    try:
        cases = load_cases(parsed.cases)
    except OSError as error:
        raise ConfigError(f"{parsed.cases}: {error.strerror or error}") from error
    except InvalidCase as error:
        raise ConfigError(f"{parsed.cases}: {error}") from error
    report = judged_by(config, lambda judge: evaluate(judge, cases, workers=config.judge.workers))
    say(json.dumps(report.to_json(), indent=2, ensure_ascii=False) if parsed.json else render(report))
    return OK


def run_replay(parsed: argparse.Namespace) -> int:
    """`judge replay --since …`: by the deployment's own judge, unless told otherwise."""
    from openclaw_rl.judging.replay import replay

    since = parse_since(parsed.since, time.time())
    if parsed.limit < 1:
        raise ConfigError(f"--limit {parsed.limit}: at least 1")
    run_dir = resolve([*from_environment(os.environ), *from_flags(parsed.settings)]).config.run_dir.expanduser()
    if not child_config_path(run_dir).is_file():
        raise ConfigError(f"no deployment has run in {run_dir}: choose one with --run-dir")
    stored = json.loads(child_config_path(run_dir).read_text(encoding="utf-8"))
    config = settle(parsed, list(from_tree(stored, str(child_config_path(run_dir)))))
    if parsed.dry_run:
        return show(config)
    with store_of(run_dir, config.store_path) as store:
        found = store.replay.judged_since(since, limit=parsed.limit)
        report = judged_by(
            config,
            lambda judge: replay(
                judge,
                found,
                weights=config.judge.signals,
                record=None if parsed.no_record else store.replay.record,
                workers=config.judge.workers,
            ),
        )
    say(json.dumps(report.to_json(), indent=2) if parsed.json else render_replay(report))
    return OK


# --- the judge ---------------------------------------------------------------------------------------------


def settle(parsed: argparse.Namespace, below: Sequence[Setting]) -> Config:
    """The configuration of a command: `below` everything, then its recipe, the environment, and its flags."""
    from openclaw_rl.cli import find_recipe

    recipe = [] if parsed.recipe is None else from_toml(find_recipe(parsed.recipe))
    return resolve([*below, *recipe, *from_environment(os.environ), *from_flags(parsed.settings)]).config


def judged_by(config: Config, work: Callable[[Judge], Awaitable[T]]) -> T:
    """What `work` does with the judge of the configuration, which is closed afterwards.

    Raises:
        ConfigError: if the judge cannot be built, or cannot be asked at all.
    """
    from openclaw_rl.judging.base import JudgeUnavailable
    from openclaw_rl.judging.factory import build_judge

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # they would stand between the lines of the report

    async def go() -> T:
        judge = build_judge(with_running_gateway(config), alone=True)
        try:
            return await work(judge)
        finally:
            await judge.close()

    try:
        return asyncio.run(go())
    except JudgeUnavailable as error:
        raise ConfigError(f"the judge cannot be asked ({error.reason}): {error}") from error


def with_running_gateway(config: Config) -> Config:
    """The configuration with the address and keys of the running deployment, where its own engine is the judge.

    Raises:
        ConfigError: if none runs.
    """
    from openclaw_rl.config_sources import load_json

    if config.judge.kind != "llm" or config.judge.base_url is not None:
        return config
    run_dir = config.run_dir.expanduser()
    state = read_state(run_dir)
    if state is None or not state.alive:
        raise ConfigError(
            f"judge.kind = llm without judge.base_url asks the deployment in {config.run_dir}, and none runs there"
        )
    return config.model_copy(update={"serving": load_json(child_config_path(run_dir)).serving})


def parse_since(text: str, now: float) -> float:
    """The moment that `2h`, `90 min`, `3d` or an ISO date and time (local, unless it says otherwise) means, seconds.

    Raises:
        ConfigError: if it means none.
    """
    duration = _DURATION.fullmatch(text.strip())
    if duration is not None:
        return now - float(duration.group(1)) * _UNITS[duration.group(2)]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"--since {text!r}: say how long ago (2h, 3d), or a date as 2026-01-31T12:00") from None


# --- as text -----------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Tell the person at the terminal."""
    print(text, flush=True)  # noqa: T201


def show(config: Config) -> int:
    """`--dry-run`."""
    from openclaw_rl.config_render import to_toml

    say(to_toml(config).rstrip())
    return OK


def render(report: Evaluation) -> str:
    """The report of `judge try` as lines of text."""
    lines = [
        f"{report.kind} ({report.prompt_version}), {report.overall.cases} cases",
        f"  right        {percent(report.overall.accuracy)} of all, {percent(report.overall.accuracy_signed)} of ±1",
        *(_group(f"in {name}", share) for name, share in report.by_language.items()),
        *(_group(name, share) for name, share in report.by_group.items()),
        f"  hints        precision {percent(report.hint_precision)}, recall {percent(report.hint_recall)}",
        f"  label>said   {tally(report.confusion)}",
        f"  no score     {tally(report.failures) or 'none'}",
    ]
    latency = report.to_json()["latency"]
    if report.latencies_s:
        lines.append(f"  seconds      {latency['median_s']:.2f} median, {latency['max_s']:.2f} at most")
    for number in report.misjudged[:SHOWN_MISSES]:
        lines.append(f"  case {number}: {json.dumps(dict(report.raw_outputs[number]), ensure_ascii=False)}")
    hidden = len(report.misjudged) - SHOWN_MISSES
    return "\n".join([*lines, f"  and {hidden} more: --json shows all"] if hidden > 0 else lines)


def render_replay(report: Replayed) -> str:
    """The report of `judge replay` as lines of text."""
    return "\n".join(
        [
            f"{report.kind} ({report.prompt_version}), {report.turns} turns",
            f"  before>now     {tally(report.verdicts) or 'nothing'}",
            f"  changed        {report.changed}",
            f"  in effect      {report.in_effect}",
            f"  recorded only  {report.recorded_only}",
            f"  no judgement   {tally(report.failures) or 'none'}",
        ]
    )


def percent(share: float | None) -> str:
    """`91 %`, or a dash where there is nothing to share."""
    return "–" if share is None else f"{100 * share:.0f} %"


def tally(counts: Mapping[str, int]) -> str:
    """`-1>1: 2, 1>1: 20`."""
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _group(name: str, share: Agreement) -> str:
    shares = f"{percent(share.accuracy)} of {share.cases}, {percent(share.accuracy_signed)} of ±1"
    return f"  {name:<12} {shares}"
