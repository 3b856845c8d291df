"""How often a judge agrees with labelled cases, by language and by group, and what it costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.judging.base import Judge, JudgeError
from openclaw_rl.judging.cases import Case
from openclaw_rl.types import (
    FinishReason,
    Judgement,
    Request,
    SamplingParams,
    TokenRecord,
    Turn,
    TurnState,
    TurnType,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Shares of a set of cases; None where the set holds none that count.

    `accuracy` counts a missing score, a tie or a failure as wrong; `accuracy_signed` is over the cases labelled ±1,
    where 0 counts as wrong too.
    """

    cases: int
    accuracy: float | None
    accuracy_signed: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What `evaluate` found. `confusion` maps "label>verdict" to a count; `misjudged` are indices into the cases."""

    kind: str
    prompt_version: str
    overall: Agreement
    by_language: Mapping[str, Agreement]
    by_group: Mapping[str, Agreement]
    hint_precision: float | None
    hint_recall: float | None
    confusion: Mapping[str, int]
    failures: Mapping[str, int]
    latency_mean_s: float
    latency_max_s: float
    misjudged: tuple[int, ...]


def turn_of(case: Case, number: int) -> Turn:
    """A case as the turn that a judge would see; its tokens are placeholders, which no judge reads."""
    now = time.time()
    turn_id = f"case{number}"
    request = Request(
        turn_id=turn_id,
        session_id="cases",
        key_id="cases",
        parent_turn_id=None,
        turn_type=TurnType.MAIN,
        messages=({"role": "user", "content": case.task},),
        tools=(),
        new_messages=(),
        session_done=False,
        model="cases",
        created_at=now,
    )
    return Turn(
        request=request,
        answer={"role": "assistant", "content": case.output},
        tokens=TokenRecord(prompt_ids=(0,), response_ids=(0,), logprobs=(0.0,), versions=(0,)),
        sampling=SamplingParams(max_tokens=1),
        finish_reason=FinishReason.STOP,
        state=TurnState.JUDGING,
        next_state=case.next_state,
        served_at=now,
    )


async def evaluate(judge: Judge, cases: Sequence[Case]) -> Evaluation:
    """Judge every case, one after the other, and compare with its labels."""
    verdicts: list[float | None] = []
    hinted: list[bool] = []
    latencies: list[float] = []
    failures: Counter[str] = Counter()
    for number, case in enumerate(cases):
        started = time.monotonic()
        judgement = await _judge_one(judge, turn_of(case, number), failures)
        latencies.append(time.monotonic() - started)
        verdicts.append(None if judgement is None else judgement.score)
        hinted.append(judgement is not None and judgement.hint is not None)
    pairs = list(zip(cases, verdicts, strict=True))
    found = sum(hint and case.corrective for hint, case in zip(hinted, cases, strict=True))
    corrective = sum(case.corrective for case in cases)
    groups = {case.group for case in cases if case.group is not None}
    return Evaluation(
        kind=judge.kind,
        prompt_version=judge.prompt_version,
        overall=agreement(pairs),
        by_language={
            language: agreement([pair for pair in pairs if pair[0].language == language])
            for language in sorted({case.language for case in cases})
        },
        by_group={group: agreement([pair for pair in pairs if pair[0].group == group]) for group in sorted(groups)},
        hint_precision=_share(found, sum(hinted)),
        hint_recall=_share(found, corrective),
        confusion=dict(Counter(f"{case.score}>{_sign(verdict)}" for case, verdict in pairs)),
        failures=dict(failures),
        latency_mean_s=sum(latencies) / max(1, len(latencies)),
        latency_max_s=max(latencies, default=0.0),
        misjudged=tuple(n for n, (case, verdict) in enumerate(pairs) if _sign(verdict) != str(case.score)),
    )


def agreement(pairs: Sequence[tuple[Case, float | None]]) -> Agreement:
    """Compare labels with verdicts by their sign."""
    right = [_sign(verdict) == str(case.score) for case, verdict in pairs]
    signed = [ok for ok, (case, _) in zip(right, pairs, strict=True) if case.score != 0]
    return Agreement(
        cases=len(pairs),
        accuracy=_share(sum(right), len(right)),
        accuracy_signed=_share(sum(signed), len(signed)),
    )


async def _judge_one(judge: Judge, turn: Turn, failures: Counter[str]) -> Judgement | None:
    try:
        judgement = await judge.judge(turn)
    except JudgeError as error:
        failures[error.reason] += 1
        return None
    if judgement.score is None:
        failures[judgement.outcome.value] += 1
    return judgement


def _sign(verdict: float | None) -> str:
    return "none" if verdict is None else str((verdict > 0) - (verdict < 0))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
