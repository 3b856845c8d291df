"""The one loss of all methods, over a piece of the flat row: which terms exist for which tokens, and their sum.

Advantages and losses are pure functions elsewhere; this is where they meet the student's, the teacher's and the
reference's distributions at the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.training import advantages, losses
from openclaw_rl.training.batch import TrainBatch

Distribution = Callable[[Tensor, Tensor], Tensor]
"""Hidden states [n, H] and temperatures [n] to log-probabilities [n, V]: `Scorer.log_distribution`."""

PIECE = 64
"""Response tokens whose distributions exist at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A loss that was computed elsewhere, over all tokens at once, and its gradient at each of them.

    `value` the loss; `slope` [N] its derivative with respect to each token's log-probability, in the flat row.
    """

    value: float
    slope: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What a step knows before its first gradient. Flat rows [N, H] of hidden states, without gradients.

    `reference` is None where the loss has no use for it: then nobody reads it. `teacher` is meaningful only where
    `batch.hint_mask` is; `old` is the student's before the step, filled in during the first pass (and read in later
    ones: in the first the student still is its old self). Where nothing but demonstrations is trained, it is over
    their flat row [M, H], for the gate.

    `reward_advantage` [N]: of each token's answer, 0 where it has no reward. `mean_log_ratio` [N]: of each token's
    answer, filled in before its gradient where the loss has one ratio for each answer (`fill_mean_log_ratio`). The
    three distributions turn the rows of teacher, reference and old student into log-probabilities where that is not
    the student's present head: another model is the teacher, or the head learns. `given`: a custom loss, which takes
    the place of every other term.
    """

    batch: TrainBatch
    reward_advantage: Tensor
    reference: Tensor | None
    teacher: Tensor
    old: Tensor
    mean_log_ratio: Tensor
    given: Given | None = None
    teacher_distribution: Distribution | None = None
    reference_distribution: Distribution | None = None
    old_distribution: Distribution | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms per token, weighted by the loss's coefficients but not yet reduced; all [n]. Statistics are detached."""

    policy: Tensor
    distillation: Tensor
    kl: Tensor
    entropy: Tensor
    statistics: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The sum of the terms: [n]."""
        return self.policy + self.distillation + self.kl + self.entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """n tokens of the flat row: `flat` [n] which, `student` [n, V], `sampled` [n] their own log-probabilities.

    `before` [n] the trainer's own before the step, NaN where nothing asks for it. `engine` [n] what the engine
    recorded (`before`, where it did not). `old` [n] what ratios start from: that, or, where engine and trainer are
    told apart, `before`; `correction` [n] is then what their difference makes a token count.
    """

    flat: Tensor
    student: Tensor
    sampled: Tensor
    targets: Tensor
    temperature: Tensor
    kept: Tensor
    before: Tensor
    engine: Tensor
    old: Tensor
    correction: Tensor


def loss_terms(
    student: Tensor,
    flat: Tensor,
    context: StepContext,
    distribution: Distribution,
    config: LossConfig,
    *,
    first: bool,
) -> Terms:
    """The loss of n tokens, term by term.

    Rewards enter through the sampled token, by the ratio to what drew it, both among the tokens that were kept at
    sampling where it was truncated. (Exact KL, entropy and top-k distillation look at the whole vocabulary.)
    Distillation enters at the sampled token too (`opd_top_k = 0`: one advantage, the sum of both), or per entry of
    the student's top-k support. Either way the teacher is measured against the student before this step, both read by
    the one scorer: against an engine, or weights of long ago, it would teach their difference too. On the support
    that student is also what ratios start from, because engines record the sampled token's probability alone; so it
    is at the sampled token of a reconstructed sample, whose old log-probability is missing (NaN).

    Args:
        student: [n, V] log-probabilities with gradient.
        flat: [n] which tokens of the flat row these are.
        first: whether this is the first pass over the batch.
    """
    piece = _piece(student, flat, context, distribution, config, first=first)
    opd, distillation = _distillation(piece, context, distribution, config, first=first)
    advantage = _advantage(piece, opd, context, config)
    ratio = _ratio(piece, context, config)
    statistics = _statistics(piece, ratio.detach(), advantage, config)
    nothing = kl = torch.zeros_like(piece.sampled)
    if context.reference is not None:
        by = context.reference_distribution or distribution
        kl, exact = _kl(piece, by(context.reference[flat], piece.temperature), config)
        statistics["kl"] = exact.detach()
    if context.given is not None:
        policy = _given_terms(piece, context, context.given)
        return Terms(policy=policy, distillation=nothing, kl=nothing, entropy=nothing, statistics=statistics)
    return Terms(
        policy=_policy(piece, ratio, advantage, context, config),
        distillation=distillation,
        kl=config.kl_coef * kl,
        entropy=-config.entropy_coef * losses.entropy(student) if config.entropy_coef else nothing,
        statistics=statistics,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenReadings:
    """What a custom loss is told of n tokens; all [n], without gradients.

    Log-probabilities of the student now, of `old`, which ratios start from, of the reference and of the teacher (NaN
    where no hint is); the advantage is the sum of the reward's and the distillation's.
    """

    student: Tensor
    old: Tensor
    reference: Tensor
    teacher: Tensor
    advantage: Tensor


def token_readings(
    student: Tensor,
    flat: Tensor,
    context: StepContext,
    distribution: Distribution,
    config: LossConfig,
    *,
    first: bool,
) -> TokenReadings:
    """Read them; arguments as of `loss_terms`. For a custom loss the reference is always there."""
    with torch.no_grad():
        assert context.reference is not None
        piece = _piece(student, flat, context, distribution, config, first=first)
        opd, _ = _distillation(piece, context, distribution, config, first=first)
        reference = (context.reference_distribution or distribution)(context.reference[flat], piece.temperature)
        teacher = torch.full_like(piece.sampled, float("nan"))
        hinted = context.batch.hint_mask[flat].nonzero().squeeze(-1)
        if hinted.numel():
            told = (context.teacher_distribution or distribution)(
                context.teacher[flat[hinted]], piece.temperature[hinted]
            )
            teacher[hinted] = chosen_logprobs(told, piece.targets[hinted], piece.kept[hinted])
        return TokenReadings(
            student=piece.sampled,
            old=piece.old,
            reference=chosen_logprobs(reference, piece.targets, piece.kept),
            teacher=teacher,
            advantage=_advantage(piece, opd, context, config),
        )


def fill_mean_log_ratio(
    hidden: Tensor, flat: Tensor, context: StepContext, distribution: Distribution, config: LossConfig, *, first: bool
) -> None:
    """Write the mean `log ρ` of whole answers into `context.mean_log_ratio`, at each of their tokens.

    `hidden` [n, H] are the student's at `flat` [n], all tokens of one or more answers; no gradients.
    """
    parts = []
    with torch.no_grad():
        for states, where in zip(torch.split(hidden, PIECE), torch.split(flat, PIECE), strict=True):
            student = distribution(states, context.batch.temperature[where])
            piece = _piece(student, where, context, distribution, config, first=first)
            parts.append(piece.sampled - piece.old)
        context.mean_log_ratio[flat] = losses.mean_per_sequence(torch.cat(parts), context.batch.owner[flat])


def demonstration_terms(
    student: Tensor, flat: Tensor, batch: TrainBatch, teacher: Tensor | None, distribution: Distribution
) -> Tensor:
    """The loss of m tokens of accepted retries under the prompt without the correction: [m], not yet weighted.

    The likelihood of the tokens; or, with a `teacher` (hidden states [M, H] of the policy that read the correction,
    at the same tokens), `KL(π_teacher ‖ π)` over the whole vocabulary: it says at each place what else would have
    done.
    """
    if teacher is None:
        chosen = student.gather(-1, batch.demo_targets[flat].unsqueeze(-1)).squeeze(-1)
        return losses.negative_log_likelihood(chosen)
    return losses.exact_kl(distribution(teacher[flat], batch.demo_temperature[flat]), student)


def chosen_logprobs(logprobs: Tensor, targets: Tensor, kept: Tensor) -> Tensor:
    """Log-probabilities [n] of `targets` [n] in the distribution that they were drawn from.

    `logprobs` [n, V] are those of the whole vocabulary; `kept` [n, K] the ids to renormalise over where sampling was
    truncated (top-p, top-k), filled up with -1, all -1 where it was not. The set is the one that the engine kept, so
    that old and new weights are compared on the same support.
    """
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    cut = (kept >= 0).any(-1).nonzero().squeeze(-1) if kept.shape[-1] else targets.new_empty(0)
    if not cut.numel():
        return chosen
    ids = kept[cut]
    inside = logprobs[cut].gather(-1, ids.clamp_min(0)).masked_fill(ids < 0, float("-inf"))
    return chosen.index_add(0, cut, -inside.logsumexp(-1))


def _piece(
    student: Tensor,
    flat: Tensor,
    context: StepContext,
    distribution: Distribution,
    config: LossConfig,
    *,
    first: bool,
) -> _Piece:
    batch = context.batch
    targets, kept, temperature = batch.targets[flat], batch.kept[flat], batch.temperature[flat]
    sampled = chosen_logprobs(student, targets, kept)
    before = sampled.detach() if first else _before(flat, context, distribution, config)
    recorded = batch.old[flat]
    old = engine = torch.where(recorded.isnan(), before, recorded)
    correction = torch.ones_like(old)
    if config.corrects_mismatch:
        old = before
        correction = losses.mismatch_weight(
            old, engine, cap=config.tis_cap, low=config.icepop_low, high=config.icepop_high
        )
    return _Piece(
        flat=flat,
        student=student,
        sampled=sampled,
        targets=targets,
        temperature=temperature,
        kept=kept,
        before=before,
        engine=engine,
        old=old,
        correction=correction,
    )


def _before(flat: Tensor, context: StepContext, distribution: Distribution, config: LossConfig) -> Tensor:
    """In a later pass: log-probabilities [n] of the sampled tokens before the step; NaN where nothing asks."""
    batch = context.batch
    asked = batch.old[flat].isnan() | config.corrects_mismatch
    if not config.opd_top_k:
        asked = asked | batch.hint_mask[flat]
    before = torch.full_like(batch.old[flat], float("nan"))
    where = flat[asked]
    if where.numel():
        by = context.old_distribution or distribution
        student = by(context.old[where], batch.temperature[where])
        before[asked] = chosen_logprobs(student, batch.targets[where], batch.kept[where])
    return before


def _distillation(
    piece: _Piece, context: StepContext, distribution: Distribution, config: LossConfig, *, first: bool
) -> tuple[Tensor, Tensor]:
    """Its advantage at the sampled tokens, and its term per vocabulary entry; one of the two is 0. Both [n]."""
    opd = torch.zeros_like(piece.sampled)
    term = torch.zeros_like(piece.sampled)
    hinted = context.batch.hint_mask[piece.flat].nonzero().squeeze(-1)
    if not hinted.numel():
        return opd, term
    where, temperature = piece.flat[hinted], piece.temperature[hinted]
    teacher = (context.teacher_distribution or distribution)(context.teacher[where], temperature)
    if not config.opd_top_k:
        chosen = chosen_logprobs(teacher, piece.targets[hinted], piece.kept[hinted])
        opd[hinted] = advantages.opd_token_advantage(chosen, piece.before[hinted], config.opd_clip)
        return opd, term
    own = piece.student[hinted]
    by = context.old_distribution or distribution
    before = own.detach() if first else by(context.old[where], temperature)
    support = advantages.opd_topk_advantage(before, teacher, config.opd_top_k, config.opd_clip)
    entries = losses.topk_policy_loss(
        advantages.on_support(own, support.ids),
        support.old,
        support.advantage,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
    return opd, term.index_put((hinted,), config.w_opd * entries)


def _advantage(piece: _Piece, opd: Tensor, context: StepContext, config: LossConfig) -> Tensor:
    batch, flat = context.batch, piece.flat
    hinted = batch.hint_mask[flat]
    return advantages.combine(
        context.reward_advantage[flat],
        batch.reward_mask[flat],
        opd,
        torch.zeros_like(hinted) if config.opd_top_k else hinted,
        w_rl=config.w_rl,
        w_opd=config.w_opd,
    )


def _ratio(piece: _Piece, context: StepContext, config: LossConfig) -> Tensor:
    if config.kind == "gspo":
        return losses.sequence_ratio(piece.sampled, context.mean_log_ratio[piece.flat])
    return losses.policy_ratio(piece.sampled, piece.old)


def _policy(piece: _Piece, ratio: Tensor, advantage: Tensor, context: StepContext, config: LossConfig) -> Tensor:
    """The term of the sampled tokens, 0 where no signal acts through them: [n]."""
    low, high = config.clip_low, config.clip_high
    if config.kind == "cispo":
        term = losses.cispo_loss(piece.sampled, ratio, advantage, clip_low=low, clip_high=high)
    elif config.kind == "importance_sampling":
        term = losses.importance_sampling_loss(ratio, advantage)
    else:
        term = losses.clipped_policy_loss(ratio, advantage, clip_low=low, clip_high=high, dual_clip=config.dual_clip)
    batch, flat = context.batch, piece.flat
    acting = batch.reward_mask[flat] if config.opd_top_k else batch.reward_mask[flat] | batch.hint_mask[flat]
    return torch.where(acting, piece.correction * term, torch.zeros_like(term))


def _kl(piece: _Piece, reference: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """The KL that the loss takes, and the exact one, which is what is reported: both [n]."""
    if config.kl == "exact":
        exact = losses.exact_kl(piece.student if config.kl_coef else piece.student.detach(), reference)
        return exact, exact
    chosen = chosen_logprobs(reference, piece.targets, piece.kept)
    ratio = losses.policy_ratio(piece.sampled, piece.old)
    return (
        losses.estimated_kl(config.kl, piece.sampled, chosen, ratio),
        losses.exact_kl(piece.student.detach(), reference),
    )


def _given_terms(piece: _Piece, context: StepContext, given: Given) -> Tensor:
    """Terms [n] whose weighted sum over the batch is the given loss, with the given gradient."""
    weights = context.batch.weights[piece.flat]
    slope = torch.where(weights > 0, given.slope[piece.flat] / weights.clamp_min(1e-30), torch.zeros_like(weights))
    return given.value + slope * (piece.sampled - piece.sampled.detach())


def _statistics(piece: _Piece, ratio: Tensor, advantage: Tensor, config: LossConfig) -> dict[str, Tensor]:
    clips = config.kind != "importance_sampling"
    clipped = losses.clipped_share(ratio, advantage, clip_low=config.clip_low, clip_high=config.clip_high)
    found = {
        "entropy": losses.entropy(piece.student.detach()),
        "ratio": ratio,
        "clip_fraction": clipped.float() if clips else torch.zeros_like(ratio),
        "gap": (piece.sampled.detach() - piece.engine).abs(),
    }
    if config.corrects_mismatch:
        found["mismatch_weight"] = piece.correction
    return found
