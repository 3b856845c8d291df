"""The messages and tools of an OpenAI chat request, checked strictly and kept as the client sent them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openclaw_rl.serving.gateway.dialects import checks
from openclaw_rl.serving.gateway.errors import bad_request
from openclaw_rl.types import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")
_PLAIN_ROLES = ("system", "developer", "user", "assistant")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

# Fields that clients send back with an answer, or put there for other servers; they change nothing here.
_IGNORED_MESSAGE_FIELDS = frozenset({
    "name", "annotations", "reasoning", "reasoning_content", "reasoning_details", "cache_control", "id",
    "provider_specific_fields", "timestamp",
})  # fmt: skip
_FIELDS: Mapping[str, frozenset[str]] = {
    role: _IGNORED_MESSAGE_FIELDS | {"role", "content"} for role in ("system", "developer", "user")
} | {
    # `parsed`, and `parsed_arguments` below: the official client's streaming helper adds them to what it hands out.
    "assistant": _IGNORED_MESSAGE_FIELDS
    | {"role", "content", "tool_calls", "refusal", "audio", "function_call", "parsed"},
    "tool": _IGNORED_MESSAGE_FIELDS | {"role", "content", "tool_call_id", "is_error"},
}
_PART_FIELDS = frozenset({"type", "text", "refusal", "cache_control", "annotations"})
_CALL_FIELDS = frozenset({"id", "type", "function", "index", "provider_specific_fields"})
_CALL_FUNCTION_FIELDS = frozenset({"name", "arguments", "parsed_arguments"})
_TOOL_FIELDS = frozenset({"type", "function", "cache_control"})
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})


def parse_messages(value: Any, path: str = "messages") -> tuple[Message, ...]:
    """The messages of a request, unchanged.

    Raises:
        GatewayError: 400 naming the field, such as `messages[2].content[0].text`.
    """
    messages = checks.array(value, path)
    if not messages:
        raise bad_request(path, f"{path} must hold at least one message.")
    for index, message in enumerate(messages):
        if not _is_plain(message):
            _check_message(message, f"{path}[{index}]")
    return tuple(messages)


def _is_plain(message: Any) -> bool:
    """Whether it is just a role and a text, as most are: nothing can be wrong with it."""
    if not isinstance(message, dict) or len(message) != 2:
        return False
    return isinstance(message.get("content"), str) and message.get("role") in _PLAIN_ROLES


def _check_message(message: Any, path: str) -> None:
    checks.mapping(message, path)
    if "role" not in message:
        raise checks.missing(f"{path}.role")
    role = checks.choice(message["role"], f"{path}.role", _ROLES)
    if not message.keys() <= _FIELDS[role]:
        checks.known_fields(message, _FIELDS[role], f"{path}.")
    name = message.get("name")
    if name is not None:
        checks.text(name, f"{path}.name")
    if role == "assistant":
        _check_assistant(message, path)
        return
    if "content" not in message:
        raise checks.missing(f"{path}.content")
    _check_content(message["content"], f"{path}.content", part_types=("text",))
    if role == "tool":
        if message.get("tool_call_id") is None:
            raise checks.missing(f"{path}.tool_call_id")
        checks.text(message["tool_call_id"], f"{path}.tool_call_id")


def _check_assistant(message: dict[str, Any], path: str) -> None:
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise bad_request(f"{path}.{field}", f"{path}.{field} is not supported.", code="unsupported_value")
    refusal = message.get("refusal")
    if refusal is not None:
        checks.text(refusal, f"{path}.refusal", empty=True)
    calls = message.get("tool_calls")
    if calls is not None:
        for index, call in enumerate(checks.array(calls, f"{path}.tool_calls")):
            _check_call(call, f"{path}.tool_calls[{index}]")
    content = message.get("content")
    if content is not None:
        _check_content(content, f"{path}.content", part_types=("text", "refusal"))
    elif not calls:
        raise checks.missing(f"{path}.content", f"{path}.content may be null only beside tool_calls.")


def _check_content(content: Any, path: str, *, part_types: tuple[str, ...]) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise checks.wrong_type(path, "a string or an array of parts", content)
    if not content:
        raise bad_request(path, f"{path} must hold at least one part.")
    for index, part in enumerate(content):
        where = f"{path}[{index}]"
        checks.mapping(part, where)
        if "type" not in part:
            raise checks.missing(f"{where}.type")
        kind = checks.choice(part["type"], f"{where}.type", part_types)
        checks.known_fields(part, _PART_FIELDS, f"{where}.")
        if kind not in part:
            raise checks.missing(f"{where}.{kind}")
        checks.text(part[kind], f"{where}.{kind}", empty=True)


def _check_call(call: Any, path: str) -> None:
    checks.mapping(call, path)
    checks.known_fields(call, _CALL_FIELDS, f"{path}.")
    for field in ("id", "function"):
        if call.get(field) is None:
            raise checks.missing(f"{path}.{field}")
    checks.text(call["id"], f"{path}.id")
    if call.get("type") is not None:
        checks.choice(call["type"], f"{path}.type", ("function",))
    function = checks.mapping(call["function"], f"{path}.function")
    checks.known_fields(function, _CALL_FUNCTION_FIELDS, f"{path}.function.")
    for field in ("name", "arguments"):
        if field not in function:
            raise checks.missing(f"{path}.function.{field}")
    checks.text(function["name"], f"{path}.function.name")
    checks.text(function["arguments"], f"{path}.function.arguments", empty=True)


def parse_tools(value: Any, path: str = "tools") -> tuple[Mapping[str, Any], ...]:
    """The tools of a request, unchanged.

    Raises:
        GatewayError: 400 naming the field, such as `tools[0].function.name`.
    """
    tools = checks.array(value, path)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"{path}[{index}]"
        checks.mapping(tool, where)
        if "type" not in tool:
            raise checks.missing(f"{where}.type")
        checks.choice(tool["type"], f"{where}.type", ("function",))
        checks.known_fields(tool, _TOOL_FIELDS, f"{where}.")
        if "function" not in tool:
            raise checks.missing(f"{where}.function")
        name = _check_function(tool["function"], f"{where}.function")
        if name in names:
            raise bad_request(f"{where}.function.name", f"{path} holds two functions named {name}.")
        names.add(name)
    return tuple(tools)


def _check_function(function: Any, path: str) -> str:
    checks.mapping(function, path)
    checks.known_fields(function, _FUNCTION_FIELDS, f"{path}.")
    if "name" not in function:
        raise checks.missing(f"{path}.name")
    name = checks.text(function["name"], f"{path}.name")
    if _TOOL_NAME.fullmatch(name) is None:
        raise bad_request(f"{path}.name", f"{path}.name must be 1 to 128 letters, digits, dots, dashes, underscores.")
    if function.get("description") is not None:
        checks.text(function["description"], f"{path}.description", empty=True)
    if function.get("parameters") is not None:
        checks.shallow(checks.mapping(function["parameters"], f"{path}.parameters"), f"{path}.parameters")
    if function.get("strict") is not None and checks.boolean(function["strict"], f"{path}.strict"):
        message = f"{path}.strict = true needs constrained decoding, which no engine here has."
        raise bad_request(f"{path}.strict", message, code="unsupported_value")
    return name
