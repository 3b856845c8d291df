"""The section `training.gate`: what a step must not do if its version is ever to serve."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from openclaw_rl.config_base import Fraction, Positive, Section


class GateConfig(Section):
    """What a step must not do if its version is ever to serve."""

    max_kl_to_base: Positive = 10.0
    """Mean exact KL of the new weights to the base on the batch's own answers, nats per token."""
    max_kl_to_last: Positive = 3.0
    """The same to the weights that the step began with: how far one step may go."""
    min_entropy: Annotated[float, Field(ge=0.0)] = 0.01
    """Mean entropy of the new weights on the batch's own answers, nats per token: below, they say one thing only. It
    refuses nothing where the base's own is below it too: such answers leave little to say."""
    probes: Annotated[int, Field(ge=0, le=64)] = 3
    """Prompts of the batch that the new weights answer, to see how they speak; 0: none, and no check of language."""
    probe_tokens: Annotated[int, Field(ge=8, le=1024)] = 32
    """The longest such answer."""
    max_nats_below_told_base: Positive = 0.7
    """How much less likely such answers may be, per token, than the base's own, both under the base that is told
    what the hints say."""
    max_nats_below_base: Positive = 1.5
    """The same where nobody hinted at anything yet, or ever: under the base as it is. A wish that is known by scores
    alone makes answers less likely, too, so there is more room."""
    max_repetition: Fraction = 0.6
    """The share of 4-grams in such answers that were there before."""
    max_probe_drop: Positive = 2.0
    """How much less likely than under the base, per token, answers may become that were accepted once (the last four
    trained with a reward above 0, taken from the record), or, before there are four, good answers to plain questions
    that come with the program."""
    evaluation_path: str | None = None
    """An evaluation of your own, `module:function` or `file.py:function`: takes the version's directory (an adapter,
    or a whole model), gives a number."""
    min_evaluation: float | None = None
    """The least that it must give."""

    def without_room(self, context_length: int, named: str) -> str | None:
        """Why no prompt could ever be probed in a context so long, which is called `named`; None where one can."""
        if not self.probes or self.probe_tokens < context_length:
            return None
        return (
            f"training.gate.probe_tokens = {self.probe_tokens} leaves no room for a prompt with {named} = "
            f"{context_length}: set a smaller one, or training.gate.probes = 0"
        )

    @model_validator(mode="after")
    def _an_evaluation_is_held_to_something(self) -> GateConfig:
        if (self.evaluation_path is None) != (self.min_evaluation is None):
            raise ValueError("training.gate.evaluation_path and training.gate.min_evaluation belong together")
        return self
