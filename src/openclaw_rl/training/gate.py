"""Whether a step's new weights may ever serve: decided before the step commits, from readings that others take.

The readings are taken by `gatekeeper`; here is only what is made of them. Length alone refuses nothing: a preference
may well be a shorter answer. Answers that are far shorter than those of the told base are warned of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.config_gate import GateConfig

NGRAM = 4
PROBES_SKIPPED = "gate_probes_skipped"
"""The name of the metric that says so."""
FAR_SHORTER = 0.25
"""Probe answers with less than this share of the tokens of the base's are warned of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """What was measured of new weights; None where it was not. All but counts are means, nats per token.

    `nats_below_told_base`: how far the new policy's answers lie below the told base's own, both under the told base;
    negative where they are the likelier ones. `nats_below_base`: the same where there is nothing to tell the base.
    `probe_drop`: how much less likely known good answers became than they
    are under the base. `repetition`: a share. `mean_tokens`: of the probe answers; `base_tokens`: of the base's own,
    told or not. `entropy_of_base`: the base's where `entropy` was read. `probes_skipped`: whether there were to be
    probe answers, and no prompt left room for them; None where there were to be none.
    """

    loss: float | None
    weights_finite: bool
    kl_to_base: float | None = None
    kl_to_last: float | None = None
    entropy: float | None = None
    entropy_of_base: float | None = None
    nats_below_told_base: float | None = None
    nats_below_base: float | None = None
    repetition: float | None = None
    mean_tokens: float | None = None
    base_tokens: float | None = None
    probe_drop: float | None = None
    evaluation: float | None = None
    probes_skipped: bool | None = None

    def metrics(self) -> dict[str, float]:
        """What was measured, by the names that a step's metrics have."""
        named = {
            "kl_after": self.kl_to_base,
            "kl_to_last": self.kl_to_last,
            "entropy_after": self.entropy,
            "entropy_of_base": self.entropy_of_base,
            "nats_below_told_base": self.nats_below_told_base,
            "nats_below_base": self.nats_below_base,
            "probe_repetition": self.repetition,
            "probe_tokens": self.mean_tokens,
            "probe_base_tokens": self.base_tokens,
            "probe_drop": self.probe_drop,
            "evaluation": self.evaluation,
            PROBES_SKIPPED: None if self.probes_skipped is None else float(self.probes_skipped),
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One reading against one bound; `reason` is the counter's name.

    `of_base`: the base's own reading. Where that does not keep the bound either, the rule says nothing.
    """

    reason: str
    reading: Callable[[Readings], float | None]
    bound: Callable[[GateConfig], float | None]
    at_most: bool = True
    of_base: Callable[[Readings], float | None] = lambda _: None

    def broken_by(self, readings: Readings, config: GateConfig) -> bool:
        """Whether the reading lies beyond the bound; one that is no number does, one that was not taken does not."""
        value, base, bound = self.reading(readings), self.of_base(readings), self.bound(config)
        if value is None or bound is None:
            return False
        if base is not None and self._beyond(base, bound):
            return False
        return self._beyond(value, bound)

    def _beyond(self, value: float, bound: float) -> bool:
        return not (value <= bound if self.at_most else value >= bound)

    def told(self, readings: Readings, config: GateConfig) -> str:
        """The reason with its figures."""
        beyond = "above" if self.at_most else "below"
        return f"{self.reason}: {self.reading(readings):.3g} is {beyond} the bound of {self.bound(config):g}"


RULES: tuple[Rule, ...] = (
    Rule(reason="kl_to_base", reading=lambda r: r.kl_to_base, bound=lambda c: c.max_kl_to_base),
    Rule(reason="kl_to_last", reading=lambda r: r.kl_to_last, bound=lambda c: c.max_kl_to_last),
    Rule(
        reason="entropy",
        reading=lambda r: r.entropy,
        bound=lambda c: c.min_entropy,
        at_most=False,
        of_base=lambda r: r.entropy_of_base,
    ),
    Rule(
        reason="language",
        reading=lambda r: r.nats_below_told_base,
        bound=lambda c: c.max_nats_below_told_base,
    ),
    Rule(reason="untold_language", reading=lambda r: r.nats_below_base, bound=lambda c: c.max_nats_below_base),
    Rule(reason="repetition", reading=lambda r: r.repetition, bound=lambda c: c.max_repetition),
    Rule(reason="probe_answers", reading=lambda r: r.probe_drop, bound=lambda c: c.max_probe_drop),
    Rule(reason="evaluation", reading=lambda r: r.evaluation, bound=lambda c: c.min_evaluation, at_most=False),
)


def verdict(readings: Readings, config: GateConfig) -> str | None:
    """Why the step is refused, as a counter's name (the first reason found), or None where it passes."""
    if readings.loss is not None and not math.isfinite(readings.loss):
        return "loss_not_finite"
    if not readings.weights_finite:
        return "weights_not_finite"
    return next((rule.reason for rule in RULES if rule.broken_by(readings, config)), None)


def explained(readings: Readings, config: GateConfig) -> str:
    """Every bound that is broken, with its figures, for a log."""
    broken = [rule.told(readings, config) for rule in RULES if rule.broken_by(readings, config)]
    return "; ".join(broken) or "a loss or a weight that is no number"


def far_shorter(mean_tokens: float | None, base_tokens: float | None) -> str | None:
    """A warning, where answers are far shorter than the base's; None where they are not, or were not read."""
    if mean_tokens is None or base_tokens is None or mean_tokens >= FAR_SHORTER * base_tokens:
        return None
    return f"its probe answers have {mean_tokens:.1f} tokens on average, those of the base {base_tokens:.1f}"


def repetition(answers: Sequence[Sequence[int]]) -> float:
    """The share of an answer's 4-grams of tokens that it already held before, over all answers; 0 without any."""
    total = repeated = 0
    for ids in answers:
        grams = [tuple(ids[place : place + NGRAM]) for place in range(len(ids) - NGRAM + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / total if total else 0.0
