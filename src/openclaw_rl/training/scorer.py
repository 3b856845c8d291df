"""The one scorer: student, teacher and reference are one model, read three ways, with one set of numerics.

The student is the policy with gradients, the teacher the same policy reading the hint, the reference the policy with
its adapter off: no second copy of the model exists. Only where all weights learn, the reference is a frozen copy, and
a step keeps the output head that it began with, because the head learns too. The scorer stops at the *hidden states*
that predict response tokens ([R, H]: small enough to keep for a whole step) and turns them into distributions over
the vocabulary ([R, V]: large) only a piece at a time, when and where somebody needs one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import GenerationConfig

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.training.attention import ATTENTION
from openclaw_rl.training.batch import TokenSequence
from openclaw_rl.training.packing import Pack, plan_packs

log = logging.getLogger(__name__)

HEAD_CHUNK = 64
"""Response tokens whose distributions exist at once: 64 x 49,152 entries are 13 MB, and a dozen such are alive."""

APART_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""How far (relative L2) a row's hidden states may lie from themselves when it is read beside another: rounding."""


class Mode(StrEnum):
    """Who reads. STUDENT keeps gradients; TEACHER is the live policy, under whatever prompt it is given."""

    STUDENT = "student"
    TEACHER = "teacher"
    REFERENCE = "reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What one response looks like to a mode; R response tokens, nats.

    `logprobs` [R] of its own tokens; `top_ids`, `top_logprobs` [R, k] where a top-k was asked for; `distribution`
    [R, V] where it was asked for.
    """

    logprobs: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    distribution: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """An answer that a mode gave, its end-of-turn token included, and its log-probabilities, nats; equally long."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def _until_the_end(ids: Sequence[int], logprobs: Sequence[float], *, ends: Sequence[int]) -> Generated:
    """An answer without the padding after its end."""
    length = next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))
    return Generated(ids=tuple(ids[:length]), logprobs=tuple(logprobs[:length]))


def _as_list(tokens: int | list[int] | None) -> list[int]:
    if tokens is None:
        return []
    return [tokens] if isinstance(tokens, int) else list(tokens)


def _plain(model: Any) -> Any:
    """The causal LM itself, without PEFT around it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _through(head: Tensor, hidden: Tensor, temperature: Tensor) -> Tensor:
    """Rows that are kept are float32 whatever the head is; a temperature is never rounded to a coarser type."""
    warm = (hidden.float() / temperature.unsqueeze(-1)).to(head.dtype)
    return torch.log_softmax(nn.functional.linear(warm, head).float(), dim=-1)


def _nothing() -> None:
    """The progress callback of whoever does not want one."""


class Scorer:
    """Scores with a causal LM; where that is a PEFT model, no adapter touches its output head.

    `reference`: the frozen model that is the reference. None: a PEFT model with its adapter off; any other model then
    has no other reference than itself. The model's attention is set to the one of `attention`, so that rows can lie
    end to end. A model that mixes them all the same (one that does not let its attention be chosen, or that carries a
    state along) reads one at a time.

    Raises:
        ConfigError: where the model does something between its last hidden state and its logits that the scorer would
            miss (soft-capping, scaling, an adapter on the head), or takes no arguments for its attention. Checked
            once, on tiny inputs.
    """

    def __init__(self, model: Any, *, reference: Any = None, gradient_checkpointing: bool = False) -> None:
        self.model = model
        self._reference = reference
        causal = _plain(model)
        self._trunk: nn.Module = causal.get_decoder()
        self._head: Any = causal.get_output_embeddings()
        self._held_head: Tensor | None = None
        self._width = int(causal.config.hidden_size)
        self.head_size = int(self._head.weight.shape[0])
        self.device: torch.device = causal.device
        self._rows_per_pack: int | None = None
        self._check_head()
        causal.set_attn_implementation(ATTENTION)
        if reference is not None:
            reference.set_attn_implementation(ATTENTION)
        if gradient_checkpointing:
            causal.activation_checkpointing_enable({"use_reentrant": False})
        if not self._keeps_rows_apart(APART_TOLERANCE[causal.dtype]):
            log.warning("this model does not keep packed rows apart: each is read in a forward pass of its own")
            self._rows_per_pack = 1

    def plan(self, sequences: Sequence[TokenSequence], max_tokens: int) -> list[Pack]:
        """Forward passes over all sequences, of at most `max_tokens` tokens each where they can be cut so."""
        return plan_packs(sequences, max_tokens, self.device, rows_per_pack=self._rows_per_pack)

    def hidden(self, pack: Pack, mode: Mode) -> Tensor:
        """The hidden states that predict a pack's response tokens: [R, H], in the order of `pack.flat`."""
        self.model.train(mode is Mode.STUDENT)
        with self._reading(mode) as causal, torch.set_grad_enabled(mode is Mode.STUDENT):
            states: Tensor = causal.get_decoder()(
                input_ids=pack.input_ids,
                position_ids=pack.position_ids,
                row_lengths=pack.row_lengths,
                use_cache=False,
            ).last_hidden_state
            return states[0, pack.positions]

    @contextlib.contextmanager
    def _reading(self, mode: Mode) -> Iterator[Any]:
        """The causal LM that reads in this mode."""
        if mode is Mode.REFERENCE and self._reference is not None:
            yield self._reference
        elif mode is Mode.REFERENCE and isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield _plain(self.model)
        else:
            yield _plain(self.model)

    def log_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Log-probabilities over the vocabulary, [R, V] float32, at `temperature` [R]; gradients follow `hidden`.

        By the head as it is now: for hidden states of the present weights. The head is linear, so dividing what goes
        in is dividing what comes out, a hundred times cheaper.
        """
        return _through(self._head.weight, hidden, temperature)

    @torch.no_grad()
    def reference_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """The same for the reference's hidden states, by the reference's head, without gradients."""
        head = self._head if self._reference is None else self._reference.get_output_embeddings()
        return _through(head.weight, hidden, temperature)

    @torch.no_grad()
    def held_distribution(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """The same for hidden states from before the step, by the head that was held then; without gradients."""
        return _through(self._head.weight if self._held_head is None else self._held_head, hidden, temperature)

    def hold_head(self) -> None:
        """Keep the head as it is now, if it learns, until `release_head`: a step keeps hidden states, not logits."""
        weight = self._head.weight
        self._held_head = weight.detach().clone() if weight.requires_grad else None

    def release_head(self) -> None:
        """The step is over: from now on `held_distribution` goes by the present head."""
        self._held_head = None

    def empty_row(self, length: int) -> Tensor:
        """A flat row of hidden states, [length, H], all 0."""
        return torch.zeros(length, self._width, device=self.device)

    def hidden_row(
        self,
        sequences: Sequence[TokenSequence],
        mode: Mode,
        *,
        length: int,
        max_tokens: int,
        progress: Callable[[], None] = _nothing,
    ) -> Tensor:
        """Hidden states of all sequences, without gradients, as a flat row [length, H]; 0 where no sequence lies."""
        row = self.empty_row(length)
        for pack in self.plan(sequences, max_tokens):
            with torch.no_grad():
                row[pack.flat] = self.hidden(pack, mode).float()
            progress()
        return row

    @torch.no_grad()
    def logprobs(
        self,
        sequences: Sequence[TokenSequence],
        mode: Mode,
        *,
        max_tokens: int,
        progress: Callable[[], None] = _nothing,
    ) -> list[Tensor]:
        """Log-probabilities of the own tokens of each, [R] on the CPU, at temperature 1; without gradients.

        However many and however long they are: passes of at most `max_tokens`, distributions a piece at a time.
        """
        found = torch.zeros(max((sequence.start + len(sequence.response_ids) for sequence in sequences), default=0))
        targets = torch.zeros(len(found), dtype=torch.long, device=self.device)
        for sequence in sequences:
            end = sequence.start + len(sequence.response_ids)
            targets[sequence.start : end] = torch.tensor(sequence.response_ids, device=self.device)
        by = self.reference_distribution if mode is Mode.REFERENCE else self.log_distribution
        for pack in self.plan(sequences, max_tokens):
            hidden = self.hidden(pack, mode)
            for piece in torch.split(torch.arange(len(hidden), device=self.device), HEAD_CHUNK):
                flat = pack.flat[piece]
                distribution = by(hidden[piece], torch.ones(len(piece), device=self.device))
                found[flat.cpu()] = distribution.gather(-1, targets[flat].unsqueeze(-1)).squeeze(-1).cpu()
            progress()
        return [found[one.start : one.start + len(one.response_ids)] for one in sequences]

    def score(
        self,
        sequence: TokenSequence,
        mode: Mode,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        full: bool = False,
    ) -> Scores:
        """Score one sequence; the result is on the CPU.

        For a step over many, use `hidden` and `log_distribution` piece by piece.
        """
        (pack,) = self.plan([sequence], len(sequence))
        with torch.set_grad_enabled(mode is Mode.STUDENT):
            hidden = self.hidden(pack, mode)
            warmth = torch.full((hidden.shape[0],), temperature, device=self.device)
            by = self.reference_distribution if mode is Mode.REFERENCE else self.log_distribution
            distribution = by(hidden, warmth).cpu()
            targets = torch.tensor(sequence.response_ids)
            top = distribution.topk(top_k, dim=-1) if top_k else None
            return Scores(
                logprobs=distribution.gather(-1, targets.unsqueeze(-1)).squeeze(-1),
                top_ids=None if top is None else top.indices,
                top_logprobs=None if top is None else top.values,
                distribution=distribution if full else None,
            )

    def generate(self, prompts: Sequence[Sequence[int]], mode: Mode, *, max_tokens: int) -> list[Generated]:
        """Greedy answers to all prompts, in one padded batch by Transformers' own `generate`; without gradients."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=self.device)
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        ends = _as_list(_plain(self.model).generation_config.eos_token_id)
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=ends or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        self.model.eval()
        with self._reading(mode) as causal, torch.no_grad():
            causal.set_attn_implementation("sdpa")  # padded rows and a cache are not what packed rows are read with
            try:
                made = causal.generate(input_ids=ids, attention_mask=seen, generation_config=settings)
            finally:
                causal.set_attn_implementation(ATTENTION)
        logprobs = torch.stack([logits.float().log_softmax(-1) for logits in made.logits], dim=1)
        drawn = made.sequences[:, width:]
        chosen = logprobs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        return [_until_the_end(*row, ends=ends) for row in zip(drawn.tolist(), chosen.tolist(), strict=True)]

    def _check_head(self) -> None:
        self.model.eval()
        with torch.no_grad():
            ids = torch.tensor([[1, 2, 3]], device=self.device)
            whole = self.model(input_ids=ids, use_cache=False).logits
            ours = self._head(self._trunk(input_ids=ids, use_cache=False).last_hidden_state)
        if not torch.allclose(whole, ours, atol=1e-4):
            raise ConfigError(
                "this model changes its logits after the output head, which the trainer does not follow"
            )
        if getattr(self._head, "bias", None) is not None:
            raise ConfigError("an output head with a bias is not supported: temperature would not scale it")
        if any("lora" in name for name, _ in self._head.named_parameters()):
            raise ConfigError("an adapter on the output head is not supported: leave it out of lora.target_modules")

    def _keeps_rows_apart(self, tolerance: float) -> bool:
        """Whether rows that lie end to end are read as they are alone."""
        rows = [(1, 2, 3, 4, 5, 6), (3, 2, 1, 0)]
        sequences = [TokenSequence(prompt_ids=ids, response_ids=(0,), start=i) for i, ids in enumerate(rows)]
        try:
            together, alone = (
                self.hidden_row(sequences, Mode.TEACHER, length=2, max_tokens=tokens) for tokens in (10, 1)
            )
        except TypeError as error:
            raise ConfigError(f"the trainer cannot pass this model's attention what it needs: {error}") from error
        return bool(((together - alone).norm(dim=-1) <= tolerance * alone.norm(dim=-1)).all())
