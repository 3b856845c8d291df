"""The learning curve of one run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

WINDOW = 8
INK = "#1f2933"
FAINT = "#9aa5b1"
MUTED = "#616e7c"
GOOD = "#0b7a75"
REWARD = "#b35c00"


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningCurve:
    """What is drawn. `satisfied[i]` and `rewards[i]` belong to the first answer of interaction i + 1.

    A reward is the judge's score, None where there was none. `version_marks` are (interaction, version) pairs: the
    first interaction that a version answered.
    """

    title: str
    satisfied: Sequence[bool]
    rewards: Sequence[float | None]
    version_marks: Sequence[tuple[int, int]]
    score_before: float | None
    score_after: float | None


def rolling_mean(values: Sequence[float | None], window: int = WINDOW) -> list[float | None]:
    """At each place the mean of the values present among the last `window`; None where none is present."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        present = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return means


def save_plot(curve: LearningCurve, path: Path) -> None:
    """Draw the preference score above and the mean reward below, over the same interactions, into a PNG."""
    figure = Figure(figsize=(9.0, 5.6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(curve.title, color=INK, fontsize=12, x=0.01, ha="left")
    _draw_score(above, curve)
    _draw_reward(below, curve)
    for axes in (above, below):
        dress(axes)
        _mark_versions(axes, curve.version_marks, labels=axes is above)
    below.set_xlabel("questions asked (first answers)", color=INK)
    figure.savefig(path)


def _draw_score(axes: Axes, curve: LearningCurve) -> None:
    """The share of first answers that kept the preference, and the held-out scores as horizontal lines."""
    places = range(1, len(curve.satisfied) + 1)
    values = [1.0 if kept else 0.0 for kept in curve.satisfied]
    axes.scatter(places, values, s=14, color=GOOD, alpha=0.35, linewidths=0, zorder=2)
    axes.plot(places, drawable(rolling_mean(values)), color=GOOD, linewidth=2.2, zorder=3)
    references = (
        # Each label where the curve of a policy that learns is not.
        ("held out, before", curve.score_before, FAINT, ":", 1.0, "right"),
        ("held out, after", curve.score_after, INK, "--", 0.0, "left"),
    )
    for words, value, colour, style, place, side in references:
        if value is None:
            continue
        axes.axhline(value, color=colour, linestyle=style, linewidth=1.2, zorder=1)
        axes.annotate(
            f"{words}: {value:.2f}",
            xy=(place, value),
            xycoords=("axes fraction", "data"),
            xytext=(-4 if side == "right" else 4, 3),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=8.5,
            color=INK if colour == INK else MUTED,
        )
    axes.set_ylim(-0.05, 1.12)
    axes.set_ylabel(f"preference score\n(mean of the last {WINDOW})", color=INK)


def _draw_reward(axes: Axes, curve: LearningCurve) -> None:
    """The judge's score of each first answer, and its moving mean."""
    places = range(1, len(curve.rewards) + 1)
    present = [(place, reward) for place, reward in zip(places, curve.rewards, strict=True) if reward is not None]
    axes.scatter([p for p, _ in present], [r for _, r in present], s=14, color=REWARD, alpha=0.35, linewidths=0)
    axes.plot(places, drawable(rolling_mean(curve.rewards)), color=REWARD, linewidth=2.2)
    axes.axhline(0.0, color=FAINT, linewidth=0.8)
    axes.set_ylim(-1.15, 1.15)
    axes.set_ylabel(f"mean reward\n(judge, last {WINDOW})", color=INK)


def _mark_versions(axes: Axes, marks: Sequence[tuple[int, int]], *, labels: bool) -> None:
    """A thin line where a new version gave its first answer."""
    for place, version in marks:
        axes.axvline(place - 0.5, color=FAINT, linewidth=0.8, alpha=0.7, zorder=0)
        if labels:
            axes.annotate(
                f"v{version}",
                xy=(place - 0.5, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, -9),
                textcoords="offset points",
                fontsize=7.5,
                color=MUTED,
            )


def dress(axes: Axes) -> None:
    """Less ink: no box, light ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.margins(x=0.01)


def drawable(values: Sequence[float | None]) -> list[float]:
    """The same with NaN for what is missing, which leaves a gap in the line."""
    return [float("nan") if value is None else value for value in values]
