"""Takes the readings on which the gate decides: new weights on the batch, on known answers, and in their own words.

All is read by the trainer's one scorer, with the weights as the step left them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
        self._remembered: dict[str, float] = {}

    def state(self) -> dict[str, float]:
        """What it remembers from step to step: a step after a restart must be judged as one without."""
        return dict(self._remembered)

    def restore(self, state: Mapping[str, float]) -> None:
        """Remember what `state` said, and nothing else."""
        self._remembered = dict(state)

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
            hints: what the told base is told, such as the last few that were accepted; without, it is told nothing.
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
        if self._config.probes:
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
        """What the new weights answer to prompts of the batch, beside what the base would, told the hints if any."""
        asked = self._probe_samples(samples, told)
        if not asked:
            return readings
        length = self._config.probe_tokens
        prompts = [sample.tokens.prompt_ids for sample in asked]
        told_prompts = [self._prompt_told(sample, told) for sample in asked]
        own = self._scorer.generate(prompts, Mode.TEACHER, max_tokens=length)
        base = self._base_on_itself("told_base" if told else "base", told_prompts)
        under_base = self._mean_logprob(
            [
                KnownAnswer(prompt_ids=prompt, response_ids=answer.ids)
                for prompt, answer in zip(told_prompts, own, strict=True)
            ],
            Mode.REFERENCE,
        )
        below = base - under_base
        return dataclasses.replace(
            readings,
            nats_below_told_base=below if told else None,
            nats_below_base=None if told else below,
            repetition=gate.repetition([answer.ids for answer in own]),
            mean_tokens=sum(len(answer.ids) for answer in own) / len(own),
        )

    def _prompt_told(self, sample: Sample, told: str) -> tuple[int, ...]:
        return tuple(self._told_prompt(dataclasses.replace(sample, hint=told))) if told else sample.tokens.prompt_ids

    def _base_on_itself(self, which: str, prompts: Sequence[tuple[int, ...]]) -> float:
        """How likely the base finds its own answers to `prompts`, nats per token; from memory, mostly."""
        asked = int(self._remembered.get(f"{which}_asked", 0))
        if asked % RENEW_BASE_EVERY == 0:
            answers = self._scorer.generate(prompts, Mode.REFERENCE, max_tokens=self._config.probe_tokens)
            self._remembered[which] = _mean_of(answers)
        self._remembered[f"{which}_asked"] = asked + 1
        return self._remembered[which]

    def _probe_samples(self, samples: Sequence[Sample], told: str) -> list[Sample]:
        """The batch's shortest different prompts that leave room for hints and an answer."""
        by_prompt = {sample.tokens.prompt_ids: sample for sample in samples}
        room = self._context_length - self._config.probe_tokens
        fitting = [
            sample
            for _, sample in sorted(by_prompt.items(), key=lambda item: (len(item[0]), item[0]))
            if len(self._prompt_told(sample, told)) <= room
        ]
        return fitting[: self._config.probes]


def _mean_of(answers: Sequence[Generated]) -> float:
    return sum(sum(answer.logprobs) / len(answer.logprobs) for answer in answers) / len(answers)
