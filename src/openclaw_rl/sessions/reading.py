"""Files of conversations: which of three formats they are in, and what is wrong with them, by line and field. Pure.

A file is a JSON value (an object, or a list of them) or JSON lines. Each object is one of

- a session of our own full export (`document`);
- a trajectory of the original: `{session_id, turns: [{type, prompt, response, next_state, trainable}]}`;
- an OpenAI-style message log: `{messages: [...], tools?: [...], session_id?}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.config_sources import ConfigError, nearest
from openclaw_rl.serving.gateway.dialects import checks
from openclaw_rl.serving.gateway.dialects.openai_messages import parse_messages, parse_tools
from openclaw_rl.serving.gateway.errors import GatewayError
from openclaw_rl.sessions.document import FORMAT, Document, DocumentError, from_document
from openclaw_rl.types import Message, TurnType

MAX_FILE_BYTES = 2**30
"""A file is read whole, because it is imported whole or not at all."""

_TRAJECTORY = ("session_id", "turns")
_TRAJECTORY_TURN = ("type", "prompt", "response", "next_state", "trainable")
_LOG = ("messages", "tools", "parallel_tool_calls", "session_id")


class FileError(ConfigError):
    """A file that is not imported; the message names file, line and field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToldTurn:
    """An answer that a file tells of. `turn_type` None: the file does not say, the rules decide."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    answer: Message
    next_state: tuple[Message, ...] | None
    turn_type: TurnType | None = None
    trainable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A conversation that a file tells of; `session_id` is what the file calls it."""

    session_id: str | None
    turns: tuple[ToldTurn, ...]


def read_file(path: Path) -> list[Document | Told]:
    """Everything that is in a file.

    Raises:
        FileError: it cannot be read, or something in it is wrong: then nothing of it counts.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FileError(f"{path}: more than {MAX_FILE_BYTES // 2**20} MiB; split it")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 (byte {error.start})") from error
    found: list[Document | Told] = []
    for place, value in _objects(path, text):
        try:
            found.append(_conversation(value))
        except (DocumentError, GatewayError) as error:
            raise FileError(f"{path}, {place}: {error}") from error
    if not found:
        raise FileError(f"{path}: there is nothing in it")
    return found


def _objects(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """What is in the file, each with where it stands: one JSON value, or one on each line."""
    try:
        whole = _parsed(text)
    except json.JSONDecodeError as first:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        for number, line in lines:
            try:
                yield f"line {number}", _parsed(line)
            except json.JSONDecodeError as error:
                # A JSON value of several lines is wrong where it breaks off, not in its first line.
                at = first if len(lines) == 1 or number == lines[0][0] else error
                where = f"line {at.lineno if at is first else number}, column {at.colno}"
                raise FileError(f"{path}, {where}: not JSON ({at.msg})") from error
        return
    except RecursionError as error:
        raise FileError(f"{path}: nested too deeply") from error
    if isinstance(whole, list):
        yield from ((f"[{index}]", value) for index, value in enumerate(whole))
    else:
        yield "line 1", whole


def _parsed(text: str) -> Any:
    def refuse(literal: str) -> Any:
        raise json.JSONDecodeError(f"{literal} is no JSON number", text, 0)

    return json.loads(text, parse_constant=refuse)


def _conversation(value: Any) -> Document | Told:
    tree = checks.mapping(value, "the conversation")
    try:
        json.dumps(tree, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise DocumentError("it holds half a surrogate pair, which no store keeps") from error
    except ValueError as error:
        raise DocumentError("it holds a number that is not finite") from error
    if tree.get("format") == FORMAT:
        return from_document(tree)
    if "turns" in tree:
        return _trajectory(tree)
    if "messages" in tree:
        return _log(tree)
    raise DocumentError(
        "neither a trajectory (session_id, turns), nor a message log (messages), nor our own export (format); "
        f"it has {', '.join(sorted(tree)) or 'no field'}"
    )


# --- trajectories ------------------------------------------------------------------------------------------


def _trajectory(tree: Mapping[str, Any]) -> Told:
    _known(tree, _TRAJECTORY, "")
    session_id = checks.text(tree.get("session_id"), "session_id")
    turns = checks.array(tree["turns"], "turns")
    return Told(
        session_id=session_id, turns=tuple(_told(turn, f"turns[{index}]") for index, turn in enumerate(turns))
    )


def _told(value: Any, path: str) -> ToldTurn:
    turn = checks.mapping(value, path)
    _known(turn, _TRAJECTORY_TURN, f"{path}.")
    for name in ("type", "prompt", "response"):
        if name not in turn:
            raise checks.missing(f"{path}.{name}")
    kind = TurnType(checks.choice(turn["type"], f"{path}.type", [one.value for one in TurnType]))
    follows = turn.get("next_state")
    return ToldTurn(
        messages=_messages(turn["prompt"], f"{path}.prompt"),
        tools=(),
        answer=_answer(turn["response"], f"{path}.response"),
        next_state=None if follows in (None, "", []) else _messages(follows, f"{path}.next_state"),
        turn_type=kind,
        trainable=checks.boolean(turn.get("trainable", True), f"{path}.trainable"),
    )


def _messages(value: Any, path: str) -> tuple[Message, ...]:
    """A string is what the user said; an object is one message; a list is messages."""
    if isinstance(value, str):
        return ({"role": "user", "content": checks.text(value, path)},)
    return parse_messages([value] if isinstance(value, dict) else value, path)


def _answer(value: Any, path: str) -> Message:
    if isinstance(value, str):
        return {"role": "assistant", "content": checks.text(value, path)}
    (answer,) = parse_messages([value], path)
    checks.choice(answer["role"], f"{path}.role", ("assistant",))
    return answer


# --- message logs ------------------------------------------------------------------------------------------


def _log(tree: Mapping[str, Any]) -> Told:
    """Each of the assistant's messages is a turn, except one that nobody asked for."""
    _known(tree, _LOG, "")
    raw = checks.array(tree["messages"], "messages")
    shown = [_weight(message, f"messages[{index}]") for index, message in enumerate(raw)]
    messages = parse_messages([message for message, _ in shown])
    tools = parse_tools(tree["tools"]) if tree.get("tools") is not None else ()
    name = tree.get("session_id")
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    turns = [
        ToldTurn(
            messages=messages[:index],
            tools=tools,
            answer=message,
            next_state=messages[index + 1 : _next(answers, index, len(messages))] or None,
            trainable=shown[index][1],
        )
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and any(before["role"] in {"user", "tool"} for before in messages[:index])
    ]
    if not turns:
        raise DocumentError("messages: no assistant's message answers anything in it")
    return Told(session_id=None if name is None else checks.text(name, "session_id"), turns=tuple(turns))


def _next(answers: Sequence[int], index: int, end: int) -> int:
    return next((answer for answer in answers if answer > index), end)


def _weight(value: Any, path: str) -> tuple[Any, bool]:
    """A message without the `weight` that fine-tuning files give it, and whether that lets it be trained."""
    message = checks.mapping(value, path)
    if "weight" not in message:
        return message, True
    trainable = checks.integer(message["weight"], f"{path}.weight", low=0, high=1) == 1
    return {name: one for name, one in message.items() if name != "weight"}, trainable


def _known(tree: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for name in tree:
        if name not in names:
            raise DocumentError(f"{where}{name}: no such field; the nearest valid name is {nearest(name, names)}")
