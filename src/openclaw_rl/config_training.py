"""The sections below `[training]` that are large enough for a place of their own; what `config` is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from openclaw_rl.config_base import Decay, Positive, Section

NotNegative = Annotated[float, Field(ge=0.0)]

CLIPS = ("clip_low", "clip_high")


class LossConfig(Section):
    """One loss for all methods (docs: "Training")."""

    kind: Literal["ppo", "cispo", "gspo", "importance_sampling"] = "ppo"
    """How advantages become a loss of the sampled tokens. `ppo`: the clipped ratio; `cispo`: the clipped ratio as a
    constant weight; `gspo`: one ratio per answer; `importance_sampling`: the ratio as it is."""
    clip_low: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Ratios below 1 - clip_low are clipped. `gspo` wants far less, about 3e-4."""
    clip_high: Positive = 0.28
    """Ratios above 1 + clip_high are clipped. `gspo` wants far less, about 4e-4."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Bounds the loss of a bad token whose ratio has grown, at this many times its advantage (`ppo` only)."""
    tis_cap: Positive | None = None
    """Corrects for the difference between engine and trainer apart from the policy's ratio, by their own ratio, cut
    at this cap. None: one ratio, straight to what the engine recorded, has both in it."""
    icepop_low: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Tokens on which trainer and engine disagree by a ratio below this are left out; needs icepop_high."""
    icepop_high: Annotated[float, Field(gt=1.0)] | None = None
    """Tokens on which trainer and engine disagree by a ratio above this are left out; needs icepop_low."""
    kl: Literal["exact", "k1", "k2", "k3"] = "exact"
    """The KL to the base: over the whole vocabulary, or estimated at the sampled token."""
    kl_coef: NotNegative = 0.1
    """Weight of the KL to the base at every response position."""
    entropy_coef: NotNegative = 0.0
    """Weight of the bonus for entropy at every response position."""
    w_rl: NotNegative = 1.0
    """The weight of the advantages from rewards."""
    w_opd: NotNegative = 1.0
    """The weight of the distillation."""
    w_retry: NotNegative = 0.0
    """Weight of an accepted retry under the first prompt; needs rollout.accepted_retry."""
    retry: Literal["likelihood", "forward_kl"] = "likelihood"
    """`likelihood` of the tokens that were accepted, or `forward_kl` from the policy that read the correction."""
    opd_top_k: Annotated[int, Field(ge=0)] = 4
    """The student's k likeliest tokens plus a tail carry the distillation; 0: the sampled token alone."""
    opd_clip: Positive = 1.0
    """C: log-probability differences are clipped to ±C (nats)."""
    baseline: Literal["none", "running", "per_key", "group", "step"] = "running"
    """What a reward is measured against. `running`: a moving average of rewards, so that a mostly negative user does
    not only unteach; `per_key`: one for each API key; `group`: the mean of the answers to the same messages; `step`:
    the mean of the same step of conversations that began alike. An answer that is alone has the moving average."""
    normalise: Literal["none", "group", "batch"] = "none"
    """What the difference is divided by: the standard deviation of its group, or of the batch (whose mean is
    subtracted too)."""
    baseline_decay: Decay = 0.9
    """The weight of the past in the moving average, at each batch."""
    reduction: Literal["tokens", "samples"] = "samples"
    """Mean over effective tokens, or over effective samples of the mean over their tokens."""

    @property
    def clip_range(self) -> float:
        """`clip_low`, under the name that custom losses of the earlier system read."""
        return self.clip_low

    @property
    def corrects_mismatch(self) -> bool:
        """Whether engine and trainer are told apart, so that ratios start from the trainer's own log-probability."""
        return self.tis_cap is not None or self.icepop_low is not None

    @property
    def grouped(self) -> bool:
        """Whether rewards are compared within groups."""
        return self.baseline in {"group", "step"}

    def changed(self, *names: str) -> list[str]:
        """Which of these settings differ from their defaults, by full name."""
        fields = type(self).model_fields
        return [f"training.loss.{name}" for name in names if getattr(self, name) != fields[name].default]

    @model_validator(mode="after")
    def _policy_terms_agree(self) -> LossConfig:
        if self.dual_clip is not None and self.kind != "ppo":
            raise ValueError(f"training.loss.dual_clip is only for kind = ppo, and it is {self.kind}")
        if self.kind == "importance_sampling" and not self.opd_top_k and (unused := self.changed(*CLIPS)):
            raise ValueError(f"{unused[0]} does nothing with kind = importance_sampling and opd_top_k = 0")
        if (self.icepop_low is None) != (self.icepop_high is None):
            raise ValueError("training.loss.icepop_low and icepop_high make a band: set both, or none")
        if self.tis_cap is not None and self.icepop_high is not None and self.tis_cap >= self.icepop_high:
            raise ValueError("training.loss.tis_cap never acts: icepop_high leaves out all that it would cut")
        return self

    @model_validator(mode="after")
    def _other_terms_agree(self) -> LossConfig:
        if self.kl != "exact" and not self.kl_coef:
            raise ValueError(f"training.loss.kl = {self.kl} with kl_coef = 0 weighs nothing")
        if self.retry != "likelihood" and not self.w_retry:
            raise ValueError(f"training.loss.retry = {self.retry} with w_retry = 0 weighs nothing")
        if self.normalise == "group" and not self.grouped:
            raise ValueError("training.loss.normalise = group needs baseline = group or step: those have groups")
        if self.baseline == "none" and self.changed("baseline_decay"):
            raise ValueError("training.loss.baseline_decay does nothing with baseline = none")
        return self
