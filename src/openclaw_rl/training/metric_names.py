"""Every metric that a step can have: its unit and what it means. One that was not measured is absent, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric; `unit` is `nats`, `share` (0 to 1), `tokens` and the like, `1` for a plain number."""

    name: str
    unit: str
    meaning: str


def _metrics(*rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, unit=unit, meaning=meaning) for name, unit, meaning in rows)


METRICS = _metrics(
    # The batch.
    ("samples", "samples", "in the batch"),
    ("effective_samples", "samples", "of them with a reward or a hint that counts: the denominator of the loss"),
    ("effective_tokens", "tokens", "response tokens of the effective samples"),
    ("opd_share", "share", "of the effective samples that have a hint"),
    ("retries", "samples", "with an accepted retry as a demonstration"),
    ("mean_reward", "reward", "mean score of the samples that have one"),
    ("baseline", "reward", "what rewards were measured against, a mean over them"),
    ("staleness_mean", "versions", "how many versions ago the samples were drawn"),
    ("staleness_max", "versions", "the same of the oldest sample"),
    # The loss: its terms as they were added up, coefficients included. Of the first pass over the batch.
    ("loss", "1", "the sum of the terms below, before the step (the first pass of several)"),
    ("loss_policy", "1", "rewards, and distillation at the sampled token"),
    ("loss_opd", "1", "distillation over the top-k support"),
    ("loss_kl", "1", "the KL to the base, times kl_coef"),
    ("loss_entropy", "1", "the bonus for entropy, negative"),
    ("loss_retry", "1", "accepted retries, times w_retry; part of no other"),
    ("kl", "nats per token", "exact KL to the base, before the step"),
    ("entropy", "nats per token", "of the policy, before the step"),
    ("ratio_mean", "1", "probability of the sampled token now, over that when it was drawn; over all passes"),
    ("ratio_max", "1", "the largest of these"),
    ("clip_fraction", "share", "of the tokens whose ratio was clipped, over all passes"),
    ("mismatch_weight", "1", "mean correction for what engine and trainer differ by"),
    ("logprob_gap", "nats", "mean distance of the trainer's log-probability from the engine's, same version only"),
    # The optimiser.
    ("grad_norm", "1", "Euclidean norm of the gradient, before it is clipped"),
    ("lr", "1", "learning rate: training.lr, times the schedule's share, times the share of a full batch"),
    # What the gate read of the new weights.
    ("kl_after", "nats per token", "exact KL to the base, after the step"),
    ("kl_to_last", "nats per token", "exact KL to the weights before the step"),
    ("entropy_after", "nats per token", "of the policy, after the step"),
    ("entropy_of_base", "nats per token", "of the base, on the answers where entropy_after was read"),
    ("nats_below_told_base", "nats per token", "how far the new answers lie below the told base's, under that base"),
    ("nats_below_base", "nats per token", "the same where no hint says what is wished for: below the base, untold"),
    ("probe_drop", "nats per token", "how much less likely known good answers are than under the base"),
    ("probe_repetition", "share", "of the probe answers' 4-grams that had been there before"),
    ("probe_tokens", "tokens", "mean length of the probe answers"),
    ("probe_base_tokens", "tokens", "the same of those that the base last gave, told the hints if there were any"),
    ("gate_probes_skipped", "steps", "1 where no prompt left room for a probe answer, so that none was read; else 0"),
    ("evaluation", "the user's", "what training.gate.evaluation_path gave"),
)  # fmt: skip

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def table() -> str:
    """All of them as the Markdown table of the documentation."""
    rows = [f"| `{metric.name}` | {metric.unit} | {metric.meaning} |" for metric in METRICS]
    return "\n".join(["| metric | unit | what it is |", "|---|---|---|", *rows])
