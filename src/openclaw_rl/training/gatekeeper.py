"""Takes the readings on which the gate decides: new weights on the batch, on known answers, and in their own words.

All is read by the trainer's one scorer, with the weights as the step left them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.training import gate, losses
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.gradients import Progress, pieces
from openclaw_rl.training.objective import StepContext
from openclaw_rl.training.scorer import Generated, Mode, Scorer
from openclaw_rl.types import Sample

SEQUENCES_READ = 2
"""Answers of the batch that are read again, the shortest: enough to see what is broken."""
ANSWERS_PROBED = 4
"""Known good answers that are scored."""
RENEW_BASE_EVERY = 4
"""How likely the told base finds its own answers hardly depends on the prompt: it is read at every fourth step."""

TeacherPrompt = Callable[[Sample], Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownAnswer:
    """A prompt and an answer to it that is known to be good."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


class Gatekeeper:
    """Reads new weights. `told_prompt` renders a sample's prompt with its hint put in, as for the teacher."""

    def __init__(
        self, *, scorer: Scorer, told_prompt: TeacherPrompt, config: GateConfig, context_length: int
    ) -> None:
        self._scorer = scorer
        self._told_prompt = told_prompt
        self._config = config
        self._context_length = context_length
        self._told_base: float | None = None
        self._readings_of_base = 0

    def read(
        self,
        context: StepContext,
        *,
        loss: float | None,
        hints: Sequence[str],
        known: Sequence[KnownAnswer],
        progress: Progress,
    ) -> gate.Readings:
        """Take all readings but the user's own evaluation.

        Args:
            context: of the step that made the weights; its `old` row holds the hidden states before the step.
            loss: of that step; None where nothing in it had a loss.
            hints: what the told base is told, such as the last few that were accepted; without, language is not read.
            known: good answers, the user's own first.
        """
        finite = all(bool(torch.isfinite(p).all()) for p in self._scorer.model.parameters() if p.requires_grad)
        readings = gate.Readings(loss=loss, weights_finite=finite)
        if not finite:
            return readings
        progress("probing the new weights on the batch")
        readings = self._on_the_batch(readings, context)
        if known:
            progress("probing the new weights on known answers")
            drop = self._mean_logprob(known, Mode.REFERENCE) - self._mean_logprob(known, Mode.TEACHER)
            readings = dataclasses.replace(readings, probe_drop=drop)
        if hints and self._config.probes:
            progress("reading what the new weights answer")
            readings = self._in_their_own_words(readings, context.batch.samples, " ".join(hints))
        return readings

    def _on_the_batch(self, readings: gate.Readings, context: StepContext) -> gate.Readings:
        """KL to base and to the weights before, and entropy: exact, on the shortest answers that were trained."""
        batch, scorer = context.batch, self._scorer
        to_base, to_last, entropy = [], [], []
        for sequence in sorted(batch.acting, key=len)[:SEQUENCES_READ]:
            (pack,) = scorer.plan([sequence], len(sequence))
            with torch.no_grad():
                now, base = (scorer.hidden(pack, mode) for mode in (Mode.TEACHER, Mode.REFERENCE))
                for piece in pieces(now.shape[0]):
                    flat = pack.flat[piece]
                    warmth, before = batch.temperature[flat], context.old[flat].to(now.dtype)
                    new = scorer.log_distribution(now[piece], warmth)
                    reference = scorer.reference_distribution(base[piece], warmth)
                    old = scorer.held_distribution(before, warmth)
                    to_base.append(losses.exact_kl(new, reference))
                    to_last.append(losses.exact_kl(new, old))
                    entropy.append(losses.entropy(new))
        if not to_base:
            return readings
        return dataclasses.replace(
            readings,
            kl_to_base=float(torch.cat(to_base).mean()),
            kl_to_last=float(torch.cat(to_last).mean()),
            entropy=float(torch.cat(entropy).mean()),
        )

    def _mean_logprob(self, answers: Sequence[KnownAnswer], mode: Mode) -> float:
        """Mean over answers of the mean log-probability of their tokens."""
        sequences, start = [], 0
        for answer in answers:
            sequences.append(
                TokenSequence(prompt_ids=answer.prompt_ids, response_ids=answer.response_ids, start=start)
            )
            start += len(answer.response_ids)
        scores = [self._scorer.score(sequence, mode) for sequence in sequences]
        return float(torch.stack([score.logprobs.mean() for score in scores]).mean())

    def _in_their_own_words(self, readings: gate.Readings, samples: Sequence[Sample], told: str) -> gate.Readings:
        """What the new weights answer to prompts of the batch, beside what the base that is told the hints would."""
        asked = self._probe_samples(samples, told)
        if not asked:
            return readings
        length = self._config.probe_tokens
        prompts = [sample.tokens.prompt_ids for sample in asked]
        told_prompts = [tuple(self._told_prompt(dataclasses.replace(sample, hint=told))) for sample in asked]
        own = self._scorer.generate(prompts, Mode.TEACHER, max_tokens=length)
        if self._readings_of_base % RENEW_BASE_EVERY == 0 or self._told_base is None:
            self._told_base = _mean_of(self._scorer.generate(told_prompts, Mode.REFERENCE, max_tokens=length))
        self._readings_of_base += 1
        under_base = self._mean_logprob(
            [
                KnownAnswer(prompt_ids=prompt, response_ids=answer.ids)
                for prompt, answer in zip(told_prompts, own, strict=True)
            ],
            Mode.REFERENCE,
        )
        return dataclasses.replace(
            readings,
            nats_below_told_base=self._told_base - under_base,
            repetition=gate.repetition([answer.ids for answer in own]),
            mean_tokens=sum(len(answer.ids) for answer in own) / len(own),
        )

    def _probe_samples(self, samples: Sequence[Sample], told: str) -> list[Sample]:
        """The batch's shortest different prompts that leave room for hints and an answer."""
        by_prompt = {sample.tokens.prompt_ids: sample for sample in samples}
        room = self._context_length - self._config.probe_tokens
        fitting = [
            sample
            for _, sample in sorted(by_prompt.items(), key=lambda item: (len(item[0]), item[0]))
            if len(self._told_prompt(dataclasses.replace(sample, hint=told))) <= room
        ]
        return fitting[: self._config.probes]


def _mean_of(answers: Sequence[Generated]) -> float:
    return sum(sum(answer.logprobs) / len(answer.logprobs) for answer in answers) / len(answers)
