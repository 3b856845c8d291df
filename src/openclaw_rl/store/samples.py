"""Samples and steps: each sample is trained by exactly one step."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, update

from openclaw_rl.store.codec import BYTES_PER_ID, unpack_ids
from openclaw_rl.store.counting import count
from openclaw_rl.store.database import Database
from openclaw_rl.store.origins import origin_of
from openclaw_rl.store.ready_owners import OwnerReady, read_ready_owners
from openclaw_rl.store.rollouts import whole_groups
from openclaw_rl.store.rows import sampling_from, tokens_from
from openclaw_rl.store.schema import requests, samples, steps, turns
from openclaw_rl.store.transitions import move_turn
from openclaw_rl.store.versions import BasisChanged, insert_version, serving_version
from openclaw_rl.types import (
    SAMPLE_TRANSITIONS,
    FinishReason,
    PolicyVersion,
    RetryDemonstration,
    Sample,
    SampleState,
    StepRecord,
    TokenRecord,
    TurnState,
    UnsoundSample,
    VersionState,
    check_transition,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadySamples:
    """What waits to be trained: how many, and since when the oldest does."""

    count: int
    oldest_created_at: float | None


def within(groups: Sequence[Sequence[str]], tokens: Mapping[str, float], max_tokens: int | None) -> list[str]:
    """The ids of the first of these groups that have at most `max_tokens` together; the very first in any case.

    `tokens`: of each id. A group is never cut, and none is passed over for one behind it: so each has its turn.
    """
    ends = accumulate(sum(tokens[name] for name in group) for group in groups)
    fitting = len(groups) if max_tokens is None else sum(end <= max_tokens for end in ends)
    return [name for group in groups[: max(1, fitting)] for name in group]


class SamplesGone(LookupError):
    """Samples were deleted with their sessions a moment ago."""


def move_samples(
    connection: Connection, turn_ids: Sequence[str], new: SampleState, *, reason: str | None = None, **values: Any
) -> None:
    """Apply one transition of `SAMPLE_TRANSITIONS` to each, inside the caller's transaction, and count it.

    Raises:
        SamplesGone: some of them are there no longer.
    """
    query = select(samples.c.turn_id, samples.c.state).where(samples.c.turn_id.in_(turn_ids))
    found = {row.turn_id: SampleState(row.state) for row in connection.execute(query)}
    missing = set(turn_ids) - set(found)
    if missing:
        raise SamplesGone(f"no such samples: {', '.join(sorted(missing))}")
    for old in found.values():
        check_transition(SAMPLE_TRANSITIONS, old, new)
    connection.execute(
        update(samples)
        .where(samples.c.turn_id.in_(turn_ids))
        .values(state=new.value, state_since=time.time(), **values)
    )
    if new in {SampleState.TRAINED, SampleState.EXPIRED, SampleState.REJECTED}:
        count(connection, f"samples_{new.value}" + (f"_{reason}" if reason else ""), len(found))


class SampleStore:
    """Samples from ready to trained, and the steps that trained them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, sample: Sample) -> None:
        """A judged turn becomes a sample: turn to `sampled` and the sample's row, in one transaction."""
        with self._database.write() as connection:
            _insert(connection, sample)

    def add_group(self, group: Sequence[Sample]) -> None:
        """What a group of rollouts taught, in one transaction, so that no batch begins between two of them."""
        with self._database.write() as connection:
            for sample in group:
                _insert(connection, sample)

    def add_kept(self, sample: Sample) -> None:
        """An excluded turn becomes a sample after all (`rollout.at_least_one`), in one transaction."""
        with self._database.write() as connection:
            move_turn(connection, sample.turn_id, TurnState.JUDGING)
            _insert(connection, sample)
            count(connection, "samples_kept_at_least_one")

    def ready(self, owner: str | None = None) -> ReadySamples:
        """How many samples wait, of all or of one owner, and since when."""
        query = select(func.count(), func.min(samples.c.created_at)).where(samples.c.state == SampleState.READY.value)
        if owner is not None:
            query = query.where(samples.c.owner == owner)
        with self._database.read() as connection:
            number, oldest = connection.execute(query).one()
            return ReadySamples(count=number, oldest_created_at=oldest)

    def ready_owners(self, batch_size: int) -> list[OwnerReady]:
        """What waits, of each owner of whom anything does, by name."""
        with self._database.read() as connection:
            return read_ready_owners(connection, batch_size)

    def expire(self, *, before_version: int, owner: str = "", spared: Collection[str] = ()) -> int:
        """Expire the owner's ready samples drawn by a version below `before_version`, but `spared` ones; how many.

        A reconstructed sample has no version and never expires: its ratio is to the student before the step.
        """
        with self._database.write() as connection:
            query = select(samples.c.turn_id).where(
                samples.c.state == SampleState.READY.value,
                samples.c.owner == owner,
                samples.c.version < before_version,
            )
            stale = [turn_id for turn_id in connection.execute(query).scalars() if turn_id not in spared]
            if stale:
                move_samples(connection, stale, SampleState.EXPIRED, reason="stale")
            return len(stale)

    def claim(self, size: int, lease_s: float, owner: str = "", *, max_tokens: int | None = None) -> list[Sample]:
        """Claim up to `size` ready samples of this owner under a lease, the oldest first (of one moment: by id).

        The rollouts of a group come together, or not yet; in parts only where the group is more than `size`. With
        `max_tokens` only as many as have no more tokens together (prompts and answers), and at least one sample, or
        one group, also where that is more. A sample whose row holds what nobody can train is rejected for it, and not
        among them.
        """
        now = time.time()
        with self._database.write() as connection:
            _return_expired_leases(connection, now, owner)
            tokens = (func.length(turns.c.prompt_ids) + func.length(turns.c.response_ids)) / BYTES_PER_ID
            query = (
                select(samples.c.turn_id, tokens.label("tokens"))
                .join(turns, turns.c.turn_id == samples.c.turn_id)
                .where(samples.c.state == SampleState.READY.value, samples.c.owner == owner)
                .order_by(samples.c.created_at, samples.c.turn_id)
                .limit(size)
            )
            found = {row.turn_id: row.tokens for row in connection.execute(query)}
            if not found:
                return []
            claimed = within(whole_groups(connection, list(found)), found, max_tokens)
            move_samples(connection, claimed, SampleState.CLAIMED, lease_until=now + lease_s)
            return _load_sound(connection, claimed)

    def take_up_claims(self, lease_s: float, owner: str = "") -> list[Sample]:
        """What is claimed for this owner already, under a new lease: for the one trainer, from a killed predecessor.

        The batch is the same whatever has come in since, so that a death changes nothing about what is learned from.
        """
        held = _claimed(samples.c.turn_id).where(samples.c.owner == owner)
        with self._database.read() as connection:
            if connection.execute(held.limit(1)).first() is None:
                return []
        with self._database.write() as connection:
            claimed = list(connection.execute(held).scalars())
            connection.execute(
                update(samples).where(samples.c.turn_id.in_(claimed)).values(lease_until=time.time() + lease_s)
            )
            return _load_sound(connection, claimed)

    def renew_claims(self, lease_s: float, owner: str = "") -> None:
        """Put off the end of this owner's leases: for the trainer that holds them, and is still at work."""
        mine = (samples.c.state == SampleState.CLAIMED.value) & (samples.c.owner == owner)
        self._database.write_once(update(samples).where(mine).values(lease_until=time.time() + lease_s))

    def claiming_owners(self) -> list[str]:
        """The owners of whom samples are claimed: between two steps, those of a trainer that was killed; by name."""
        with self._database.read() as connection:
            return list(connection.execute(_claimed(samples.c.owner).distinct().order_by(samples.c.owner)).scalars())

    def release_claims(self, owner: str | None = None) -> int:
        """Give back what is claimed: for the one trainer, all when it stops, or an owner's when a step is undone."""
        with self._database.write() as connection:
            return _return_expired_leases(connection, float("inf"), owner)

    def give_back(self, turn_ids: Sequence[str]) -> None:
        """Claimed samples that the step is made without, and that are still there, wait again."""
        with self._database.write() as connection:
            move_samples(connection, _still_there(connection, turn_ids), SampleState.READY, lease_until=None)

    def commit_step(self, record: StepRecord, version: PolicyVersion, *, basis: int | None = None) -> None:
        """A step is done: its samples, its row and its version, in one transaction, on the disk when it returns.

        The version is a candidate and its samples `trained`, or it was refused by the gate: then it is rejected, for
        the reason it names, and so are they. Repeating it with the same samples is a no-op, so that a caller that
        died without seeing the answer may call again; repeating it with others is an error.

        Args:
            basis: the version whose weights the step began with; kept with the version.

        Raises:
            BasisChanged: another version than `basis` is in service by now (a rollback); nothing was written.
            SamplesGone: some of its samples were deleted with their sessions; nothing was written.
            ValueError: the step is another than it was, or its samples and its version are not one owner's.
        """
        if version.owner != record.owner:
            raise ValueError(f"step {record.step} and its version belong to different owners")
        with self._database.write_durably() as connection:
            known = connection.execute(select(steps.c.sample_ids).where(steps.c.step == record.step)).scalar()
            if known is not None:
                if list(known) != list(record.sample_ids):
                    raise ValueError(f"step {record.step} is committed with other samples")
                return
            if basis is not None and basis != serving_version(connection, record.owner):
                raise BasisChanged(f"step {record.step} began with version {basis}, which serves no longer")
            _check_owner(connection, record)
            refused = version.state is VersionState.REJECTED
            move_samples(
                connection,
                record.sample_ids,
                SampleState.REJECTED if refused else SampleState.TRAINED,
                reason=version.reason,
                step=record.step,
                lease_until=None,
            )
            connection.execute(steps.insert().values(**{**asdict(record), "sample_ids": list(record.sample_ids)}))
            insert_version(connection, replace(version, basis=basis))
            count(connection, "steps_refused" if refused else "steps")
            for reason, number in Counter(record.teacher.get("excluded", {}).values()).items():
                count(connection, f"hints_excluded_{reason}", number)

    def reject(self, turn_ids: Sequence[str], *, reason: str) -> None:
        """Samples that no step can use: those that are still there are spent, and the reason is counted."""
        with self._database.write() as connection:
            there = _still_there(connection, turn_ids)
            move_samples(connection, there, SampleState.REJECTED, reason=reason, lease_until=None)

    def step_numbers(self, owner: str) -> tuple[int, ...]:
        """The numbers of this owner's committed steps, the first first."""
        query = select(steps.c.step).where(steps.c.owner == owner).order_by(steps.c.step)
        with self._database.read() as connection:
            return tuple(connection.execute(query).scalars())

    def last_step(self) -> int:
        """The number of the last committed step, whoever's it was; 0 before the first."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(steps.c.step))).scalar() or 0

    def steps(self, owner: str | None = None) -> list[StepRecord]:
        """Every committed step, or those of one owner, the first first."""
        query = steps.select().order_by(steps.c.step)
        with self._database.read() as connection:
            rows = connection.execute(query if owner is None else query.where(steps.c.owner == owner)).mappings()
            return [
                StepRecord(**{**row, "sample_ids": tuple(row["sample_ids"]), "teacher": row["teacher"] or {}})
                for row in rows
            ]

    def recent_hints(self, limit: int, owner: str = "") -> list[str]:
        """The owner's last different hints that were trained or are about to be, the newest last."""
        used = samples.c.state.in_([SampleState.TRAINED.value, SampleState.CLAIMED.value]) & (
            samples.c.owner == owner
        )
        newest = func.max(samples.c.created_at)
        query = select(samples.c.hint).where(used, samples.c.hint.is_not(None)).group_by(samples.c.hint)
        with self._database.read() as connection:
            found = connection.execute(query.order_by(newest.desc(), samples.c.hint).limit(limit)).scalars()
            return list(found)[::-1]

    def accepted_answers(self, limit: int, owner: str = "") -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt ids, response ids) of the owner's last trained answers that were judged good, the newest first."""
        query = (
            select(turns.c.prompt_ids, turns.c.response_ids)
            .join(samples, samples.c.turn_id == turns.c.turn_id)
            .where(samples.c.state == SampleState.TRAINED.value, samples.c.owner == owner, samples.c.reward > 0)
            .order_by(samples.c.created_at.desc(), samples.c.turn_id)
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = connection.execute(query)
            return [(unpack_ids(row.prompt_ids), unpack_ids(row.response_ids)) for row in rows]

    def trained_rewards(self) -> list[tuple[float, float]]:
        """(created_at, reward) of every sample with a reward, the oldest first."""
        query = select(samples.c.created_at, samples.c.reward).where(samples.c.reward.is_not(None))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(samples.c.created_at))
            return [(row.created_at, row.reward) for row in rows]


def _claimed(column: ColumnElement[str]) -> Select[str]:
    return select(column).where(samples.c.state == SampleState.CLAIMED.value)


def _still_there(connection: Connection, turn_ids: Sequence[str]) -> list[str]:
    return list(connection.execute(select(samples.c.turn_id).where(samples.c.turn_id.in_(turn_ids))).scalars())


def _insert(connection: Connection, sample: Sample) -> None:
    move_turn(connection, sample.turn_id, TurnState.SAMPLED)
    owner = connection.execute(select(requests.c.owner).where(requests.c.turn_id == sample.turn_id)).scalar_one()
    connection.execute(
        samples.insert().values(
            turn_id=sample.turn_id,
            state=SampleState.READY.value,
            state_since=time.time(),
            reward=sample.reward,
            hint=sample.hint,
            alternatives=list(sample.alternatives),
            retry_prompt_turn_id=None if sample.retry is None else sample.retry.prompt_turn_id,
            version=sample.version,
            created_at=sample.created_at,
            owner=owner,
        )
    )
    count(connection, "samples")


def _check_owner(connection: Connection, record: StepRecord) -> None:
    query = select(samples.c.owner).where(samples.c.turn_id.in_(record.sample_ids)).distinct()
    others = set(connection.execute(query).scalars()) - {record.owner}
    if others:
        raise ValueError(f"step {record.step} has samples of {len(others)} other owners")


def _return_expired_leases(connection: Connection, now: float, owner: str | None = None) -> int:
    query = _claimed(samples.c.turn_id).where(samples.c.lease_until < now)
    if owner is not None:
        query = query.where(samples.c.owner == owner)
    returned = list(connection.execute(query).scalars())
    if returned:
        move_samples(connection, returned, SampleState.READY, lease_until=None)
        count(connection, "samples_returned", len(returned))
    return len(returned)


def _load_sound(connection: Connection, turn_ids: Sequence[str]) -> list[Sample]:
    """The claimed samples, in the order of claims; one that is unsound is rejected: it would come again for ever."""
    query = (
        select(samples, turns, requests.c.messages, requests.c.tools)
        .join(turns, turns.c.turn_id == samples.c.turn_id)
        .join(requests, requests.c.turn_id == samples.c.turn_id)
        .where(samples.c.turn_id.in_(turn_ids))
        .order_by(samples.c.created_at, samples.c.turn_id)
    )
    sound = []
    for row in connection.execute(query).mappings().all():
        try:
            sound.append(_sample_from(connection, row))
        except UnsoundSample as error:
            turn_id = row[samples.c.turn_id]
            log.error("the sample of turn %s is rejected: %s", turn_id, error)
            move_samples(connection, [turn_id], SampleState.REJECTED, reason=error.reason, lease_until=None)
            count(connection, "samples_unusable")
    return sound


def _sample_from(connection: Connection, row: RowMapping) -> Sample:
    tokens = tokens_from(row)
    return Sample(
        turn_id=row[samples.c.turn_id],
        session_id=row[turns.c.session_id],
        messages=tuple(row[requests.c.messages]),
        tools=tuple(row[requests.c.tools]),
        tokens=tokens,
        sampling=sampling_from(row[turns.c.sampling]),
        finish_reason=FinishReason(row[turns.c.finish_reason]),
        reward=row[samples.c.reward],
        hint=row[samples.c.hint],
        alternatives=tuple(row[samples.c.alternatives] or ()),
        retry=_retry(connection, row, tokens),
        reconstructed=row[turns.c.reconstructed],
        origin=origin_of(connection, row[samples.c.turn_id]),
        created_at=row[samples.c.created_at],
    )


def _retry(connection: Connection, row: RowMapping, tokens: TokenRecord) -> RetryDemonstration | None:
    first = row[samples.c.retry_prompt_turn_id]
    if first is None:
        return None
    prompt = connection.execute(select(turns.c.prompt_ids).where(turns.c.turn_id == first)).scalar_one()
    return RetryDemonstration(
        turn_id=row[samples.c.turn_id],
        response_ids=tokens.response_ids,
        prompt_turn_id=first,
        prompt_ids=unpack_ids(prompt),
    )
