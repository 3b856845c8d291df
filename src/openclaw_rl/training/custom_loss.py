"""A loss of the user's own, in the place of all of ours: `training.custom_loss_function_path`.

    def compute_loss(policy_logprobs, reference_logprobs, rewards, advantages, config): ...

It sees the whole batch at once, one flat row of N response tokens, each of which has a signal, and returns the loss:
a scalar, or N terms, which `training.loss.reduction` then averages. Any function of the policy's log-probabilities
will do, because the answers are read twice: once for its gradient with respect to them, and once to take that
gradient on through the model, a micro-batch at a time. A function that also names any of `LossInputs`' fields gets
them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.config import LossConfig
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.extensions import load_checked, one_process, origin
from openclaw_rl.training.objective import PIECE, Distribution, Given, StepContext, TokenReadings, token_readings
from openclaw_rl.training.own_code import refusal
from openclaw_rl.types import Sample

OPTION = "training.custom_loss_function_path"

NOTHING_LEARNED = f"{OPTION}: what it returns does not depend on policy_logprobs, so that nothing would be learned"

POSITIONAL = ("policy_logprobs", "reference_logprobs", "rewards", "advantages", "config")
"""What a function takes in these places, whatever it calls them (the earlier guide says `policy_logits`)."""


class LossFailed(Exception):
    """It gave no loss in a step; the message is the reason, as a counter's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """All that is known of the N response tokens that have a signal; tensors are [N] unless said otherwise.

    `policy_logprobs` of the sampled tokens, with gradient; `reference_logprobs` the base's; `old_logprobs` the
    engine's when it drew them, and the policy's before the step for a reconstructed sample, which it did not draw;
    `teacher_logprobs` under the hint, NaN where there is none. `rewards` as judged, NaN where there is none;
    `advantages` the sum of the reward's and the distillation's. All log-probabilities (nats) are at the temperature
    of the sample. `mask`, `reward_mask`, `hint_mask` bool: which tokens have any signal (here,
    all), a reward, a hint. `owner` whose token each is, an index of `samples`; `weights` those of the configured
    reduction, summing to 1.
    """

    policy_logprobs: Tensor
    reference_logprobs: Tensor
    old_logprobs: Tensor
    teacher_logprobs: Tensor
    rewards: Tensor
    advantages: Tensor
    mask: Tensor
    reward_mask: Tensor
    hint_mask: Tensor
    owner: Tensor
    weights: Tensor
    samples: Sequence[Sample]


class CustomLoss:
    """A function that was found to fit, and how to call it.

    Raises:
        ConfigError: it cannot be called in this way, or its first try on a row of four made-up tokens shows that what
            it returns is no loss, or raises.
    """

    def __init__(self, function: Callable[..., Any], config: LossConfig) -> None:
        self._function = function
        self._config = config
        self._extras = _extras(function)
        try:
            self.given(_made_up())
        except ConfigError:
            raise
        except BaseException as error:  # whatever the user's own code raises
            raise ConfigError(
                f"{OPTION}: tried on four made-up tokens, it raised {origin(error)}: {error}"
            ) from error

    @classmethod
    def load(cls, path: str, config: LossConfig) -> CustomLoss:
        """The function at `module:attribute` or `file.py:attribute`."""
        function = load_checked(path, option=OPTION)
        if not callable(function):
            raise ConfigError(f"{OPTION} = {path!r} is no function")
        return cls(function, config)

    @torch.enable_grad()
    def given(self, inputs: LossInputs) -> Given:
        """The loss, and its slope at each of the N tokens, whatever the user's file has switched off."""
        values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
        values |= {"loss_inputs": inputs}
        first = [self._config if name == "config" else values[name] for name in POSITIONAL]
        with one_process():
            returned = self._function(*first, **{name: values[name] for name in self._extras})
        loss = self._as_scalar(returned, inputs)
        (slope,) = torch.autograd.grad(loss, inputs.policy_logprobs, allow_unused=True)
        if slope is None:
            raise ConfigError(NOTHING_LEARNED)
        return Given(value=float(loss.detach()), slope=slope)

    def _as_scalar(self, returned: object, inputs: LossInputs) -> Tensor:
        size = inputs.policy_logprobs.numel()
        if not isinstance(returned, Tensor) or returned.shape not in {torch.Size([]), torch.Size([size])}:
            what = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
            raise ConfigError(f"{OPTION}: returned {what}, not a scalar tensor or one term for each of {size} tokens")
        if not returned.requires_grad:
            raise ConfigError(
                f"{OPTION}: what it returned does not depend on policy_logprobs: nothing would be learned"
            )
        return returned if returned.ndim == 0 else (returned * inputs.weights).sum()


def given_by(
    custom: CustomLoss,
    hidden: Tensor,
    context: StepContext,
    distribution: Distribution,
    config: LossConfig,
    *,
    first: bool,
) -> Given:
    """The custom loss of a whole batch, its slope laid into the flat row.

    `hidden` [N, H]: the student's hidden states at every acting token, without gradients; `first`: whether this is
    the first pass over the batch.

    Raises:
        LossFailed: the function raised over these tokens, or returned what is no loss.
    """
    batch = context.batch
    acting = (batch.weights > 0).nonzero().squeeze(-1)
    read = _joined(
        token_readings(
            distribution(hidden[piece], batch.temperature[piece]), piece, context, distribution, config, first=first
        )
        for piece in torch.split(acting, PIECE)
    )
    absent = torch.full_like(read.advantage, math.nan)
    inputs = LossInputs(
        policy_logprobs=read.student.requires_grad_(),
        reference_logprobs=read.reference,
        old_logprobs=read.old,
        teacher_logprobs=read.teacher,
        rewards=torch.where(batch.reward_mask[acting], batch.rewards[acting], absent),
        advantages=read.advantage,
        mask=torch.ones_like(acting, dtype=torch.bool),
        reward_mask=batch.reward_mask[acting],
        hint_mask=batch.hint_mask[acting],
        owner=batch.owner[acting],
        weights=batch.weights[acting],
        samples=batch.samples,
    )
    try:
        given = custom.given(inputs)
    except BaseException as error:  # whatever the user's own code raises
        raise LossFailed(refusal("custom_loss", OPTION, error)) from error
    slope = torch.zeros_like(batch.weights)
    slope[acting] = given.slope
    return Given(value=given.value, slope=slope)


def _joined(parts: Iterable[TokenReadings]) -> TokenReadings:
    """The readings of neighbouring pieces as those of one."""
    read = list(parts)
    names = [field.name for field in fields(TokenReadings)]
    return TokenReadings(**{name: torch.cat([getattr(part, name) for part in read]) for name in names})


def _extras(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names that a function asks for after the first five.

    Raises:
        ConfigError: it takes fewer, or one that there is not, or does not say (a built-in function).
    """
    known = {*(field.name for field in fields(LossInputs)), "loss_inputs"} - set(POSITIONAL)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError as error:
        raise ConfigError(f"{OPTION}: {error}") from error
    plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    first, rest = parameters[: len(POSITIONAL)], parameters[len(POSITIONAL) :]
    if len(first) < len(POSITIONAL) or any(one.kind not in plain for one in first):
        raise ConfigError(
            f"{OPTION}: the function takes {', '.join(POSITIONAL)}, in this order, before anything else"
        )
    for one in rest:
        nameable = one.kind in {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        if not nameable or one.name not in known:
            raise ConfigError(f"{OPTION}: no value for its parameter {one}; there is {', '.join(sorted(known))}")
    return tuple(one.name for one in rest)


def _made_up() -> LossInputs:
    """Four tokens of two answers."""
    logprobs = torch.tensor([-0.5, -1.0, -1.5, -2.0])
    yes = torch.ones(4, dtype=torch.bool)
    return LossInputs(
        policy_logprobs=logprobs.clone().requires_grad_(),
        reference_logprobs=logprobs - 0.1,
        old_logprobs=logprobs + 0.05,
        teacher_logprobs=logprobs + 0.2,
        rewards=torch.tensor([1.0, 1.0, 1.0, -1.0]),
        advantages=torch.tensor([1.0, 1.0, 1.0, -1.0]),
        mask=yes,
        reward_mask=yes,
        hint_mask=yes,
        owner=torch.tensor([0, 0, 0, 1]),
        weights=torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2]),
        samples=(),
    )
