"""What the run showed: for people a table and sentences, for programs an object; the last line is for both."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.crash.killer import Kill
from benchmarks.crash.plan import Target
from benchmarks.crash.verify import Findings

SHOWN = 10


def figures(kills: Sequence[Kill], findings: Findings, about: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as one object."""
    return {
        "kills": len(kills),
        "lost": len(findings.lost),
        "trained_twice": len(findings.trained_twice),
        "amiss": [*findings.lost, *findings.trained_twice, *findings.other],
        **about,
        "ends_of_accepted_turns": dict(findings.ends.most_common()),
        "processes": {target.value: _of(target, kills) for target in Target},
    }


def _of(target: Target, kills: Sequence[Kill]) -> dict[str, Any]:
    own = [kill for kill in kills if kill.target is target]
    seconds = [kill.worked_after_s for kill in own if kill.worked_after_s is not None]
    return {
        "kills": len(own),
        "while_loading": sum(kill.loading for kill in own),
        "at_work": dict(Counter(str(kill.hit) for kill in own if kill.hit is not None)),
        "median_s_until_it_worked": round(statistics.median(seconds), 1) if seconds else None,
        "longest_s_until_it_worked": round(max(seconds), 1) if seconds else None,
        "killed_again_before": sum(kill.interrupted for kill in own),
    }


def table(shown: Mapping[str, Any]) -> str:
    """The figures for a person."""
    rows = [f"{'':<11}{'kills':>6}{'loading':>9}{'at work':>9}{'median s':>10}{'longest s':>11}   hit"]
    for name, row in shown["processes"].items():
        hits = ", ".join(f"{number} {words}" for words, number in row["at_work"].items())
        numbers = (row["kills"], row["while_loading"], sum(row["at_work"].values()))
        seconds = (_seconds(row["median_s_until_it_worked"]), _seconds(row["longest_s_until_it_worked"]))
        rows.append(f"{name:<11}{'{:>6}{:>9}{:>9}'.format(*numbers)}{'{:>10}{:>11}'.format(*seconds)}   {hits}")
    rows.append("(seconds until it worked again, without those that another kill interrupted)")
    rows += [f"{name.replace('_', ' ')}: {value}" for name, value in shown.items() if name not in _APART]
    problems = shown["amiss"]
    rows += [f"AMISS: {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        rows.append(f"AMISS: and {len(problems) - SHOWN} more")
    return "\n".join(rows)


_APART = frozenset({"kills", "lost", "trained_twice", "amiss", "processes"})


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def last_line(shown: Mapping[str, Any]) -> str:
    """What the run comes to."""
    return f"kills={shown['kills']} lost={shown['lost']} trained_twice={shown['trained_twice']}"
