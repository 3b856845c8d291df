"""The section `judge` of the configuration tree: who turns a next state into a score and a hint."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from openclaw_rl.config_section import Count, Fraction, Positive, Section

Weight = Annotated[float, Field(ge=-1.0, le=1.0)]


class SignalWeights(Section):
    """What a user's doing adds to the score of an answer, for each kind of signal that was seen; 0: nothing."""

    regenerated: Weight = 0.0
    """Another answer to the same messages was asked for."""
    edited: Weight = 0.0
    """The question was asked again in other words."""
    abandoned: Weight = 0.0
    """Nobody came back to the answer."""


class JudgeConfig(Section):
    """Who turns a next state into a score and a hint."""

    kind: Literal["classifier", "verdict_logits", "llm", "scripted"] = "classifier"
    base_url: str | None = None
    """An OpenAI-compatible endpoint for kind = llm; None: this gateway's own, with the base weights."""
    model: str = "base"
    api_key_env: str | None = None
    """The environment variable that holds the endpoint's key. The key itself is never configured or logged."""
    votes: Count = 3
    """Votes of an llm judge (`--majority-vote-n`, `PRM_M`)."""
    vote_threshold: Fraction = 0.5
    """The share of valid votes that a score needs to exceed (`--majority-vote-threshold`)."""
    min_valid_votes: Count = 1
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.6
    max_tokens: Count = 512
    timeout_s: Positive = 60.0
    """Per vote."""
    max_retries: Annotated[int, Field(ge=0)] = 2
    workers: Count = 2
    """Turns judged at once (`--num-judge-workers`)."""
    lease_s: Positive = 120.0
    """A claimed turn goes back to the queue when its judge has been silent for this long."""
    signals: SignalWeights = SignalWeights()
    max_attempts: Count = 3
    """After this many failures a turn is excluded as judge_failed."""

    @model_validator(mode="after")
    def _votes_can_decide(self) -> JudgeConfig:
        if self.min_valid_votes > self.votes:
            raise ValueError("judge.min_valid_votes is above judge.votes: no verdict would ever count")
        for name in ("base_url", "api_key_env"):
            if self.kind != "llm" and getattr(self, name) is not None:
                raise ValueError(f"judge.{name} is only for judge.kind = llm, and it is {self.kind}")
        return self
