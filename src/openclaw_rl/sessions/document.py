"""Our own export: one JSON object per session that holds everything of it, and back. Pure.

    {"format": "openclaw-rl-session", "format_version": 1, "deployment": ..., "session": {...},
     "turns": [{"request": {...}, "turn": {...}|null, "judgements": [...], "signals": [...], "sample": {...}|null}]}

Each inner object is a row of the table of that name. Packed columns become lists: `null` is a log-probability that is
missing, "nan", "inf" and "-inf" are those that JSON has no number for, and `null` among `versions` is a token that no
version drew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, Column, LargeBinary, Table

from openclaw_rl.config_sources import nearest
from openclaw_rl.store import codec
from openclaw_rl.store.archive import Row, SessionRows, TurnRows
from openclaw_rl.store.schema import judgements, requests, samples, sessions, signals, turns
from openclaw_rl.types import NO_VERSION

FORMAT, FORMAT_VERSION = "openclaw-rl-session", 1

_OWN_IDS = frozenset({"judgement_id", "signal_id"})
"""Numbers that mean nothing in another record."""
_TURN_PARTS = ("request", "turn", "judgements", "signals", "sample")
_INFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class DocumentError(ValueError):
    """What is wrong with a document, by field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A session and the deployment that it was exported from."""

    deployment: str
    rows: SessionRows


# --- out ---------------------------------------------------------------------------------------------------


def to_document(rows: SessionRows, deployment: str) -> dict[str, Any]:
    """The session as JSON."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "deployment": deployment,
        "session": _plain(sessions, rows.session),
        "turns": [_plain_turn(turn) for turn in rows.turns],
    }


def _plain_turn(rows: TurnRows) -> dict[str, Any]:
    turn = None if rows.turn is None else _plain(turns, rows.turn)
    if turn is not None and turn["feedback_seen"] is not None:
        # Judgements are numbered by their place among those of the turn.
        turn["feedback_seen"] = sum(one["judgement_id"] <= turn["feedback_seen"] for one in rows.judgements)
    return {
        "request": _plain(requests, rows.request),
        "turn": turn,
        "judgements": [_plain(judgements, one) for one in rows.judgements],
        "signals": [_plain(signals, one) for one in rows.signals],
        "sample": None if rows.sample is None else _plain(samples, rows.sample),
    }


def _plain(table: Table, row: Row) -> dict[str, Any]:
    return {
        column.name: row[column.name] if row[column.name] is None else _spoken(column)(row[column.name])
        for column in table.c
        if column.name not in _OWN_IDS
    }


def _spoken(column: Column[Any]) -> Callable[[Any], Any]:
    if not isinstance(column.type, LargeBinary):
        return lambda value: value
    return _PACKED[column.name][0]


def _speak_logprobs(blob: bytes) -> list[float | str | None]:
    return [
        value if value is None or math.isfinite(value) else repr(float(value))
        for value in codec.unpack_logprobs(blob)
    ]


def _read_logprobs(values: Any) -> bytes:
    return codec.pack_logprobs([_logprob(value) for value in values])


def _logprob(value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return None if value is None else float(value)
    return _INFINITE[value]


def _speak_versions(blob: bytes) -> list[int | None]:
    return [None if version == NO_VERSION else version for version in codec.unpack_ids(blob)]


def _read_versions(values: Any) -> bytes:
    return codec.pack_ids([NO_VERSION if version is None else version for version in values])


def _speak_kept(blob: bytes) -> list[list[int] | None]:
    return [None if ids is None else list(ids) for ids in codec.unpack_kept(blob)]


_PACKED: Mapping[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "prompt_ids": (lambda blob: list(codec.unpack_ids(blob)), codec.pack_ids),
    "response_ids": (lambda blob: list(codec.unpack_ids(blob)), codec.pack_ids),
    "versions": (_speak_versions, _read_versions),
    "logprobs": (_speak_logprobs, _read_logprobs),
    "kept": (_speak_kept, codec.pack_kept),
}


# --- and back ----------------------------------------------------------------------------------------------


def from_document(tree: Mapping[str, Any]) -> Document:
    """The session in a document.

    Raises:
        DocumentError: naming the field, such as `turns[2].request.messages`.
    """
    _fields(tree, ("format", "format_version", "deployment", "session", "turns"), "")
    if tree["format_version"] != FORMAT_VERSION:
        raise DocumentError(f"format_version: this version reads {FORMAT_VERSION}, not {tree['format_version']!r}")
    if not isinstance(tree["deployment"], str):
        raise DocumentError("deployment: a string is wanted")
    session = _row(sessions, tree["session"], "session")
    listed = _list(tree["turns"], "turns")
    rows = tuple(_turn_rows(entry, f"turns[{index}]", session) for index, entry in enumerate(listed))
    return Document(deployment=tree["deployment"], rows=SessionRows(session=session, turns=rows))


def _turn_rows(entry: Any, where: str, session: Row) -> TurnRows:
    _fields(entry, _TURN_PARTS, f"{where}.")
    request = _row(requests, entry["request"], f"{where}.request")
    turn = None if entry["turn"] is None else _row(turns, entry["turn"], f"{where}.turn")
    for row, name in ((request, "request"), (turn, "turn")):
        if row is not None and (row["session_id"], row["key_id"]) != (session["session_id"], session["key_id"]):
            raise DocumentError(f"{where}.{name}: it is of another session or key than the session itself")
    judged = [
        {**_row(judgements, one, f"{where}.judgements[{index}]"), "judgement_id": index + 1}
        for index, one in enumerate(_list(entry["judgements"], f"{where}.judgements"))
    ]
    shown = [
        _row(signals, one, f"{where}.signals[{index}]")
        for index, one in enumerate(_list(entry["signals"], f"{where}.signals"))
    ]
    sample = None if entry["sample"] is None else _row(samples, entry["sample"], f"{where}.sample")
    if turn is None and (judged or sample is not None):
        raise DocumentError(f"{where}.turn: null, and yet something came of it")
    parts = [turn, *judged, *shown, sample]
    if any(part is not None and part["turn_id"] != request["turn_id"] for part in parts):
        raise DocumentError(f"{where}: what belongs to one turn has different turn_ids")
    return TurnRows(request=request, turn=turn, judgements=tuple(judged), signals=tuple(shown), sample=sample)


def _row(table: Table, tree: Any, where: str) -> Row:
    columns = [column for column in table.c if column.name not in _OWN_IDS]
    optional = {column.name for column in columns if column.nullable or column.default is not None}
    _fields(tree, [column.name for column in columns], f"{where}.", optional=optional)
    return {
        column.name: _value(column, tree[column.name], f"{where}.{column.name}")
        for column in columns
        if column.name in tree
    }


def _value(column: Column[Any], value: Any, where: str) -> Any:
    if value is None:
        if not column.nullable:
            raise DocumentError(f"{where}: null is not possible here")
        return None
    if isinstance(column.type, LargeBinary):
        try:
            return _PACKED[column.name][1](value)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise DocumentError(f"{where}: not a list of such numbers") from error
    if isinstance(column.type, JSON):
        return value
    wanted = column.type.python_type
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise DocumentError(f"{where}: {wanted.__name__} is wanted, not {type(value).__name__}")
    return value


def _fields(
    tree: Any, names: Sequence[str], where: str, *, optional: frozenset[str] | set[str] = frozenset()
) -> None:
    if not isinstance(tree, Mapping):
        raise DocumentError(f"{where.rstrip('.') or 'the document'}: an object is wanted")
    for name in tree:
        if name not in names:
            raise DocumentError(f"{where}{name}: no such field; the nearest valid name is {nearest(name, names)}")
    for name in names:
        if name not in tree and name not in optional:
            raise DocumentError(f"{where}{name}: missing")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DocumentError(f"{where}: a list is wanted")
    return value
