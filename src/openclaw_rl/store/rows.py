"""Rows to carriers and back, in one place, so that a column has one meaning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import RowMapping

from openclaw_rl.rollout.next_state import next_state_of
from openclaw_rl.store import codec
from openclaw_rl.types import (
    ExclusionReason,
    FinishReason,
    Judgement,
    JudgementOutcome,
    PolicyVersion,
    Request,
    SamplingParams,
    Signal,
    TokenRecord,
    Turn,
    TurnState,
    TurnType,
    VersionState,
)

_SAMPLING = tuple(SamplingParams.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """By what a request is recognised when it, or one like it, comes again; all None where nothing is known."""

    body_hash: str | None = None
    stem_hash: str | None = None
    session_hint: str | None = None
    idempotency_key: str | None = None


def request_values(request: Request, fingerprint: Fingerprint) -> dict[str, Any]:
    """A request as a row of `requests`, still open."""
    return {
        "turn_id": request.turn_id,
        "session_id": request.session_id,
        "key_id": request.key_id,
        "parent_turn_id": request.parent_turn_id,
        "turn_type": request.turn_type.value,
        "messages": list(request.messages),
        "tools": list(request.tools),
        "new_messages": list(request.new_messages),
        "session_done": request.session_done,
        "model": request.model,
        "ambiguous": request.ambiguous,
        "brings_feedback": next_state_of(request) is not None,
        "retry_of": request.retry_of,
        "sibling_of": request.sibling_of,
        "side_rule": request.side_rule,
        "owner": request.owner,
        "body_hash": fingerprint.body_hash,
        "stem_hash": fingerprint.stem_hash,
        "session_hint": fingerprint.session_hint,
        "idempotency_key": fingerprint.idempotency_key,
        "status": "open",
        "error": None,
        "created_at": request.created_at,
    }


def request_from(row: RowMapping) -> Request:
    """A row of `requests` as its carrier."""
    return Request(
        turn_id=row["turn_id"],
        session_id=row["session_id"],
        key_id=row["key_id"],
        parent_turn_id=row["parent_turn_id"],
        turn_type=TurnType(row["turn_type"]),
        messages=tuple(row["messages"]),
        tools=tuple(row["tools"]),
        new_messages=tuple(row["new_messages"]),
        session_done=row["session_done"],
        model=row["model"],
        ambiguous=row["ambiguous"],
        retry_of=row["retry_of"],
        sibling_of=row["sibling_of"],
        side_rule=row["side_rule"],
        owner=row["owner"],
        created_at=row["created_at"],
    )


def sampling_values(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as JSON."""
    return {name: getattr(sampling, name) for name in _SAMPLING} | {"stop": list(sampling.stop)}


def sampling_from(values: dict[str, Any]) -> SamplingParams:
    """The inverse of `sampling_values`."""
    return SamplingParams(**{**values, "stop": tuple(values["stop"])})


def tokens_from(row: RowMapping) -> TokenRecord:
    """The exact tokens of a row of `turns`."""
    return TokenRecord(
        prompt_ids=codec.unpack_ids(row["prompt_ids"]),
        response_ids=codec.unpack_ids(row["response_ids"]),
        logprobs=codec.unpack_logprobs(row["logprobs"]),
        versions=codec.unpack_ids(row["versions"]),
        kept=None if row["kept"] is None else codec.unpack_kept(row["kept"]),
    )


def turn_values(turn: Turn, context_hash: str) -> dict[str, Any]:
    """A turn as a row of `turns`."""
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.request.session_id,
        "key_id": turn.request.key_id,
        "context_hash": context_hash,
        "state": turn.state.value,
        "state_since": turn.served_at,
        "reason": None if turn.reason is None else turn.reason.value,
        "answer": dict(turn.answer),
        "prompt_ids": codec.pack_ids(turn.tokens.prompt_ids),
        "response_ids": codec.pack_ids(turn.tokens.response_ids),
        "logprobs": codec.pack_logprobs(turn.tokens.logprobs),
        "versions": codec.pack_ids(turn.tokens.versions),
        "kept": None if turn.tokens.kept is None else codec.pack_kept(turn.tokens.kept),
        "sampling": sampling_values(turn.sampling),
        "finish_reason": turn.finish_reason.value,
        "reconstructed": turn.reconstructed,
        "served_at": turn.served_at,
        "judge_attempts": 0,
    }


def turn_from(row: RowMapping, signals: tuple[Signal, ...] = ()) -> Turn:
    """A joined row of `turns` and `requests` as its carrier."""
    return Turn(
        request=request_from(row),
        answer=row["answer"],
        tokens=tokens_from(row),
        sampling=sampling_from(row["sampling"]),
        finish_reason=FinishReason(row["finish_reason"]),
        state=TurnState(row["state"]),
        reason=None if row["reason"] is None else ExclusionReason(row["reason"]),
        next_state=None if row["next_state"] is None else tuple(row["next_state"]),
        signals=signals,
        reconstructed=row["reconstructed"],
        served_at=row["served_at"],
    )


def judgement_values(judgement: Judgement) -> dict[str, Any]:
    """A judgement as a row."""
    return {
        **asdict(judgement),
        "outcome": judgement.outcome.value,
        "details": dict(judgement.details),
        "alternatives": list(judgement.alternatives),
    }


def judgement_from(row: RowMapping) -> Judgement:
    """A row of `judgements` as its carrier."""
    values = {key: row[key] for key in row if key != "judgement_id"}
    alternatives = tuple(row["alternatives"] or ())
    return Judgement(**{**values, "outcome": JudgementOutcome(row["outcome"]), "alternatives": alternatives})


def version_from(row: RowMapping) -> PolicyVersion:
    """A row of `versions` as its carrier."""
    return PolicyVersion(
        version=row["version"],
        state=VersionState(row["state"]),
        path=row["path"],
        step=row["step"],
        created_at=row["created_at"],
        reason=row["reason"],
        basis=row["basis"],
        pinned=row["pinned_at"] is not None,
        owner=row["owner"],
    )
