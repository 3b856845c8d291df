"""The section `judge` of the configuration tree: who turns a next state into a score and a hint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from openclaw_rl.config_base import Count, Fraction, Positive, Section

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

    kind: Literal["classifier", "verdict_logits", "llm", "custom", "reward_model", "scripted"] = "classifier"
    """Who judges (page 03)."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint for kind = llm; None: this gateway's own, with the base weights."""
    model: str = "base"
    """kind = llm: the model name that the endpoint knows. kind = reward_model: the classifier's directory."""
    api_key_env: str | None = None
    """The environment variable that holds the endpoint's key. The key itself is never configured or logged."""
    custom_rm_path: str | None = None
    """Your own reward model for kind = custom: `module:function` or `file.py:function`."""
    score_range: tuple[float, float] | None = None
    """Lowest and highest score of a reward model, mapped to -1 and 1; unset: -1,1 (custom), 0,1 (a probability)."""
    positive_class: int | None = Field(default=None, ge=0)
    """kind = reward_model: the index of the class whose probability counts; unset: 1 of two classes."""
    votes: Count = 3
    """Votes of an llm judge (`--majority-vote-n`, `PRM_M`)."""
    vote_threshold: Fraction = 0.5
    """The share of valid votes that a score needs to exceed (`--majority-vote-threshold`)."""
    min_valid_votes: Count = 1
    """Fewer readable votes than this are no verdict."""
    hint_selection: Literal["longest", "overlap"] | None = None
    """Which of several hint candidates is taken: the longest, or the one under which the teacher's likeliest tokens
    overlap the student's most. Unset: `overlap` with training.loss.opd_top_k above 0, else `longest`."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.6
    """kind = llm: of each vote; at 0 all votes are alike."""
    max_tokens: Count = 512
    """Of one vote; a judge that thinks aloud needs more."""
    shown_chars: Annotated[int, Field(ge=500)] = 14000
    """What an llm judge is shown of one turn, characters; what is longer loses its middle."""
    timeout_s: Positive = 60.0
    """Per vote, its retries included."""
    max_retries: Annotated[int, Field(ge=0)] = 2
    """Of one vote, after a fault that may pass; pauses double, with jitter, and honour Retry-After."""
    turn_timeout_s: Positive = 90.0
    """Per turn: votes that are not in by then are lost, and the others decide. Below judge.lease_s."""
    workers: Count = 2
    """Turns judged at once (`--num-judge-workers`)."""
    lease_s: Positive = 120.0
    """A claimed turn goes back to the queue when its judge has been silent for this long."""
    max_attempts: Count = 3
    """After this many failures of its own a turn is excluded as judge_failed; while the judge is down none counts."""
    collapse_window: Annotated[int, Field(ge=2)] = 50
    """When this many scores in a row are all but equal, log and `status` warn, and say what to check."""
    signals: SignalWeights = SignalWeights()

    @model_validator(mode="after")
    def _votes_can_decide(self) -> JudgeConfig:
        if self.min_valid_votes > self.votes:
            raise ValueError("judge.min_valid_votes is above judge.votes: no verdict would ever count")
        if self.turn_timeout_s >= self.lease_s:
            raise ValueError(
                f"judge.turn_timeout_s = {self.turn_timeout_s:g} must be below judge.lease_s = {self.lease_s:g}: "
                "the turn would be judged twice at once"
            )
        return self

    @model_validator(mode="after")
    def _options_of_this_kind(self) -> JudgeConfig:
        for name, kinds in _ONLY_FOR.items():
            if self.kind not in kinds and getattr(self, name) is not None:
                raise ValueError(f"judge.{name} is only for judge.kind = {' or '.join(kinds)}, and it is {self.kind}")
        if self.kind == "custom" and self.custom_rm_path is None:
            raise ValueError("judge.kind = custom needs judge.custom_rm_path (--custom-rm-path)")
        if self.kind == "reward_model" and self.model == "base":
            raise ValueError("judge.kind = reward_model needs judge.model, the directory of a sequence classifier")
        return self

    @model_validator(mode="after")
    def _values_make_sense(self) -> JudgeConfig:
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"judge.base_url {self.base_url!r} must begin with http:// or https://")
        if self.score_range is not None:
            low, high = self.score_range
            if not low < high:
                raise ValueError(f"judge.score_range {low:g},{high:g} must be two numbers, the lower one first")
        return self


_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "base_url": ("llm",),
    "api_key_env": ("llm",),
    "custom_rm_path": ("custom",),
    "score_range": ("custom", "reward_model"),
    "positive_class": ("reward_model",),
}
