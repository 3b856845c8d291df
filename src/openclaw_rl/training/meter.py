"""Measurements of a step, added up piece by piece and named once."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from openclaw_rl.training.objective import Terms


class Meter:
    """Sums, weighted means and single values; a mean over nothing is absent, never 0."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._values: dict[str, float] = {}

    def set(self, name: str, value: float) -> None:
        """A value measured once; a second measurement replaces it."""
        self._values[name] = value

    def total(self, name: str, value: float) -> None:
        """Add to a sum."""
        self._values[name] = self._values.get(name, 0.0) + value

    def add(self, name: str, values: Tensor, weights: Tensor) -> None:
        """Add [n] values with [n] weights to a mean."""
        self._sums[name] = self._sums.get(name, 0.0) + float((values.double() * weights.double()).sum())
        self._weights[name] = self._weights.get(name, 0.0) + float(weights.double().sum())

    def add_terms(self, terms: Terms, weights: Tensor, *, same_version: Tensor, first: bool) -> None:
        """A piece of the loss, with the reduction's `weights` [n].

        What is said of the weights before the step, the loss included, is of the `first` pass over the batch; how far
        ratios went is of all passes. `same_version` [n]: tokens that the engine drew from the very weights the
        trainer has now; only there does the gap between the two log-probabilities measure numerics, and not learning.
        """
        acting = (weights > 0).float()
        if first:
            self._add_first(terms, weights, acting)
        self.add("clip_fraction", terms.statistics["clip_fraction"], acting)
        self.add("ratio_mean", terms.statistics["ratio"], acting)
        self._values["ratio_max"] = max(
            self._values.get("ratio_max", 0.0), float((terms.statistics["ratio"] * acting).max())
        )
        self.add("logprob_gap", terms.statistics["gap"], acting * same_version.float())

    def _add_first(self, terms: Terms, weights: Tensor, acting: Tensor) -> None:
        self.total("loss", float((terms.total.detach() * weights).sum()))
        self.total("loss_policy", float((terms.policy.detach() * weights).sum()))
        self.total("loss_opd", float((terms.distillation.detach() * weights).sum()))
        self.total("loss_kl", float((terms.kl.detach() * weights).sum()))
        self.total("loss_entropy", float((terms.entropy.detach() * weights).sum()))
        for name in ("kl", "entropy", "mismatch_weight"):
            if name in terms.statistics:
                self.add(name, terms.statistics[name], acting)

    def means(self) -> Mapping[str, float]:
        """Everything measured."""
        means = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight > 0}
        return {**self._values, **means}
