"""The learning curves of a deployment, from the steps in its store: what `openclaw-rl plot` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from openclaw_rl.evaluation.plot import FAINT, GOOD, INK, MUTED, REWARD, drawable, dress, rolling_mean
from openclaw_rl.types import PolicyVersion, StepRecord, VersionState

REFUSED = "#b3261e"
KL, NATS = "#3d5a98", "#7b4b94"


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """What is drawn of one step; None where it was not measured, and is left out.

    `kl` and `entropy` are of the new weights where the gate read them, else of those before the step. `refused`: why
    its version never served.
    """

    step: int
    reward: float | None
    kl: float | None
    entropy: float | None
    nats_below_told_base: float | None
    refused: str | None


def points_of(steps: Sequence[StepRecord], versions: Sequence[PolicyVersion]) -> list[CurvePoint]:
    """The points of a deployment's steps, in their order."""
    refused = {v.version: v.reason or "rejected" for v in versions if v.state is VersionState.REJECTED}
    return [
        CurvePoint(
            step=step.step,
            reward=step.metrics.get("mean_reward"),
            kl=step.metrics.get("kl_after", step.metrics.get("kl")),
            entropy=step.metrics.get("entropy_after", step.metrics.get("entropy")),
            nats_below_told_base=step.metrics.get("nats_below_told_base"),
            refused=refused.get(step.version),
        )
        for step in steps
    ]


PANELS: tuple[tuple[str, str, Callable[[CurvePoint], float | None]], ...] = (
    ("mean reward", REWARD, lambda point: point.reward),
    ("KL to the base\n(nats per token)", KL, lambda point: point.kl),
    ("entropy\n(nats per token)", GOOD, lambda point: point.entropy),
    ("nats below the\ntold base", NATS, lambda point: point.nats_below_told_base),
)
"""From the top: what the axis says, its colour, and the value."""


def save_curves(points: Sequence[CurvePoint], title: str, path: Path) -> None:
    """Draw one panel below the other over the same steps, refused versions marked in all, into a PNG."""
    figure = Figure(figsize=(9.0, 8.4), dpi=150, layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    figure.suptitle(title, color=INK, fontsize=12, x=0.01, ha="left")
    for axes, (label, colour, value) in zip(panels, PANELS, strict=True):
        _draw(axes, points, [value(point) for point in points], colour)
        axes.set_ylabel(label, color=INK, fontsize=9)
        dress(axes)
        _mark_refused(axes, points, labels=axes is panels[0])
    panels[0].axhline(0.0, color=FAINT, linewidth=0.8)
    panels[-1].set_xlabel("step", color=INK)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.savefig(path, format="png")


def _draw(axes: Axes, points: Sequence[CurvePoint], values: Sequence[float | None], colour: str) -> None:
    """Each step's value as a dot, and their moving mean."""
    present = [(point.step, value) for point, value in zip(points, values, strict=True) if value is not None]
    axes.scatter([step for step, _ in present], [value for _, value in present], s=14, color=colour, alpha=0.4)
    axes.plot([point.step for point in points], drawable(rolling_mean(values)), color=colour, linewidth=2.0)
    if not present:
        axes.annotate("not measured", xy=(0.5, 0.5), xycoords="axes fraction", ha="center", color=MUTED, fontsize=9)


def _mark_refused(axes: Axes, points: Sequence[CurvePoint], *, labels: bool) -> None:
    """A red line at each step whose version never served, with the reason at the top."""
    for point in points:
        if point.refused is None:
            continue
        axes.axvline(point.step, color=REFUSED, linewidth=1.0, linestyle="--", alpha=0.8, zorder=0)
        if labels:
            axes.annotate(
                point.refused,
                xy=(point.step, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=7.5,
                color=REFUSED,
            )
