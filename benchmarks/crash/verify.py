"""The clients' ledger against the record, once everything has settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crash.ledger import Accepted
from benchmarks.crash.look import Record
from openclaw_rl.policy_files import CorruptPolicy
from openclaw_rl.training.checkpoint import load_checkpoint
from openclaw_rl.training.gate import RULES

GATE_REASONS = frozenset(rule.reason for rule in RULES) | {"loss_not_finite", "weights_not_finite"}
FINAL_SAMPLES = frozenset({"trained", "expired", "rejected"})


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the comparison found. `lost` and `trained_twice` hold a line for each; `other` is anything else amiss."""

    lost: Sequence[str]
    trained_twice: Sequence[str]
    other: Sequence[str]
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether nothing is amiss."""
        return not (self.lost or self.trained_twice or self.other)


def verify(accepted: Sequence[Accepted], record: Record) -> Findings:
    """Compare what clients were given with what became of it."""
    followed = {entry.follows for entry in accepted if entry.follows is not None}
    ends: Counter[str] = Counter()
    lost = []
    for entry in accepted:
        end, problem = _end_of(entry, record, followed=entry.turn_id in followed)
        ends[end] += 1
        if problem is not None:
            lost.append(f"turn {entry.turn_id}: {problem}")
    other = [*_steps(record), *_last_checkpoint(record), *_versions(record), *_versions_seen(accepted)]
    return Findings(lost=lost, trained_twice=trained_twice(record), other=other, ends=ends)


def _end_of(entry: Accepted, record: Record, *, followed: bool) -> tuple[str, str | None]:
    """Where an accepted turn ended, and what is wrong with that."""
    found = record.turns.get(entry.turn_id)
    if found is None:
        return "missing", "is not in the record"
    state, reason, answer = found
    if (answer.get("content") or "") != entry.text:
        return "another answer", "holds another answer than the client got"
    if state == "sampled":
        sample = record.samples.get(entry.turn_id)
        return f"sample {sample}", None if sample in FINAL_SAMPLES else f"its sample is left {sample}"
    if state == "excluded":
        return f"excluded {reason}", _wrongly_excluded(entry, reason, followed=followed)
    if state == "awaiting_next_state":
        return "waits for a next state", "waits for a next state that its client sent" if followed else None
    return state, f"is left {state}"


def _wrongly_excluded(entry: Accepted, reason: str | None, *, followed: bool) -> str | None:
    match reason:
        case "no_signal" | "judge_tie" | "empty_response":
            return None
        case "no_next_state" if not followed:
            return None
        case "not_delivered" if entry.asked_again:
            return None
    return f"was excluded as {reason}" + (", though its client answered it" if followed else "")


def trained_twice(record: Record) -> list[str]:
    """Turns in two steps, and answers trained twice for one prompt under two names."""
    turns = Counter(turn_id for step in record.steps for turn_id in step["sample_ids"])
    found = [f"turn {turn_id} is in {number} steps' samples" for turn_id, number in turns.items() if number > 1]
    pairs = Counter(record.pairs[turn_id] for turn_id in turns if turn_id in record.pairs)
    return found + [f"one prompt and answer were trained {number} times" for number in pairs.values() if number > 1]


def _steps(record: Record) -> list[str]:
    numbers = [step["step"] for step in record.steps]
    found = [] if numbers == list(range(1, len(numbers) + 1)) else [f"the steps are numbered {numbers}"]
    trained = {turn_id for step in record.steps if not _refused(record, step) for turn_id in step["sample_ids"]}
    said = {turn_id for turn_id, state in record.samples.items() if state == "trained"}
    if trained != said:
        found.append(f"{len(trained ^ said)} samples are in a step and not trained, or the other way round")
    refused = {turn_id for step in record.steps if _refused(record, step) for turn_id in step["sample_ids"]}
    if any(record.samples.get(turn_id) != "rejected" for turn_id in refused):
        found.append("a sample of a step that the gate refused is not rejected")
    return found


def _refused(record: Record, step: Mapping[str, Any]) -> bool:
    """Whether the gate refused a step: its samples are spent all the same, and its number is not used again."""
    state, reason = record.versions.get(step["version"], ("missing", None))
    return state == "rejected" and reason in GATE_REASONS


def _last_checkpoint(record: Record) -> list[str]:
    """The last step's checkpoint is there, whole, and of that step and those samples."""
    if not record.steps:
        return ["no step was committed"]
    last = record.steps[-1]
    try:
        state = load_checkpoint(Path(last["checkpoint"]))
    except (CorruptPolicy, OSError) as error:
        return [f"the last checkpoint cannot be resumed from: {error}"]
    if (state.step, list(state.trained)) != (last["step"], last["sample_ids"]):
        return [f"{last['checkpoint']} is not the checkpoint that step {last['step']} committed"]
    return []


def _versions(record: Record) -> list[str]:
    """The newest version that was not refused serves, and none was refused by anything but the gate."""
    serving = [version for version, (state, _) in record.versions.items() if state == "serving"]
    last = max((step["version"] for step in record.steps if not _refused(record, step)), default=0)
    found = [] if serving == [last] else [f"version {serving} serves, and the last good step made version {last}"]
    rejected = {v: reason for v, (state, reason) in record.versions.items() if state == "rejected"}
    return found + [f"version {v} was rejected: {why}" for v, why in rejected.items() if why not in GATE_REASONS]


def _versions_seen(accepted: Sequence[Accepted]) -> list[str]:
    """A request that begins after another has ended is never answered by an older version."""
    found = []
    newest = 0
    ended = sorted(accepted, key=lambda entry: entry.ended_at)
    position = 0
    for entry in sorted(accepted, key=lambda entry: entry.began_at):
        while ended[position].ended_at < entry.began_at:
            newest = max(newest, ended[position].version)
            position += 1
        if entry.version < newest:
            found.append(f"turn {entry.turn_id} was answered by version {entry.version} after {newest}")
    if len({entry.version for entry in accepted}) < 2:
        found.append("clients were answered by one version only")
    return found
