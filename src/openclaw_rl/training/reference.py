"""The specification of a step's loss: one answer at a time, whole distributions, the formulas written out.

No packing, no pieces, no saved hidden states: every answer is read by the plain model, and its loss is the text of
docs/06-loss.md. Nothing serves or trains with it. `trainer.Trainer`, which does the same in a fraction of the
time and memory, is tested against it: losses, terms and gradients. Of the package's own arithmetic it uses only the
comparison of rewards (`advantages.reward_advantages`, which is plain Python).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.config import TrainingConfig
from openclaw_rl.training.advantages import reward_advantages, rewarded, telling_rewards
from openclaw_rl.types import Method, Sample

TeacherPrompt = Callable[[Sample], Sequence[int]]


def reference_loss(
    samples: Sequence[Sample],
    model: Any,
    config: TrainingConfig,
    teacher_prompt: TeacherPrompt,
    averages: dict[str, float],
    before: Any = None,
    base: Any = None,
) -> dict[str, Tensor]:
    """The loss of a batch under `model` (a causal LM) and its weighted terms; differentiable, scalars.

    `base` is the frozen model that KL is taken to; None: `model`, a PEFT model, with its adapter off. `before` is the
    model with the weights before the step; None in the first pass, where that is `model`. `averages` are the moving
    averages of rewards before the batch.
    """
    loss, old_model = config.loss, model if before is None else before
    advantage_of = _answer_advantages(samples, config, averages)
    hinted = [config.method is not Method.BINARY_RL and loss.w_opd > 0 and s.hint is not None for s in samples]
    acting = [i for i in range(len(samples)) if advantage_of[i] is not None or hinted[i]]
    tokens = sum(len(samples[i].tokens.response_ids) for i in acting)
    zero = torch.zeros(())
    terms = {"policy": zero, "opd": zero, "kl": zero, "entropy": zero, "retry": zero}
    for i in acting:
        prompt = teacher_prompt(samples[i]) if hinted[i] else None
        per_token = _answer(samples[i], advantage_of[i], prompt, (model, old_model, base), config)
        length = len(samples[i].tokens.response_ids)
        weight = 1 / tokens if loss.reduction == "tokens" else 1 / len(acting) / length
        for name, values in per_token.items():
            terms[name] = terms[name] + weight * values.sum()
    retries = [s for s in samples if s.retry is not None and loss.w_retry > 0]
    for sample in retries if before is None else []:
        mean = _retry(sample, model, config).mean()
        terms["retry"] = terms["retry"] + loss.w_retry * mean / max(len(acting), len(retries))
    return terms | {"loss": torch.stack(list(terms.values())).sum()}


def _answer_advantages(
    samples: Sequence[Sample], config: TrainingConfig, averages: dict[str, float]
) -> list[float | None]:
    """How much better than expected each answer was; None where its reward says nothing, or is not used."""
    loss = config.loss
    if config.method is Method.OPD or not loss.w_rl:
        return [None] * len(samples)
    values = iter(reward_advantages(rewarded(samples, loss), averages, loss).advantages)
    compared = [None if s.reward is None else next(values) for s in samples]
    return [value if says else None for value, says in zip(compared, telling_rewards(samples, loss), strict=True)]


def _answer(
    sample: Sample,
    reward: float | None,
    hinted: Sequence[int] | None,
    models: tuple[Any, Any, Any],
    config: TrainingConfig,
) -> dict[str, Tensor]:
    """The terms of one answer's R tokens, each [R]. `models`: now, before, and base."""
    model, before, frozen = models
    loss, prompt = config.loss, sample.tokens.prompt_ids
    response, temperature = sample.tokens.response_ids, sample.sampling.temperature
    student = _distribution(model, prompt, response, temperature)
    with torch.no_grad():
        old_student = _distribution(before, prompt, response, temperature)
        teacher = None if hinted is None else _distribution(before, hinted, response, temperature)
        with model.disable_adapter() if frozen is None else contextlib.nullcontext():
            base = _distribution(model if frozen is None else frozen, prompt, response, temperature)
    log_pi, engine = _chosen(student, sample), torch.tensor(sample.logprobs)
    log_before = _chosen(old_student, sample)
    log_old, correction = engine, torch.ones_like(engine)
    if loss.tis_cap is not None or loss.icepop_low is not None:
        log_old = log_before
        correction = (log_old - engine).exp()
        inside = torch.ones_like(correction)
        if loss.icepop_low is not None and loss.icepop_high is not None:
            inside = ((correction >= loss.icepop_low) & (correction <= loss.icepop_high)).float()
        correction = inside * correction.clamp(max=math.inf if loss.tis_cap is None else loss.tis_cap)

    advantage = torch.full_like(log_pi, loss.w_rl * (reward or 0.0)).detach()
    opd = torch.zeros_like(log_pi)
    if teacher is not None and loss.opd_top_k:
        opd = loss.w_opd * _top_k(student, old_student, teacher, config)
    elif teacher is not None:
        opd_advantage = (_chosen(teacher, sample) - log_before).clamp(-loss.opd_clip, loss.opd_clip)
        advantage = advantage + loss.w_opd * opd_advantage
    by_token = reward is not None or (teacher is not None and not loss.opd_top_k)
    policy = correction * _policy(log_pi, log_old, advantage, config) if by_token else torch.zeros_like(log_pi)

    d = log_pi - _chosen(base, sample)
    kl = {
        "exact": lambda: (student.exp() * (student - base)).sum(-1),
        "k1": lambda: (log_pi - log_old).exp() * d,
        "k2": lambda: d**2 / 2,
        "k3": lambda: (-d).exp() - 1 + d,
    }[loss.kl]()
    entropy = -(student.exp() * student).sum(-1)
    return {"policy": policy, "opd": opd, "kl": loss.kl_coef * kl, "entropy": -loss.entropy_coef * entropy}


def _policy(log_pi: Tensor, log_old: Tensor, advantage: Tensor, config: TrainingConfig) -> Tensor:
    """The loss of the sampled tokens by `training.loss.kind`, [R]."""
    loss = config.loss
    ratio = (log_pi - log_old).exp()
    if loss.kind == "importance_sampling":
        return -ratio * advantage
    if loss.kind == "cispo":
        return -ratio.detach().clamp(1 - loss.clip_low, 1 + loss.clip_high) * advantage * log_pi
    if loss.kind == "gspo":
        ratio = (log_pi - log_old).mean().exp().detach() * (log_pi - log_pi.detach()).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high) * advantage)
    if loss.dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, loss.dual_clip * advantage), objective)
    return -objective


def _top_k(student: Tensor, old_student: Tensor, teacher: Tensor, config: TrainingConfig) -> Tensor:
    """Distillation on the k likeliest tokens and the rest, [R]."""
    loss = config.loss
    ids = old_student.topk(loss.opd_top_k, dim=-1).indices

    def entries(distribution: Tensor) -> Tensor:
        inside = distribution.gather(-1, ids)
        rest = (1 - inside.exp().sum(-1, keepdim=True)).clamp(min=1e-6).log()
        return torch.cat([inside, rest], dim=-1)

    old = entries(old_student)
    advantage = (entries(teacher) - old).clamp(-loss.opd_clip, loss.opd_clip)
    ratio = (entries(student) - old).exp()
    clipped = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    return -(old.exp() * torch.minimum(ratio * advantage, clipped * advantage)).sum(-1)


def _retry(sample: Sample, model: Any, config: TrainingConfig) -> Tensor:
    """The loss of an accepted retry's tokens under the prompt without the correction, [R]; the first pass only."""
    assert sample.retry is not None
    response, temperature = sample.retry.response_ids, sample.sampling.temperature
    student = _distribution(model, sample.retry.prompt_ids, response, temperature)
    if config.loss.retry == "likelihood":
        return -student.gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        corrected = _distribution(model, sample.tokens.prompt_ids, response, temperature)
    return (corrected.exp() * (corrected - student)).sum(-1)


def _distribution(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float) -> Tensor:
    """Log-probabilities of every vocabulary entry at each of R response tokens: [R, V]."""
    logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)


def _chosen(distribution: Tensor, sample: Sample) -> Tensor:
    """Log-probabilities [R] of the sampled tokens, among those that were kept where sampling was truncated."""
    found = []
    for t, token in enumerate(sample.tokens.response_ids):
        kept = sample.tokens.kept[t] if sample.sampling.truncated and sample.tokens.kept else None
        among = distribution[t] if kept is None else distribution[t, list(kept)]
        found.append(distribution[t, token] - torch.logsumexp(among, dim=-1))
    return torch.stack(found)
