"""Takes the readings on which the gate decides: new weights on the batch, on known answers, and in their own words.

All is read by the trainer's one scorer, with the weights as the step left them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.config_gate import GateConfig
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.training import gate, losses
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.gradients import Progress, pieces
from openclaw_rl.training.objective import StepContext
from openclaw_rl.training.scorer import Generated, Mode, Scorer
from openclaw_rl.types import Sample

log = logging.getLogger(__name__)

SEQUENCES_READ = 2
"""Answers of the batch that are read again, the shortest: enough to see what is broken."""
ANSWERS_PROBED = 4
"""Known good answers that are scored."""
RENEW_BASE_EVERY = 4
"""The base answers at every fourth step, for its answers cost as much as those of the new weights. In between, how
likely it found the last ones is used, though prompts and hints are others by now."""
TRUSTED_SHARE = 0.5
"""Used where by it the new weights lie within this share of their bound. Where they do not, the base answers anew, to
the present prompts and hints: nothing is refused by a reading of others."""

TeacherPrompt = Callable[[Sample], Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownAnswer:
    """A prompt and an answer to it that is known to be good."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


class Gatekeeper:
    """Reads new weights. `told_prompt` renders a sample's prompt with its hint put in, as for the teacher.

    `max_tokens`: in one forward pass over known answers and probe answers.
    """

    def __init__(
        self,
        *,
        scorer: Scorer,
        told_prompt: TeacherPrompt,
        config: GateConfig,
        context_length: int,
        max_tokens: int,
    ) -> None:
        self._scorer = scorer
        self._max_tokens = max_tokens
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
            context: of the step that made the weights; its `old` row holds the hidden states before the step (where
                all that was trained are accepted retries: theirs).
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
            probing = "probing the new weights on known answers"
            progress(probing)
            base, now = (
                self._mean_logprob(known, mode, lambda: progress(probing)) for mode in (Mode.REFERENCE, Mode.TEACHER)
            )
            readings = dataclasses.replace(readings, probe_drop=base - now)
        if self._config.probes:
            progress("reading what the new weights answer")
            readings = self._in_their_own_words(readings, context.batch.samples, " ".join(hints))
            if (warning := gate.far_shorter(readings.mean_tokens, readings.base_tokens)) is not None:
                log.warning("the new weights answer far more shortly than the base: %s", warning)
        return readings

    def _on_the_batch(self, readings: gate.Readings, context: StepContext) -> gate.Readings:
        """KL to base and to the weights before, and entropy: exact, on the shortest answers that were trained.

        Those are accepted retries, under the prompts that they are shown for, only where nothing else was trained.
        """
        batch, scorer = context.batch, self._scorer
        trained, temperature = (
            (batch.acting, batch.temperature) if batch.acting else (batch.demos, batch.demo_temperature)
        )
        to_base, to_last, entropy, of_base = [], [], [], []
        for sequence in sorted(trained, key=len)[:SEQUENCES_READ]:
            (pack,) = scorer.plan([sequence], len(sequence))
            with torch.no_grad():
                now, base = (scorer.hidden(pack, mode) for mode in (Mode.TEACHER, Mode.REFERENCE))
                for piece in pieces(now.shape[0]):
                    flat = pack.flat[piece]
                    warmth, before = temperature[flat], context.old[flat].to(now.dtype)
                    new = scorer.log_distribution(now[piece], warmth)
                    reference = scorer.reference_distribution(base[piece], warmth)
                    old = scorer.held_distribution(before, warmth)
                    to_base.append(losses.exact_kl(new, reference))
                    to_last.append(losses.exact_kl(new, old))
                    entropy.append(losses.entropy(new))
                    of_base.append(losses.entropy(reference))
        if not to_base:
            return readings
        return dataclasses.replace(
            readings,
            kl_to_base=float(torch.cat(to_base).mean()),
            kl_to_last=float(torch.cat(to_last).mean()),
            entropy=float(torch.cat(entropy).mean()),
            entropy_of_base=float(torch.cat(of_base).mean()),
        )

    def _mean_logprob(
        self, answers: Sequence[KnownAnswer], mode: Mode, progress: Callable[[], None] = lambda: None
    ) -> float:
        """Mean over answers of the mean log-probability of their tokens."""
        sequences, start = [], 0
        for answer in answers:
            sequences.append(
                TokenSequence(prompt_ids=answer.prompt_ids, response_ids=answer.response_ids, start=start)
            )
            start += len(answer.response_ids)
        read = self._scorer.logprobs(sequences, mode, max_tokens=self._max_tokens, progress=progress)
        return float(torch.stack([logprobs.mean() for logprobs in read]).mean())

    def _in_their_own_words(self, readings: gate.Readings, samples: Sequence[Sample], told: str) -> gate.Readings:
        """What the new weights answer to prompts of the batch, beside what the base would, told the hints if any.

        Where no prompt fits together with the hints, the base is told nothing: a policy that fell apart must be seen
        by some reading. Where none fits at all, there is none, and that is said.
        """
        asked = self._probe_samples(samples, told)
        if not asked and told:
            log.warning("no prompt of the batch leaves room for the hints: the base is asked without them")
            told = ""
            asked = self._probe_samples(samples, told)
        if not asked:
            log.warning(
                "no prompt of the batch leaves room for an answer of %d tokens: language and repetition are not read",
                self._config.probe_tokens,
            )
            return dataclasses.replace(readings, probes_skipped=True)
        length = self._config.probe_tokens
        prompts = [sample.tokens.prompt_ids for sample in asked]
        told_prompts = [self._prompt_told(sample, told) for sample in asked]
        own = self._scorer.generate(prompts, Mode.TEACHER, max_tokens=length)
        under_base = self._mean_logprob(
            [
                KnownAnswer(prompt_ids=prompt, response_ids=answer.ids)
                for prompt, answer in zip(told_prompts, own, strict=True)
            ],
            Mode.REFERENCE,
        )
        bound = self._config.max_nats_below_told_base if told else self._config.max_nats_below_base
        which = "told_base" if told else "base"
        below = self._base_on_itself(which, told_prompts, trusted_to=under_base + TRUSTED_SHARE * bound) - under_base
        return dataclasses.replace(
            readings,
            probes_skipped=False,
            nats_below_told_base=below if told else None,
            nats_below_base=None if told else below,
            repetition=gate.repetition([answer.ids for answer in own]),
            mean_tokens=_mean_length(own),
            base_tokens=self._remembered.get(f"{which}_tokens"),
        )

    def _prompt_told(self, sample: Sample, told: str) -> tuple[int, ...]:
        return tuple(self._told_prompt(dataclasses.replace(sample, hint=told))) if told else sample.tokens.prompt_ids

    def _base_on_itself(self, which: str, prompts: Sequence[tuple[int, ...]], *, trusted_to: float) -> float:
        """How likely the base finds its own answers to `prompts`, nats per token.

        Mostly from memory, of other prompts and hints: not every fourth time, and not above `trusted_to`.
        """
        asked, memory = int(self._remembered.get(f"{which}_asked", 0)), self._remembered
        if asked % RENEW_BASE_EVERY == 0 or not memory[which] <= trusted_to:
            answers = self._scorer.generate(prompts, Mode.REFERENCE, max_tokens=self._config.probe_tokens)
            memory[which], memory[f"{which}_tokens"] = _mean_of(answers), _mean_length(answers)
            asked = 0
        memory[f"{which}_asked"] = asked + 1
        return memory[which]

    def _probe_samples(self, samples: Sequence[Sample], told: str) -> list[Sample]:
        """The batch's shortest different prompts that leave room for hints and an answer."""
        by_prompt = {sample.tokens.prompt_ids: sample for sample in samples}
        room = self._context_length - self._config.probe_tokens
        fitting = [
            sample
            for _, sample in sorted(by_prompt.items(), key=lambda item: (len(item[0]), item[0]))
            if self._fits(sample, told, room)
        ]
        return fitting[: self._config.probes]

    def _fits(self, sample: Sample, told: str, room: int) -> bool:
        try:
            return len(self._prompt_told(sample, told)) <= room
        except InvalidEngineRequest:  # the chat template refuses these messages with a hint in them
            return False


def _mean_of(answers: Sequence[Generated]) -> float:
    return sum(sum(answer.logprobs) / len(answer.logprobs) for answer in answers) / len(answers)


def _mean_length(answers: Sequence[Generated]) -> float:
    return sum(len(answer.ids) for answer in answers) / len(answers)
