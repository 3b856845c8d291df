"""From what a run left behind to figures: the report, the tables, the plot, and whether it kept its promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from openclaw_rl.config import Config
from openclaw_rl.evaluation.agreement import judge_agreement
from openclaw_rl.evaluation.demo_options import DemoOptions
from openclaw_rl.evaluation.demo_run import RunResults, checkpoint_of, version_marks
from openclaw_rl.evaluation.gaps import PUBLISH, spans_with_open_stream, token_gaps
from openclaw_rl.evaluation.held_out import HeldOutResult
from openclaw_rl.evaluation.ledger import CONVERSATION, Entry, Ledger, Purpose, lost_turns
from openclaw_rl.evaluation.live_view import share, shorten
from openclaw_rl.evaluation.plot import LearningCurve
from openclaw_rl.evaluation.quality import nats_below
from openclaw_rl.evaluation.report import DemoReport
from openclaw_rl.evaluation.system_view import judge_scores, recorded_answers
from openclaw_rl.store import Store
from openclaw_rl.types import VersionState

SAMPLES_SHOWN = 5
BASE = "base"
NATS_BELOW_TOLD_BASE = "nats_below_told_base"
"""The metric's name (`training.metric_names`)."""


def gather_report(
    options: DemoOptions,
    config: Config,
    store: Store,
    ledger: Ledger,
    results: RunResults,
    *,
    seconds: float,
    peak_memory_gib: float,
    restarts: Mapping[str, int],
    plot: Path | None,
) -> DemoReport:
    """Bring the client's ledger, the store and the scores together."""
    asked = results.asked_after or store.versions.serving()
    checkpoint = checkpoint_of(asked)
    settling = results.settling
    figures = {
        **_scores(results),
        **_judging(ledger, store),
        **_interruptions(ledger, store),
        **_learning(ledger),
        **_gate(store),
    }
    return DemoReport(
        **figures,
        seconds=seconds,
        peak_memory_gib=peak_memory_gib,
        method=config.training.method.value,
        model=config.model.path,
        seed=options.seed,
        checkpoint=None if checkpoint is None else str(checkpoint),
        preference=options.preference,
        form_only=options.form_only,
        held_out_questions=options.held_out,
        restarts=restarts,
        version_after=None if results.asked_after is None else results.asked_after.name,
        version_at_end=store.versions.serving().name,
        settled=settling is not None and settling.settled,
        settle_waited_s=None if settling is None else settling.waited_s,
        settle_standstill_s=None if settling is None else settling.still_s,
        still_pending=() if settling is None else settling.pending,
        run_dir=str(config.run_dir),
        plot=None if plot is None else str(plot),
        phases_s=results.phases_s,
        sample_answers=_sample_answers(results.before, results.after),
    )


def _scores(results: RunResults) -> dict[str, Any]:
    """What the held-out questions say, before and after, and what the base does when told the preference."""
    before, after, told = results.before, results.after, results.told_base
    nats = (results.told_base_nats, results.policy_nats)
    return {
        "score_before": before.score if before else None,
        "score_after": after.score if after else None,
        "topical_before": before.topical if before else None,
        "topical_after": after.topical if after else None,
        "good_and_topical_before": before.good_and_topical if before else None,
        "good_and_topical_after": after.good_and_topical if after else None,
        "told_base_score": told.score if told else None,
        "told_base_topical": told.topical if told else None,
        "told_base_nats_per_token": nats[0],
        "policy_nats_per_token": nats[1],
        "quality_nats_below_told_base": None if nats[0] is None or nats[1] is None else nats_below(nats[0], nats[1]),
    }


def _judging(ledger: Ledger, store: Store) -> dict[str, Any]:
    """How the judge did against the user's own mind, and what became of the turns."""
    agreement = judge_agreement(ledger.verdicts, judge_scores(store))
    counts = store.status.counts()
    return {
        "judge_agreement": agreement.rate,
        "judged": {
            "reactions": agreement.judged,
            "agreed": agreement.agreed,
            "opposed": agreement.opposed,
            "silent": agreement.silent,
        },
        "samples_by_state": counts.samples_by_state,
        "turns_by_state": counts.turns_by_state,
        "excluded_by_reason": counts.turns_by_reason,
        "counters": counts.counters,
        "hints": counts.hints,
    }


def _interruptions(ledger: Ledger, store: Store) -> dict[str, Any]:
    """What the client noticed of training: refusals, broken streams, lost turns, and the longest waits."""
    spans = store.status.spans()
    publishes = [span for span in spans if span.name == PUBLISH]
    streams = ledger.select(_counts_for_gaps)
    gaps = token_gaps((entry.chunk_times for entry in streams), spans)
    asked = ledger.select(lambda entry: entry.purpose in CONVERSATION and entry.turn_id is not None)
    recorded = recorded_answers(store, [str(entry.turn_id) for entry in asked])
    waits = [entry.first_token_s for entry in streams if entry.first_token_s is not None]
    return {
        "refused_requests": ledger.refused_requests,
        "broken_streams": ledger.broken_streams,
        "lost_turns": len(lost_turns(ledger, recorded)),
        "max_token_gap_ms_during_publish": gaps.publish_ms,
        "max_token_gap_ms_during_step": gaps.step_ms,
        "max_token_gap_ms_otherwise": gaps.otherwise_ms,
        "token_gaps_counted": {
            "publish": gaps.publish_count,
            "step": gaps.step_count,
            "otherwise": gaps.otherwise_count,
        },
        "publishes": len(publishes),
        "publishes_with_open_stream": spans_with_open_stream(publishes, _open_times(ledger)),
        "median_first_token_ms": 1000.0 * median(waits) if waits else None,
    }


def _gate(store: Store) -> dict[str, Any]:
    """What the gate read of each version, and what was refused."""
    versions = store.versions.all()
    names = {version.version: version.name for version in versions}
    refused = [version for version in versions if version.state is VersionState.REJECTED]
    return {
        "updates": len(store.samples.steps()) - len(refused),
        "refused_versions": {version.name: version.reason or "unknown" for version in refused},
        "nats_below_told_base_by_version": {
            names[step.version]: step.metrics[NATS_BELOW_TOLD_BASE]
            for step in store.samples.steps()
            if NATS_BELOW_TOLD_BASE in step.metrics
        },
    }


def _learning(ledger: Ledger) -> dict[str, Any]:
    """What the user did, and how often an answer pleased as the run went on."""
    return {
        "interactions": ledger.interactions,
        "answers": ledger.answers,
        "answers_by_attempt": _answers_by_attempt(ledger),
        "preference_score_by_quarter": score_by_part([bool(x.satisfied) for x in ledger.first_answers], 4),
    }


def failures(report: DemoReport, options: DemoOptions) -> list[str]:
    """What went wrong in a run that came to its end, a sentence each; empty when nothing did."""
    found: list[str] = []
    if report.refused_requests:
        found.append(f"{report.refused_requests} requests were refused.")
    if report.broken_streams:
        found.append(f"{report.broken_streams} streams broke.")
    if report.lost_turns:
        found.append(f"{report.lost_turns} answers that the client got are not in the store as it got them.")
    if report.interactions < options.interactions:
        found.append(f"Only {report.interactions} of {options.interactions} interactions took place.")
    trained = report.samples_by_state.get("trained", 0)
    if report.updates == 0 and report.interactions >= 16:
        found.append(f"The policy was never updated ({trained} samples trained).")
    return found


def curve_of(title: str, ledger: Ledger, scores: Mapping[str, float | None], results: RunResults) -> LearningCurve:
    """The learning curve over the first answers, in the order in which they were asked for."""
    firsts = ledger.first_answers
    return LearningCurve(
        title=title,
        satisfied=[bool(entry.satisfied) for entry in firsts],
        rewards=[scores.get(entry.turn_id or "") for entry in firsts],
        version_marks=version_marks(ledger),
        score_before=results.before.score if results.before else None,
        score_after=results.after.score if results.after else None,
    )


def score_by_part(satisfied: Sequence[bool], parts: int) -> tuple[float | None, ...]:
    """The share of answers that were as wished in each of `parts` equal stretches of the run."""
    edges = [round(part * len(satisfied) / parts) for part in range(parts + 1)]
    stretches = [satisfied[start:end] for start, end in pairwise(edges)]
    return tuple(sum(stretch) / len(stretch) if stretch else None for stretch in stretches)


def results_page(report: DemoReport, results: RunResults) -> RenderableType:
    """Before and after: the figures, and some answers side by side."""
    parts: list[RenderableType] = [_score_table(report)]
    if results.before is not None and results.after is not None:
        parts += [Text(), _answers_table(results.before, results.after)]
    return Group(*parts)


def closing_lines(report: DemoReport, results: RunResults) -> list[str]:
    """What a reader wants to know besides the scores, a line each."""
    gaps = [
        "-" if value is None else f"{value:.0f}"
        for value in (
            report.max_token_gap_ms_during_publish,
            report.max_token_gap_ms_during_step,
            report.max_token_gap_ms_otherwise,
        )
    ]
    lines = [
        "",
        f"{report.interactions} interactions, {report.answers} answers, {report.updates} updates "
        f"in {report.seconds:.0f} s; at most {report.peak_memory_gib:.1f} GiB of memory",
        f"judge: {share(report.judge_agreement)} of {report.judged['reactions']} reactions got the user's own sign; "
        f"{report.hints} hints",
        *(f"the gate refused {name}: {reason}" for name, reason in report.refused_versions.items()),
        f"longest wait between two tokens: {gaps[0]} ms during a publish, {gaps[1]} ms during a step, "
        f"{gaps[2]} ms otherwise",
        f"publishes {report.publishes}, under an open stream {report.publishes_with_open_stream}; refused requests "
        f"{report.refused_requests}, broken streams {report.broken_streams}, lost turns {report.lost_turns}",
    ]
    if report.quality_nats_below_told_base is not None:
        lines.append(
            f"language: {report.quality_nats_below_told_base:.2f} nats per token below the told base's own answers"
        )
    if results.settling is not None and not results.settling.settled:
        lines.append(f"not all that was said is learned: the wait was {results.settling.words()}")
    if report.version_after not in (None, report.version_at_end):
        lines.append(
            f'the answers "after" are those of {report.version_after}; by now {report.version_at_end} serves'
        )
    return [*lines, f"plot        {report.plot}", f"checkpoint  {_checkpoint_words(report)}"]


def _checkpoint_words(report: DemoReport) -> str:
    """Where the weights are that the answers "after" came from (of a run that stopped early: those in service)."""
    name = report.version_after or report.version_at_end
    if name == BASE:
        return "none: the base is still in service"
    return f"{report.checkpoint} ({name})" if report.checkpoint else f"none: that of {name} was pruned meanwhile"


def _score_table(report: DemoReport) -> Table:
    table = Table(title=f"{report.held_out_questions} held-out questions, asked greedily", title_justify="left")
    after = "after" if report.version_after is None else f"after ({report.version_after})"
    for heading in ("", "before", after, "base told the preference"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = (
        ("as wished", report.score_before, report.score_after, report.told_base_score),
        ("on topic", report.topical_before, report.topical_after, report.told_base_topical),
        ("as wished and on topic", report.good_and_topical_before, report.good_and_topical_after, None),
        ("nats per token, under the told base", None, report.policy_nats_per_token, report.told_base_nats_per_token),
    )
    for name, *values in rows:
        table.add_row(name, *map(share, values))
    return table


def _answers_table(before: HeldOutResult, after: HeldOutResult) -> Table:
    table = Table(title="The same questions, before and after", title_justify="left", show_lines=True)
    table.add_column("question", ratio=2)
    table.add_column("before", ratio=4)
    table.add_column("after", ratio=4)
    for old, new in list(zip(before.answers, after.answers, strict=True))[:SAMPLES_SHOWN]:
        table.add_row(
            Text(old.question.text),
            Text(shorten(old.text, 240)),
            Text(shorten(new.text, 240), style="green" if new.satisfied else ""),
        )
    return table


def _sample_answers(before: HeldOutResult | None, after: HeldOutResult | None) -> tuple[Mapping[str, Any], ...]:
    """All held-out answers, before and after, for whoever wants to read them."""
    if before is None:
        return ()
    answers: list[Mapping[str, Any]] = []
    for place, old in enumerate(before.answers):
        new = after.answers[place] if after is not None else None
        answers.append(
            {
                "question": old.question.text,
                "before": old.text,
                "after": None if new is None else new.text,
                "as_wished_before": old.satisfied,
                "as_wished_after": None if new is None else new.satisfied,
                "on_topic_before": old.on_topic,
                "on_topic_after": None if new is None else new.on_topic,
            }
        )
    return tuple(answers)


def _counts_for_gaps(entry: Entry) -> bool:
    """Streams of the run itself; the before/after evaluations load the engine in another way."""
    return entry.purpose in CONVERSATION or entry.purpose in {Purpose.BYSTANDER, Purpose.TOLD}


def _open_times(ledger: Ledger) -> list[tuple[float, float]]:
    """(opened, ended) of every stream that came to its end."""
    return [(x.opened_at, x.ended_at) for x in ledger if x.opened_at is not None and x.ended_at is not None]


def _answers_by_attempt(ledger: Ledger) -> Mapping[str, int]:
    """Answers to first tries, to second tries, and to closing words."""
    answered = ledger.select(lambda entry: entry.purpose in CONVERSATION and entry.answered)
    questions = [entry for entry in answered if entry.purpose is Purpose.QUESTION]
    return {
        "first": sum(entry.attempt == 1 for entry in questions),
        "second": sum(entry.attempt == 2 for entry in questions),
        "closing": len(answered) - len(questions),
    }
