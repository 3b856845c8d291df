"""Chat messages as clients send them → the token ids that the model sees. Engine and trainer share this one way.

A chat template that renders tools, tool calls (as `<tool_call>{json}</tool_call>`) and tool results is used as it
is. One that does not gets **our rendering**, which any instruction-tuned model can read:

- the system message (the client's, else the template's own default) is followed by a block that lists the tools as
  JSON, one per line, between `<tools>` and `</tools>`, and asks for answers of the form
  `<tool_call>{"name": ..., "arguments": ...}</tool_call>`;
- an assistant's tool calls follow its text in that form, one per line;
- tool results become one user message, each between `<tool_response>` and `</tool_response>`.

Which of the two holds is found out once, by rendering a conversation with a sentinel tool.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.serving.engines.special_tokens import Hiding, SpecialTokens
from openclaw_rl.serving.engines.tool_parser import CALL_CLOSE, CALL_OPEN, is_text

Json = dict[str, Any]

RESPONSE_OPEN, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_SENTINEL = "sentinelq7"
_INSTRUCTIONS = (
    "You may call functions to help with the user's request. These are the functions, one JSON object per line:\n"
    "<tools>\n{tools}\n</tools>\n"
    "To call a function, answer with its name and arguments as JSON, in this form:\n"
    '<tool_call>{{"name": "function name", "arguments": {{"argument": "value"}}}}</tool_call>'
)


class Renderer:
    """Renders with one tokenizer's chat template. Safe to use from several threads: it changes nothing."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the model's tokenizer has no chat template: it cannot answer chat messages")
        self._tokenizer = tokenizer
        self._special = SpecialTokens(tokenizer)
        self.native_tools: bool = self._renders_tools()
        self.default_system: str | None = self._find_default_system()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        generation_prompt: bool = True,
    ) -> tuple[int, ...]:
        """Token ids [P] of `messages`, with the opening of the assistant's answer if `generation_prompt`.

        What a client wrote is ordinary text, also where it is spelled like a special token (see `special_tokens`).

        Raises:
            InvalidEngineRequest: a message cannot be rendered; `param` names the field.
        """
        hiding = self._special.hiding()
        with _named(hiding):
            return hiding.encode(self._hidden_text(messages, tools, generation_prompt, hiding))

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        generation_prompt: bool = True,
    ) -> str:
        """The text that `render` turns into ids."""
        hiding = self._special.hiding()
        with _named(hiding):
            return hiding.restore(self._hidden_text(messages, tools, generation_prompt, hiding))

    def _hidden_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        generation_prompt: bool,
        hiding: Hiding,
    ) -> str:
        if not messages:
            raise InvalidEngineRequest("messages must not be empty", param="messages")
        plain: list[Json] = [hiding.hide(normalise(message, index)) for index, message in enumerate(messages)]
        tools = hiding.hide(tools)
        if not self.native_tools:
            plain = with_tools_as_text(plain, tools, self.default_system)
            tools = ()
        return self._apply(plain, tools, generation_prompt)

    def _apply(self, messages: list[Json], tools: Sequence[Mapping[str, Any]], generation_prompt: bool) -> str:
        rendered = self._tokenizer.apply_chat_template(
            messages,
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
        )
        return str(rendered)

    def _renders_tools(self) -> bool:
        """Whether the template shows the tool, the call in the form that we can read back, and the result."""
        name, argument, result, city = (_SENTINEL + part for part in ("name", "argument", "result", "city"))
        call = {"name": name, "arguments": {argument: city}}
        conversation: list[Json] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "a", "content": result},
        ]
        description = _SENTINEL + "description"
        parameters = {"type": "object", "properties": {argument: {"type": "string"}}}
        function = {"name": name, "description": description, "parameters": parameters}
        try:
            text = self._apply(conversation, [{"type": "function", "function": function}], True)
        except (TemplateError, TypeError, KeyError, ValueError):
            return False
        calls = text.split(CALL_OPEN)[1:]
        return description in text and result in text and any(name in c and city in c for c in calls)

    def _find_default_system(self) -> str | None:
        """The system message that the template adds by itself, found by comparing it with one of ours."""
        user = {"role": "user", "content": _SENTINEL + "user"}
        try:
            bare = self._apply([user], (), False)
            given = self._apply([{"role": "system", "content": _SENTINEL + "system"}, user], (), False)
        except (TemplateError, TypeError, KeyError, ValueError):
            return None
        before, found, after = given.partition(_SENTINEL + "system")
        if not found or not bare.startswith(before) or not bare.endswith(after):
            return None
        return bare[len(before) : len(bare) - len(after)] if len(bare) >= len(before) + len(after) else None


def normalise(message: Mapping[str, Any], index: int) -> Json:
    """One message in the form that templates know: text content, known role, arguments as a mapping.

    Raises:
        InvalidEngineRequest: naming the field, e.g. `messages[2].content[1]` for a part that is not text.
    """
    where = f"messages[{index}]"
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise InvalidEngineRequest(f"unknown role {message.get('role')!r}", param=f"{where}.role")
    plain: Json = {"role": role, "content": _text(message.get("content"), f"{where}.content")}
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            plain[key] = message[key]
    if role == "assistant" and message.get("tool_calls"):
        calls = message["tool_calls"]
        plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return plain


def with_tools_as_text(
    messages: Sequence[Json], tools: Sequence[Mapping[str, Any]], default_system: str | None
) -> list[Json]:
    """Normalised messages with tools, calls and results written into the text (our rendering, see the module)."""
    plain: list[Json] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and after_result:
            plain[-1]["content"] += "\n" + _result_as_text(message)
        elif is_result:
            plain.append({"role": "user", "content": _result_as_text(message)})
        elif "tool_calls" in message:
            plain.append({"role": message["role"], "content": _calls_as_text(message)})
        else:
            plain.append(dict(message))
        after_result = is_result
    if not tools:
        return plain
    block = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    given = plain.pop(0)["content"] if plain and plain[0]["role"] == "system" else default_system
    return [{"role": "system", "content": f"{given}\n\n{block}" if given else block}, *plain]


def call_as_text(name: str, arguments: Any) -> str:
    """`<tool_call>{...}</tool_call>`, such that the parser reads the same name and arguments back."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    # Inside JSON these marks can only stand in strings, where "<" may as well be written \u003c.
    for mark in (CALL_OPEN, CALL_CLOSE):
        body = body.replace(mark, "\\u003c" + mark[1:])
    return CALL_OPEN + body + CALL_CLOSE


def _calls_as_text(message: Json) -> str:
    lines = [message["content"]] if message["content"] else []
    lines += [call_as_text(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    return "\n".join(lines)


def _result_as_text(message: Json) -> str:
    return f"{RESPONSE_OPEN}\n{message['content']}\n{RESPONSE_CLOSE}"


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidEngineRequest("content must be a string or a list of parts", param=where)
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS:
        raise InvalidEngineRequest(f"this model reads text only, not a part of type {kind!r}", param=where)
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidEngineRequest(f"a part of type {kind!r} carries a string", param=where)
    return text


@contextlib.contextmanager
def _named(hiding: Hiding) -> Iterator[None]:
    """Whatever keeps messages from being rendered is the client's error, and named as such."""
    try:
        yield
    except (TemplateError, TypeError, KeyError, ValueError, RecursionError) as error:
        reason = hiding.restore(str(error))
        message = f"the model's chat template cannot render these messages: {reason}"
        raise InvalidEngineRequest(message, param="messages") from error


def _call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidEngineRequest("a tool call has a function with a name", param=f"{where}.function")
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(function.get("arguments"))},
    }


def _arguments(arguments: Any) -> Any:
    """A JSON string of an object becomes the object; anything else stays as the client sent it."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
            return (
                parsed if isinstance(parsed, dict) and is_text(json.dumps(parsed, ensure_ascii=False)) else arguments
            )
        except (ValueError, RecursionError):
            return arguments
    return arguments
