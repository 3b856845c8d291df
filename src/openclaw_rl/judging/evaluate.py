"""How often a judge agrees with labelled cases, by language and by group, and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, TypeVar

from openclaw_rl.judging.base import Judge, JudgeError, JudgeUnavailable
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

T = TypeVar("T")

LANGUAGES = ("en", "zh")


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
class Attempt:
    """What came of one case: the judgement, or why there is none (a word, and a sentence)."""

    judgement: Judgement | None
    failure: str | None
    message: str | None
    latency_s: float

    @property
    def score(self) -> float | None:
        """The score, None where there is none."""
        return None if self.judgement is None else self.judgement.score

    @property
    def raw(self) -> Mapping[str, Any]:
        """What the verdict rests on, in the judge's own terms: raw replies, probabilities, an error."""
        if self.judgement is None:
            return {"error": self.failure, "message": self.message}
        return {"outcome": self.judgement.outcome.value, **self.judgement.details}


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
    latencies_s: tuple[float, ...]
    misjudged: tuple[int, ...]
    raw_outputs: Mapping[int, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The same for programs; shares are None where there is nothing to share."""
        return {
            "kind": self.kind,
            "prompt_version": self.prompt_version,
            **asdict(self.overall),
            "by_language": {name: asdict(share) for name, share in self.by_language.items()},
            "by_group": {name: asdict(share) for name, share in self.by_group.items()},
            "hint_precision": self.hint_precision,
            "hint_recall": self.hint_recall,
            "confusion": dict(self.confusion),
            "failures": dict(self.failures),
            "latency": {
                "mean_s": fmean(self.latencies_s) if self.latencies_s else None,
                "median_s": median(self.latencies_s) if self.latencies_s else None,
                "max_s": max(self.latencies_s, default=None),
            },
            "misjudged": list(self.misjudged),
            "raw_outputs": {str(number): dict(raw) for number, raw in self.raw_outputs.items()},
        }


def turn_of(case: Case, number: int) -> Turn:
    """A case as the turn that a judge would see; its tokens are made up, for no judge reads them."""
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


async def evaluate(judge: Judge, cases: Sequence[Case], *, workers: int = 1) -> Evaluation:
    """Judge every case, `workers` at once, and compare with its labels.

    Raises:
        JudgeUnavailable: if what the judge needs is down before it has judged anything.
    """
    limit = asyncio.Semaphore(workers)
    judged = 0

    async def attempt(number: int, case: Case) -> Attempt:
        nonlocal judged
        async with limit:
            made = await _attempt(judge, turn_of(case, number), raises=judged == 0)
        judged += made.judgement is not None
        return made

    attempts = await all_of(attempt(number, case) for number, case in enumerate(cases))
    return summary(judge.kind, judge.prompt_version, cases, attempts)


async def all_of(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run these at once; the first error is raised when the others have been cancelled and have ended."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def summary(kind: str, prompt_version: str, cases: Sequence[Case], attempts: Sequence[Attempt]) -> Evaluation:
    """Compare what came of cases with their labels."""
    pairs = [(case, made.score) for case, made in zip(cases, attempts, strict=True)]
    hinted = [made.judgement is not None and made.judgement.hint is not None for made in attempts]
    found = sum(hint and case.corrective for hint, case in zip(hinted, cases, strict=True))
    groups = {case.group for case in cases if case.group is not None}
    failures = [made.failure for made in attempts if made.failure is not None]
    misjudged = tuple(n for n, (case, verdict) in enumerate(pairs) if _sign(verdict) != str(case.score))
    return Evaluation(
        kind=kind,
        prompt_version=prompt_version,
        overall=agreement(pairs),
        by_language={
            language: agreement([pair for pair in pairs if pair[0].language == language]) for language in LANGUAGES
        },
        by_group={group: agreement([pair for pair in pairs if pair[0].group == group]) for group in sorted(groups)},
        hint_precision=_share(found, sum(hinted)),
        hint_recall=_share(found, sum(case.corrective for case in cases)),
        confusion=dict(Counter(f"{case.score}>{_sign(verdict)}" for case, verdict in pairs)),
        failures=dict(Counter(failures)),
        latencies_s=tuple(made.latency_s for made in attempts),
        misjudged=misjudged,
        raw_outputs={number: attempts[number].raw for number in misjudged},
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


async def _attempt(judge: Judge, turn: Turn, *, raises: bool) -> Attempt:
    started = time.monotonic()
    try:
        judgement = await judge.judge(turn)
    except JudgeError as error:
        if raises and isinstance(error, JudgeUnavailable):
            raise
        elapsed = time.monotonic() - started
        return Attempt(judgement=None, failure=error.reason, message=str(error), latency_s=elapsed)
    return Attempt(
        judgement=judgement,
        failure=judgement.outcome.value if judgement.score is None else None,
        message=None,
        latency_s=time.monotonic() - started,
    )


def _sign(verdict: float | None) -> str:
    return "none" if verdict is None else str((verdict > 0) - (verdict < 0))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
