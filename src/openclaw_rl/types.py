"""The carriers that cross loops. The states they pass through are in `openclaw_rl.states`, and to be had here, too.

Nothing else of ours is imported. A carrier is frozen and keyword-only, and its constructor checks what the
rest of the code relies on, so that nobody downstream checks it again. `None` always means *absent*; it is
never written as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.states import SAMPLE_TRANSITIONS as SAMPLE_TRANSITIONS
from openclaw_rl.states import TURN_TRANSITIONS as TURN_TRANSITIONS
from openclaw_rl.states import VERSION_TRANSITIONS as VERSION_TRANSITIONS
from openclaw_rl.states import ExclusionReason as ExclusionReason
from openclaw_rl.states import FinishReason as FinishReason
from openclaw_rl.states import InvalidTransition as InvalidTransition
from openclaw_rl.states import JudgementOutcome as JudgementOutcome
from openclaw_rl.states import LoopName as LoopName
from openclaw_rl.states import Method as Method
from openclaw_rl.states import SampleState as SampleState
from openclaw_rl.states import SignalKind as SignalKind
from openclaw_rl.states import TurnState as TurnState
from openclaw_rl.states import TurnType as TurnType
from openclaw_rl.states import VersionState as VersionState
from openclaw_rl.states import check_transition as check_transition

Message = Mapping[str, Any]
"""One chat message as the client sent it: a JSON object with `role` and `content`."""

HUMAN = "human"
"""The kind of a judgement that a person made."""

ENVIRONMENT = "environment"
"""The kind of a judgement that an environment sent: a reward by its own rules."""

BASE_VERSION = 0
"""The policy version of the untrained base: the adapter switched off."""

NO_VERSION = 2**32 - 1
"""Stands in `TokenRecord.versions` for a token that no version drew: it was made from an imported text."""


# --- states ------------------------------------------------------------------------------------------------


def check_hints(hint: str | None, alternatives: tuple[str, ...]) -> None:
    """Hint candidates are texts, and there are none beside a hint that is missing.

    Raises:
        ValueError: if that is not so.
    """
    if alternatives and hint is None:
        raise ValueError("there are alternatives to a hint only where there is a hint")
    if not all(candidate.strip() for candidate in (*(() if hint is None else (hint,)), *alternatives)):
        raise ValueError("a hint is text, or None")


GREEDY_BELOW = 0.01
"""Temperatures from here on sample. Engines raise lower ones (vLLM to this), or take the likeliest token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the tokens of a turn were drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be between 0 and 2, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0: no limit), got {self.top_k}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def greedy(self) -> bool:
        """Whether nothing was sampled, or as good as nothing: a ratio of probabilities means nothing then."""
        return self.temperature < GREEDY_BELOW

    @property
    def truncated(self) -> bool:
        """Whether tokens were drawn from a part of the vocabulary only."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """The exact tokens of one answer, as the engine saw and drew them.

    `prompt_ids` [P]; `response_ids`, `logprobs`, `versions` [R], aligned. A log-probability (nats) that the
    engine did not give is None, never 0.0. `versions[i]` is the policy version that drew token i.

    `kept` [R] where sampling was truncated: the ids that token i was drawn from (its log-probability is the one among
    them), None where the engine could not say. None as a whole where nothing was cut.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    kept: tuple[tuple[int, ...] | None, ...] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.response_ids), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(
                "response_ids, logprobs and versions must have one length, got "
                f"{len(self.response_ids)}, {len(self.logprobs)}, {len(self.versions)}"
            )
        if self.kept is not None and len(self.kept) != len(self.response_ids):
            raise ValueError(f"kept has one entry per response id, got {len(self.kept)}, {len(self.response_ids)}")

    @property
    def kept_sets_known(self) -> bool:
        """Whether every token's kept set is there, and holds the token."""
        return self.kept is not None and all(
            kept is not None and token in kept for token, kept in zip(self.response_ids, self.kept, strict=True)
        )

    def untrainable_reason(self, *, reconstructed: bool = False) -> ExclusionReason | None:
        """The reason why these tokens cannot be trained, or None.

        Where they are `reconstructed` they are distilled from only, which asks for no log-probability.
        """
        if not self.response_ids:
            return ExclusionReason.EMPTY_RESPONSE
        if not self.prompt_ids:
            return ExclusionReason.MISSING_TOKEN_IDS
        if reconstructed:
            return None
        if any(logprob is None for logprob in self.logprobs):
            return ExclusionReason.MISSING_LOGPROBS
        if not all(math.isfinite(logprob) for logprob in self.logprobs if logprob is not None):
            return ExclusionReason.NONFINITE_LOGPROBS
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request as it arrived, recorded before the engine is asked.

    `new_messages` are the messages after the parent's answer, without what the client put in for one request: the
    parent's next state. Empty without a parent. `retry_of`: the earlier attempt that this one repeats, because that
    one failed or never reached the client; `sibling_of`: the latest other answer to the same messages.
    `side_rule` names the rule that made this a side turn, None where the client said so itself.
    `owner`: whose policy is asked and learns from the answer (`policies.per`); "" is the shared one.
    """

    turn_id: str
    session_id: str
    key_id: str
    parent_turn_id: str | None
    turn_type: TurnType
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    new_messages: tuple[Message, ...]
    session_done: bool
    model: str
    ambiguous: bool = False
    retry_of: str | None = None
    sibling_of: str | None = None
    side_rule: str | None = None
    owner: str = ""
    created_at: float

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a request has at least one message")
        if self.new_messages and self.parent_turn_id is None:
            raise ValueError("new_messages need a parent turn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """Something that a user did about an answer; `by_turn_id` is the request that showed it, where one did."""

    kind: SignalKind
    by_turn_id: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request answered by the policy; `next_state` is what the client sent after the answer.

    `signals` are there in a turn that was claimed for judging; elsewhere they are not looked up.

    `reconstructed`: the conversation was imported, and no policy of this deployment drew these tokens. They are
    distilled from only: log-probabilities that somebody else's policy had, or none, make no ratio.
    """

    request: Request
    answer: Message
    tokens: TokenRecord
    sampling: SamplingParams
    finish_reason: FinishReason
    state: TurnState
    reason: ExclusionReason | None = None
    next_state: tuple[Message, ...] | None = None
    signals: tuple[Signal, ...] = ()
    reconstructed: bool = False
    served_at: float

    def __post_init__(self) -> None:
        if (self.state is TurnState.EXCLUDED) != (self.reason is not None):
            raise ValueError(f"a turn has a reason exactly when it is excluded, got {self.state}, {self.reason}")

    @property
    def turn_id(self) -> str:
        """The id of the turn, which is that of its request."""
        return self.request.turn_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What a judge made of a turn and its next state. `score` in [-1, 1] exactly when the outcome is SCORED.

    `hint` is the longest of the candidates that were accepted, `alternatives` are the others.
    """

    turn_id: str
    kind: str
    outcome: JudgementOutcome
    score: float | None
    hint: str | None
    alternatives: tuple[str, ...] = ()
    prompt_version: str
    latency_s: float
    details: Mapping[str, Any] = field(default_factory=dict)
    created_at: float

    def __post_init__(self) -> None:
        if (self.outcome is JudgementOutcome.SCORED) != (self.score is not None):
            raise ValueError(f"a score goes with outcome scored only, got {self.outcome}, {self.score}")
        if self.score is not None and not -1.0 <= self.score <= 1.0:
            raise ValueError(f"a score lies between -1 and 1, got {self.score}")
        check_hints(self.hint, self.alternatives)

    @property
    def hints(self) -> tuple[str, ...]:
        """All candidates; none without a hint."""
        return () if self.hint is None else (self.hint, *self.alternatives)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A turn and what followed: the turn whose request brought its next state, and its latest judgement.

    Either is None while it is not there.
    """

    turn: Turn
    next_turn_id: str | None
    judgement: Judgement | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryDemonstration:
    """An accepted second try, as a demonstration for the first prompt, the one without the correction.

    `response_ids` are the tokens served as the answer to the correction; `turn_id` is the turn that served them.
    `prompt_ids` are the tokens of the first prompt; `prompt_turn_id` is the turn that answered it first. The loss
    term is the likelihood of `response_ids` after `prompt_ids`, never a ratio: nobody drew them for that prompt.

    It rides on the sample of the turn that was accepted, not on that of the first try: acceptance is known only one
    exchange after the first try's own sample, which may have been trained by then.
    """

    turn_id: str
    response_ids: tuple[int, ...]
    prompt_turn_id: str
    prompt_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.response_ids:
            raise ValueError("a demonstration has a prompt and a response")
        if self.turn_id == self.prompt_turn_id:
            raise ValueError("a demonstration is for the prompt of another turn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a sample stands among others: what rewards may be compared by.

    `group_id` is shared by the answers of one key to the same messages (regenerated ones, rollouts of one task);
    `task_id` by all answers of that key's conversations that began with the same messages, `step` counting the
    answers before it. None where the messages were recorded without their hash: the sample is then compared with no
    other.

    In a `rollout` (its name; None elsewhere) both are its group: all answers of the rollouts of one task.
    """

    key_id: str
    group_id: str | None
    task_id: str | None
    step: int
    rollout: str | None = None

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"steps count from 0, got {self.step}")


class UnsoundSample(ValueError):
    """What nobody can train; `reason` is a counter's name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A turn with a signal: what one training step consumes, once.

    At least one of `reward` (in [-1, 1]) and `hint` is present; each loss term exists only where its signal does.
    `alternatives` are the other hint candidates that were accepted; the trainer may take one of them instead.
    `retry` says that this very response, an accepted second try, is also a demonstration for the first prompt.
    A `reconstructed` one (see `Turn`) has a hint and nothing else.
    `origin` is there in a sample that the store gives out.

    Raises:
        UnsoundSample: if any of this is not so.
    """

    turn_id: str
    session_id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    tokens: TokenRecord
    sampling: SamplingParams
    finish_reason: FinishReason
    reward: float | None
    hint: str | None
    alternatives: tuple[str, ...] = ()
    retry: RetryDemonstration | None = None
    reconstructed: bool = False
    origin: Origin | None = None
    created_at: float

    def __post_init__(self) -> None:
        if self.reconstructed and (self.reward is not None or self.retry is not None):
            raise UnsoundSample("reconstructed", "a reconstructed sample is distilled from only: no reward, no retry")
        if self.reward is None and self.hint is None and self.retry is None:
            raise UnsoundSample("no_signal", "a sample has a reward, a hint or a retry")
        if self.reward is not None and not -1.0 <= self.reward <= 1.0:
            raise UnsoundSample("reward_out_of_range", f"a reward lies between -1 and 1, got {self.reward}")
        check_hints(self.hint, self.alternatives)
        if self.retry is not None and self.retry.turn_id != self.turn_id:
            raise ValueError("a retry rides on the sample of the turn that was accepted")
        reason = self.tokens.untrainable_reason(reconstructed=self.reconstructed)
        if reason is not None:
            raise UnsoundSample(reason.value, f"these tokens cannot be trained: {reason}")
        if self.sampling.truncated and not self.reconstructed and not self.tokens.kept_sets_known:
            raise UnsoundSample("truncated_support", "tokens drawn from a part of the vocabulary need that part")

    @property
    def hints(self) -> tuple[str, ...]:
        """All hint candidates; none without a hint."""
        return () if self.hint is None else (self.hint, *self.alternatives)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The engine's log-probabilities [R]: all there, the constructor saw to that; all NaN where reconstructed."""
        if self.reconstructed:
            return (math.nan,) * len(self.tokens.response_ids)
        return tuple(logprob for logprob in self.tokens.logprobs if logprob is not None)

    @property
    def version(self) -> int | None:
        """The version that drew the first token, by which staleness is measured; None where reconstructed."""
        return None if self.reconstructed else self.tokens.versions[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    """A published policy: a PEFT directory with a manifest, or the base (version 0, `path` None)."""

    version: int
    state: VersionState
    path: str | None
    step: int
    created_at: float
    reason: str | None = None
    """Why it was rejected; or why it was taken out of service: None where a newer one took its place."""
    basis: int | None = None
    """The version whose weights its step began with; None: there was none, or it was not written down then."""
    pinned: bool = False
    """Kept in service until it is unpinned, whatever is trained meanwhile."""
    owner: str = ""
    """Whose policy it is a version of; "" is the shared one. The base is everybody's."""

    @property
    def name(self) -> str:
        """The name under which engines load it; never reused for another version."""
        return "base" if self.version == BASE_VERSION else f"policy-v{self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One committed optimiser step and the samples it consumed.

    `teacher` says who read the hints and which candidate of each sample was taken (`training.teacher.TeacherRecord`);
    empty where the step had no hint.
    """

    step: int
    version: int
    sample_ids: tuple[str, ...]
    metrics: Mapping[str, float]
    checkpoint: str
    seconds: float
    teacher: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopStatus:
    """What a loop last said of itself: `waiting_for` is a sentence, or None while it works."""

    loop: LoopName
    pid: int
    heartbeat_at: float
    activity: str
    waiting_for: str | None
    since: float
    details: Mapping[str, Any] = field(default_factory=dict)
