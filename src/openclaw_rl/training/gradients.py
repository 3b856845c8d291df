"""From a batch to the gradients in the parameters, forward pass by forward pass.

Two stages. A pass through the model ends at the hidden states of its response tokens; there the graph is cut. The
output head and the loss are computed on a few tokens at a time, each piece going backward before the next begins, so
that no more than a piece of the [N, V] distributions ever exists; what they leave at the cut goes back through the
model at once. The sum over pieces and passes is the gradient of the whole batch, because the reduction's weights were
fixed before (`losses.token_weights`). Which parameters learn is the model's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openclaw_rl.config import TrainingConfig
from openclaw_rl.training.batch import TokenSequence, TrainBatch
from openclaw_rl.training.custom_loss import CustomLoss, given_by
from openclaw_rl.training.meter import Meter
from openclaw_rl.training.objective import StepContext, demonstration_terms, fill_mean_log_ratio, loss_terms
from openclaw_rl.training.packing import Pack
from openclaw_rl.training.scorer import HEAD_CHUNK, Mode, Scorer

Progress = Callable[[str], None]

PieceLoss = Callable[[Tensor, Tensor], Tensor]
"""Hidden states [n, H] and their places in the flat row [n] to the loss of these tokens: a sum, weighted."""


class NonFinite(ArithmeticError):
    """A loss or a gradient that is no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Adds gradients to the parameters of the scorer's model. `version`: that of its present weights.

    `progress` is called between any two passes. Each method raises `NonFinite` where a loss is no number.
    """

    scorer: Scorer
    config: TrainingConfig
    custom: CustomLoss | None
    version: int
    progress: Progress

    def of_policy(self, context: StepContext, meter: Meter, *, first: bool) -> None:
        """All loss terms of a batch. `first`: the first time over it, when the student is still its old self."""
        batch, config = context.batch, self.config.loss
        if self.custom is not None and batch.acting:
            states = self._read(batch.acting, batch.targets)
            given = given_by(self.custom, states, context, self._constant, config, first=first)
            context = replace(context, given=given)

        def seen(hidden: Tensor, flat: Tensor) -> None:
            if first:
                context.old[flat] = hidden.float()
            if config.kind == "gspo":
                fill_mean_log_ratio(hidden, flat, context, self._constant, config, first=first)

        def loss(hidden: Tensor, flat: Tensor) -> Tensor:
            student = self.scorer.log_distribution(hidden, batch.temperature[flat])
            terms = loss_terms(student, flat, context, self._constant, config, first=first)
            weights = batch.weights[flat]
            untouched = batch.versions[flat] == self.version if first else torch.zeros_like(flat).bool()
            meter.add_terms(terms, weights, same_version=untouched, first=first)
            return (terms.total * weights).sum()

        packs = self.scorer.plan(batch.acting, self.config.max_tokens_per_micro_batch)
        for number, pack in enumerate(packs, 1):
            self._accumulate(pack, loss, f"computing gradients, pass {number} of {len(packs)}", seen)

    def of_retries(self, batch: TrainBatch, meter: Meter) -> None:
        """The likelihood of the accepted retries, or their forward KL, weighted by `w_retry`."""
        teacher = None
        if self.config.loss.retry == "forward_kl" and batch.demos:
            teacher = self._read(batch.corrected, batch.demo_targets)

        def loss(hidden: Tensor, flat: Tensor) -> Tensor:
            logprobs = self.scorer.log_distribution(hidden, batch.demo_temperature[flat])
            terms = demonstration_terms(logprobs, flat, batch, teacher, self._constant)
            total = self.config.loss.w_retry * (terms * batch.demo_weights[flat]).sum()
            meter.total("loss_retry", float(total.detach()))
            return total

        packs = self.scorer.plan(batch.demos, self.config.max_tokens_per_micro_batch)
        for number, pack in enumerate(packs, 1):
            self._accumulate(pack, loss, f"computing gradients of accepted retries, pass {number} of {len(packs)}")

    def _accumulate(
        self,
        pack: Pack,
        loss: PieceLoss,
        doing: str,
        seen: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        """One pass forward and backward; between the two, `seen` is shown the hidden states and their places.

        `doing` says which pass it is: a batch that kills the trainer does so in the same one each time (`deaths`).
        """
        self.progress(doing)
        hidden = self.scorer.hidden(pack, Mode.STUDENT)
        if seen is not None:
            seen(hidden.detach(), pack.flat)
        gradient = torch.zeros_like(hidden)
        for piece in pieces(hidden.shape[0]):
            cut = hidden.detach()[piece].requires_grad_()
            value = loss(cut, pack.flat[piece])
            if not bool(torch.isfinite(value.detach())):
                raise NonFinite("loss_not_finite")
            value.backward()  # type: ignore[no-untyped-call]
            if cut.grad is not None:
                gradient[piece] = cut.grad
        self.progress(doing)
        hidden.backward(gradient)  # type: ignore[no-untyped-call]

    def _read(self, sequences: Sequence[TokenSequence], row: Tensor) -> Tensor:
        """Hidden states of the policy as it is now, without gradients, as a flat row as long as `row`."""
        return self.scorer.hidden_row(
            sequences,
            Mode.TEACHER,
            length=row.numel(),
            max_tokens=self.config.max_tokens_per_micro_batch,
            progress=lambda: self.progress("reading the policy"),
        )

    def _constant(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """The distribution of who is not learning."""
        with torch.no_grad():
            return self.scorer.log_distribution(hidden, temperature)


def pieces(length: int) -> Iterator[slice]:
    """Slices of at most `HEAD_CHUNK` that cover `length`."""
    for start in range(0, length, HEAD_CHUNK):
        yield slice(start, min(start + HEAD_CHUNK, length))
