"""Streams without a pause, each rated by its reader, while the system learns from the ratings: one row of `update`.

What is counted comes from the client's own ledger; nothing is asked twice. The trainer's spans say what went on.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx

from openclaw_rl.config import Config
from openclaw_rl.evaluation.gaps import PUBLISH, TRAINING_STEP, sorted_gaps, spans_with_open_stream
from openclaw_rl.evaluation.ledger import Entry, Ledger, Purpose
from openclaw_rl.evaluation.questions import TRAINING_QUESTIONS
from openclaw_rl.evaluation.talker import Ask, Talker, key_of, talker
from openclaw_rl.store import Store
from openclaw_rl.store.status import Span
from openclaw_rl.supervision.deployment import Deployment
from openclaw_rl.types import LoopName, VersionState

logger = logging.getLogger(__name__)

POLL_S = 0.25
REQUEST_TIMEOUT_S = 300.0
REFUSED_PAUSE_S = 0.1
"""A reader who is turned away asks something else so much later."""
REST_S = 2.0
"""The trainer rests at least so long between two updates, and there is an `otherwise`: then a batch is rated."""
AGAIN_S = 10.0
"""If no step has begun so long after that, another batch is rated."""
RESTING = "a batch"
"""What the trainer says that it waits for when it has nothing to do."""
WANTED_WORDS = 20
DRAIN_S = 30.0
"""How long readers may take to their last answers' ends; then they hang up."""
SERVED = frozenset({VersionState.SERVING, VersionState.RETIRED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What the clients wrote down, and when the trainer stepped and published."""

    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]
    served: frozenset[int] = frozenset()
    """The versions that came into service, now or before; no publication that failed or was broken off."""
    ratings_failed: int = 0
    """Ratings that the gateway did not take: they are not answers, and are counted apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """`streams` readers at once until `updates` versions were put into service, or `limit_s` has passed."""

    streams: int
    updates: int
    max_tokens: int
    batch_size: int
    limit_s: float


async def observe(deployment: Deployment, config: Config, options: LoadOptions) -> Observed:
    """Keep the streams open until the updates are done and the last version has answered, or the limit has passed."""
    ledger, store, over = Ledger(), Store.open(config.store_path), asyncio.Event()
    try:
        async with (
            talker(
                deployment.url, ledger=ledger, timeout_s=REQUEST_TIMEOUT_S, api_key=key_of(config.serving)
            ) as client,
            httpx.AsyncClient(base_url=deployment.url, trust_env=False, timeout=REQUEST_TIMEOUT_S) as posts,
            asyncio.TaskGroup() as group,
        ):
            numbers, rater = itertools.count(), Rater(posts)
            readers = [
                group.create_task(_read_on(client, rater, numbers, options.max_tokens, over))
                for _ in range(options.streams)
            ]
            await _until_updated(store, ledger, options, rater)
            over.set()
            _, late = await asyncio.wait(readers, timeout=DRAIN_S)
            for reader in late:
                reader.cancel()
        return Observed(
            entries=tuple(ledger),
            spans=tuple(store.status.spans()),
            served=_served(store),
            ratings_failed=rater.failed,
        )
    finally:
        store.close()


async def _until_updated(store: Store, ledger: Ledger, options: LoadOptions, rater: Rater) -> None:
    """Return when there were so many updates and the last version has answered somebody, or the time is over."""
    deadline, pace = time.monotonic() + options.limit_s, Pace()
    while time.monotonic() < deadline:
        served = await asyncio.to_thread(_served, store)
        if len(served) >= options.updates and any(entry.version == max(served) for entry in ledger if entry.answered):
            return
        resting, steps = await asyncio.to_thread(_trainer, store)
        if pace.due(time.monotonic(), resting=resting, steps=steps):
            rater.wanted = options.batch_size
        await asyncio.sleep(POLL_S)


def _served(store: Store) -> frozenset[int]:
    """The trained versions that came into service."""
    return frozenset(v.version for v in store.versions.all() if v.version and v.state in SERVED)


def _trainer(store: Store) -> tuple[bool, int]:
    """Whether the trainer waits for ratings, and how many steps it has begun."""
    said = next((one.waiting_for for one in store.status.loops() if one.loop is LoopName.TRAINING), None)
    return (said or "").startswith(RESTING), len(store.status.spans(TRAINING_STEP))


class Pace:
    """When the next batch is to be rated: the trainer has rested, or nothing came of the last one."""

    def __init__(self) -> None:
        self._steps = 0
        self._next: float | None = None

    def due(self, now: float, *, resting: bool, steps: int) -> bool:
        """Whether that is now (seconds), by what the trainer does and how many steps it has begun."""
        if not resting:
            self._next = None
            return False
        if self._next is None or steps != self._steps:
            self._next, self._steps = now + REST_S, steps
        if now < self._next:
            return False
        self._next = now + AGAIN_S
        return True


class Rater:
    """Says what readers think of answers; what the gateway does not take is counted, and stops nobody's reading."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.failed = 0
        self.wanted = 0
        """So many of the next answers are rated."""

    async def rate(self, entry: Entry) -> None:
        """Short answers are liked, so that there are ratings of both kinds, and something is learned."""
        if self.wanted <= 0:
            return
        self.wanted -= 1
        entry.verdict = 1 if len(entry.text.split()) < WANTED_WORDS else -1
        try:
            rated = await self._client.post("feedback", json={"turn_id": entry.turn_id, "score": entry.verdict})
            rated.raise_for_status()
        except httpx.HTTPError as error:
            self.failed += 1
            logger.warning("a rating failed: %s: %s", type(error).__name__, error)


async def _read_on(
    client: Talker, rater: Rater, numbers: Iterable[int], max_tokens: int, over: asyncio.Event
) -> None:
    """One reader: ask, read, rate, and ask something else at once, until it is over."""
    for number in numbers:
        if over.is_set():
            return
        entry = await client.ask(_question(number, max_tokens))
        if entry.answered:
            await rater.rate(entry)
        if not entry.answered:
            await asyncio.sleep(REFUSED_PAUSE_S)


def _question(number: int, max_tokens: int) -> Ask:
    question = TRAINING_QUESTIONS[number % len(TRAINING_QUESTIONS)].text
    return Ask(
        purpose=Purpose.QUESTION,
        model="policy",
        messages=({"role": "user", "content": question},),
        question=question,
        session=f"reader-{number}",
        interaction=number,
        temperature=1.0,
        max_tokens=max_tokens,
        seed=number,
    )


# --- the figures -------------------------------------------------------------------------------------------


def figures(seen: Observed) -> dict[str, float | int | None]:
    """The row of what was observed: counts, longest gaps (and 99th percentiles), seconds from step to service."""
    spans = whole_updates(seen.spans)
    gaps = sorted_gaps([moments(entry) for entry in seen.entries], spans)
    served = seconds_to_serve(seen)
    return {
        "refused": sum(entry.refused for entry in seen.entries),
        "broken": sum(entry.broken for entry in seen.entries),
        "requests": len(seen.entries),
        "ratings_failed": seen.ratings_failed,
        "hung_up": sum(entry.cancelled for entry in seen.entries),
        "updates": len(seen.served),
        "updates_with_open_stream": updates_with_open_stream(seen),
        "gap_ms_publish": _ms(max(gaps.publish, default=None)),
        "gap_ms_step": _ms(max(gaps.step, default=None)),
        "gap_ms_otherwise": _ms(max(gaps.otherwise, default=None)),
        "gap_ms_publish_p99": _ms(percentile(gaps.publish, 0.99)),
        "gap_ms_step_p99": _ms(percentile(gaps.step, 0.99)),
        "gap_ms_otherwise_p99": _ms(percentile(gaps.otherwise, 0.99)),
        "gaps_publish": len(gaps.publish),
        "gaps_step": len(gaps.step),
        "gaps_otherwise": len(gaps.otherwise),
        "seconds_to_serve": round(percentile(served, 0.5) or 0.0, 3) if served else None,
        "seconds_to_serve_longest": round(max(served), 3) if served else None,
    }


def moments(entry: Entry) -> Sequence[float]:
    """When a reader got text; of one who got some, got no more and hung up, also when that was.

    Such a stream is not broken, and its silence is a gap as any other.
    """
    if entry.cancelled and entry.chunk_times and entry.ended_at is not None:
        return [*entry.chunk_times, entry.ended_at]
    return entry.chunk_times


def updates_with_open_stream(seen: Observed) -> int:
    """How many updates had at least one stream open at each try to publish their version."""
    opened = [
        (entry.opened_at, entry.ended_at)
        for entry in seen.entries
        if entry.opened_at is not None and entry.ended_at is not None
    ]
    tries: dict[int, list[Span]] = {version: [] for version in seen.served}
    for span in seen.spans:
        if span.name == PUBLISH and span.details.get("version") in tries:
            tries[span.details["version"]].append(span)
    return sum(bool(spans) and spans_with_open_stream(spans, opened) == len(spans) for spans in tries.values())


def whole_updates(spans: Iterable[Span]) -> list[Span]:
    """All tries to publish, and steps that last until the first try with their version begins.

    Between the two the trainer writes its checkpoint: its work, too, goes on beside the streams.
    """
    spans = tuple(spans)
    found = [span for span in spans if span.name == PUBLISH]
    publishes = {span.details.get("version"): span for span in reversed(found)}  # the first of each
    for span in spans:
        if span.name == TRAINING_STEP:
            publish = publishes.get(span.details.get("step"))
            until = span.ended_at if publish is None else publish.started_at
            found.append(Span(name=span.name, started_at=span.started_at, ended_at=until, details=span.details))
    return found


def seconds_to_serve(seen: Observed) -> list[float]:
    """For each version: from the end of its step to the first token that a client got of it."""
    ended = {span.details.get("step"): span.ended_at for span in seen.spans if span.name == TRAINING_STEP}
    first: dict[int, float] = {}
    for entry in seen.entries:
        if entry.version and entry.chunk_times:
            first[entry.version] = min(entry.chunk_times[0], first.get(entry.version, float("inf")))
    return [first[version] - end for version, end in ended.items() if version in first and end is not None]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
