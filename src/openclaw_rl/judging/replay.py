"""Judging stored turns once more: what another judge, or another prompt, would have made of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openclaw_rl.config import SignalWeights
from openclaw_rl.judging.base import Judge, JudgeError, JudgeUnavailable
from openclaw_rl.judging.evaluate import all_of
from openclaw_rl.judging.hint_candidates import screened
from openclaw_rl.judging.signals import weighed
from openclaw_rl.store.feedback import sign_of
from openclaw_rl.store.replay import Judged
from openclaw_rl.types import Judgement

Record = Callable[[Judgement], bool]
"""Keeps a new judgement; True if it takes effect, False where it is recorded only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What a replay found. `verdicts` maps "before>now" to a count, by sign; `none` stands for no score."""

    kind: str
    prompt_version: str
    turns: int
    verdicts: Mapping[str, int]
    in_effect: int
    recorded_only: int
    failures: Mapping[str, int]

    @property
    def changed(self) -> int:
        """Turns with another verdict than before."""
        return sum(count for pair, count in self.verdicts.items() if len(set(pair.split(">"))) > 1)

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "changed": self.changed}


async def replay(
    judge: Judge, found: Sequence[Judged], *, weights: SignalWeights, record: Record | None, workers: int
) -> Replayed:
    """Judge these turns anew, `workers` at once; with `record`, keep each judgement as soon as it is there.

    A failure leaves what was there, and is counted.

    Raises:
        JudgeUnavailable: if what the judge needs is down before it has judged anything.
    """
    limit = asyncio.Semaphore(workers)
    verdicts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    kept: Counter[bool] = Counter()

    async def once(item: Judged) -> None:
        async with limit:
            try:
                judgement = weighed(screened(await judge.judge(item.turn), item.turn), item.turn, weights)
            except JudgeError as error:
                if isinstance(error, JudgeUnavailable) and not verdicts:
                    raise
                failures[error.reason] += 1
                return
            before = None if item.latest is None else item.latest.score
            verdicts[f"{_named(before)}>{_named(judgement.score)}"] += 1
            if record is not None:
                kept[await asyncio.to_thread(record, judgement)] += 1

    await all_of(once(item) for item in found)
    return Replayed(
        kind=judge.kind,
        prompt_version=judge.prompt_version,
        turns=len(found),
        verdicts=dict(verdicts),
        in_effect=kept[True],
        recorded_only=kept[False],
        failures=dict(failures),
    )


def _named(score: float | None) -> str:
    return "none" if score is None else str(sign_of(score))
