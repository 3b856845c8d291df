"""Sessions as text for a person at a terminal. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from openclaw_rl.cli_names import shown
from openclaw_rl.rollout.lineage import message_text
from openclaw_rl.store.archive import SessionRows, SessionSummary, TrainedVersion, TurnRows
from openclaw_rl.store.codec import unpack_ids
from openclaw_rl.store.erasure import Deleted
from openclaw_rl.types import NO_VERSION, Message, PolicyVersion, VersionState

_HEADINGS = ("id", "client's name", "key", "user", "turns", "opened", "last active", "ended", "states")
_USER = _HEADINGS.index("user")


def moment(at: float | None) -> str:
    """A time of this machine's clock, or a dash."""
    return "-" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def summary_json(summary: SessionSummary, keys: Mapping[str, str]) -> dict[str, Any]:
    """A line of the list, for programs. `keys`: the names of keys by their ids."""
    return {
        "session_id": summary.session_id,
        "client_session_id": summary.client_session_id,
        "key": keys.get(summary.key_id, summary.key_id),
        "user": summary.owner or None,
        "requests": summary.requests,
        "turns": summary.turns,
        "reconstructed": summary.reconstructed,
        "created_at": summary.created_at,
        "last_active_at": summary.last_active_at,
        "ended_at": summary.ended_at,
        "end_reason": summary.end_reason,
        "turns_by_state": dict(summary.turns_by_state),
        "samples_by_state": dict(summary.samples_by_state),
    }


def listing(summaries: Sequence[SessionSummary], keys: Mapping[str, str]) -> str:
    """All sessions as a table, without any content; whose they are, where any is a user's."""
    if not summaries:
        return "no sessions"
    rows = [_HEADINGS, *(_listed(summary, keys) for summary in summaries)]
    if not any(summary.owner for summary in summaries):
        rows = [(*row[:_USER], *row[_USER + 1 :]) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _listed(summary: SessionSummary, keys: Mapping[str, str]) -> tuple[str, ...]:
    states = [f"{number} {name}" for name, number in sorted(summary.turns_by_state.items())]
    return (
        summary.session_id,
        shown(summary.client_session_id or "-"),
        keys.get(summary.key_id, summary.key_id),
        shown(summary.owner or "-"),
        str(summary.turns),
        moment(summary.created_at),
        moment(summary.last_active_at),
        moment(summary.ended_at),
        ", ".join(states) or "-",
    )


def conversation(rows: SessionRows, keys: Mapping[str, str]) -> str:
    """One session, turn by turn: what was asked, answered, and said of the answer."""
    session = rows.session
    ended = f"ended {moment(session['ended_at'])} ({session['end_reason']})" if session["ended_at"] else "open"
    key = keys.get(session["key_id"], session["key_id"])
    user = f"; user: {shown(session['owner'])}" if session["owner"] else ""
    head = [
        f"session {session['session_id']}",
        f"  client's name: {shown(session['client_session_id'] or '-')}; key: {key}{user}",
        f"  opened {moment(session['created_at'])}, last active {moment(session['last_active_at'])}, {ended}",
    ]
    parts = ["\n".join(head)]
    parts += ["\n".join(_turn_lines(number, turn)) for number, turn in enumerate(rows.turns, start=1)]
    return "\n\n".join(parts)


def _turn_lines(number: int, rows: TurnRows) -> list[str]:
    request, turn = rows.request, rows.turn
    side = "" if request["turn_type"] == "main" else f", {request['turn_type']}"
    after = f", after {request['parent_turn_id']}" if request["parent_turn_id"] else ""
    lines = [f"{number}. {request['turn_id']}{side}{after}"]
    new = request["new_messages"] if request["parent_turn_id"] else request["messages"]
    lines += [_said(message) for message in new]
    if turn is None:
        return [*lines, f"   (no answer: {request['error'] or request['status']})"]
    lines.append(_said(turn["answer"]))
    if turn["next_state"]:
        lines.append("   next state:")
        lines += ["   " + _said(message) for message in turn["next_state"]]
    lines += [_judged(one) for one in rows.judgements]
    return [*lines, f"   {_state(rows)}"]


def _said(message: Message) -> str:
    text = message_text(message)
    calls = [
        f"{call['function']['name']}({call['function'].get('arguments', '')})"
        for call in message.get("tool_calls") or ()
    ]
    said = "\n".join(part for part in (text, *calls) if part)
    return f"   {message['role']}: " + said.replace("\n", "\n     ")


def _judged(judgement: Mapping[str, Any]) -> str:
    score = judgement["outcome"] if judgement["score"] is None else f"{judgement['score']:+.2f}"
    hint = f", hint: {judgement['hint']}" if judgement["hint"] else ""
    return f"   judged by {judgement['kind']}: {score}{hint}"


def _state(rows: TurnRows) -> str:
    assert rows.turn is not None
    versions = sorted(set(unpack_ids(rows.turn["versions"])))
    drawn = [_drawn_by(version) for version in versions]
    state = f"{rows.turn['state']} ({rows.turn['reason']})" if rows.turn["reason"] else rows.turn["state"]
    sample = rows.sample
    if sample is not None:
        step = "" if sample["step"] is None else f" in step {sample['step']}"
        state += f", its sample {sample['state']}{step}"
    made = ", reconstructed" if rows.turn["reconstructed"] else ""
    return f"{', '.join(drawn) or 'no tokens'}{made}; {state}"


def _drawn_by(version: int) -> str:
    return "imported text" if version == NO_VERSION else version_name(version)


def version_name(version: int) -> str:
    """The name of a version."""
    return PolicyVersion(version=version, state=VersionState.RETIRED, path=None, step=version, created_at=0.0).name


# --- deleting ----------------------------------------------------------------------------------------------


def deleted_text(deleted: Deleted, lines: int, trained: Sequence[TrainedVersion]) -> str:
    """What is gone, and what cannot be taken back."""
    what = [
        _many(deleted.turns, "turn"),
        _many(deleted.requests, "request"),
        _many(deleted.judgements, "judgement"),
        _many(deleted.samples, "sample"),
        _many(lines, "line", "of the records"),
    ]
    said = f"deleted {_many(deleted.sessions, 'session')}: {', '.join(what)}"
    if not trained:
        return f"{said}\nno version was trained on them"
    names = [f"{version_name(one.version)} ({one.state}, {_many(one.samples, 'sample')})" for one in trained]
    return f"{said}\nversions already trained on them, which deleting does not undo: {', '.join(names)}"


def trained_json(trained: Sequence[TrainedVersion]) -> list[dict[str, Any]]:
    """The versions, for programs."""
    return [
        {"version": one.version, "name": version_name(one.version), "state": one.state.value, "samples": one.samples}
        for one in trained
    ]


def _many(number: int, noun: str, more: str = "") -> str:
    return f"{number} {noun}{'' if number == 1 else 's'} {more}".rstrip()


def json_line(tree: Any) -> str:
    """One line of JSON."""
    return json.dumps(tree, ensure_ascii=False, allow_nan=False)
