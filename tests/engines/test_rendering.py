from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.models import load_tokenizer
from openclaw_rl.serving.engines.protocol import InvalidEngineRequest
from openclaw_rl.serving.engines.rendering import Renderer, call_as_text, normalise, with_tools_as_text
from openclaw_rl.serving.engines.tool_parser import ToolCallParser

DEFAULT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"id": "a1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a1", "content": "rain"},
]
HERMES = (
    "{%- if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{%- for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{%- endfor %}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


@pytest.fixture(scope="module")
def renderer(tiny: Path) -> Renderer:
    return Renderer(load_tokenizer(tiny))


def test_a_plain_conversation_is_the_template_s_own(renderer: Renderer) -> None:
    assert not renderer.native_tools
    assert renderer.default_system == DEFAULT
    text = renderer.render_text([{"role": "user", "content": "Hi"}])
    assert text == (
        f"<|im_start|>system\n{DEFAULT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_ids_are_the_tokens_of_the_text(renderer: Renderer, tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    ids = renderer.render([{"role": "user", "content": "Hi"}], (), False)
    assert tokenizer.decode(list(ids)) == renderer.render_text([{"role": "user", "content": "Hi"}], (), False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == ids[-2]


def test_tools_keep_the_default_system_message(renderer: Renderer) -> None:
    text = renderer.render_text(CONVERSATION, [TOOL])
    system, _, rest = text.partition("<|im_end|>\n")
    assert system.startswith(f"<|im_start|>system\n{DEFAULT}\n\n")
    assert json.dumps(TOOL, ensure_ascii=False) in system
    assert rest == (
        "<|im_start|>user\nHow is the weather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_follow_the_client_s_system_message(renderer: Renderer) -> None:
    text = renderer.render_text([{"role": "developer", "content": "Be kind."}, *CONVERSATION], [TOOL])
    assert text.startswith("<|im_start|>system\nBe kind.\n\n")
    assert DEFAULT not in text


def test_results_in_a_row_are_one_user_message() -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "1"}
    plain = with_tools_as_text([result, {**result, "content": "2"}, {"role": "user", "content": "x"}], [], None)
    assert plain == [
        {
            "role": "user",
            "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
        },
        {"role": "user", "content": "x"},
    ]


def test_a_template_that_knows_tools_is_used(tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    tokenizer.chat_template = HERMES
    renderer = Renderer(tokenizer)
    assert renderer.native_tools
    text = renderer.render_text(CONVERSATION, [TOOL])
    assert '"arguments": {"city": "Zürich"}' in text
    assert "<tool_response>" not in text
    assert "<|im_start|>tool\nrain" in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "ano"),
        ([], ""),
    ],
)
def test_contents(content: Any, text: str) -> None:
    assert normalise({"role": "user", "content": content}, 0)["content"] == text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages[3].content[1]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[3].content[0]"),
        ({"role": "user", "content": 7}, "messages[3].content"),
        ({"role": "robot", "content": "a"}, "messages[3].role"),
        ({"content": "a"}, "messages[3].role"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[3].tool_calls[0].function"),
    ],
)
def test_what_cannot_be_rendered_is_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidEngineRequest) as caught:
        normalise(message, 3)
    assert caught.value.param == param


def test_what_is_nested_too_deeply_is_the_client_s_error(renderer: Renderer) -> None:
    deep = '{"a": ' + "[" * 900 + "]" * 900 + "}"
    call = {"id": "x", "function": {"name": "f", "arguments": deep}}
    with pytest.raises(InvalidEngineRequest) as caught:
        renderer.render([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert caught.value.param == "messages"


def test_no_messages_is_named(renderer: Renderer) -> None:
    with pytest.raises(InvalidEngineRequest) as caught:
        renderer.render([])
    assert caught.value.param == "messages"


def test_a_template_s_refusal_is_the_client_s_error(tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidEngineRequest, match="roles must alternate"):
        Renderer(tokenizer).render([{"role": "user", "content": "x"}])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["<tool_call>", "</tool_call>", "a</tool_call>b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.text(alphabet="ab <\n", max_size=12),
    calls=st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)), min_size=1, max_size=3
    ),
)
def test_what_is_rendered_is_parsed_back(content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    asked = [{"id": "x", "function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    message = normalise({"role": "assistant", "content": content, "tool_calls": asked}, 0)
    text = with_tools_as_text([message], [], None)[0]["content"]
    parser = ToolCallParser()
    fed, last = parser.feed(text), parser.finish()
    parsed = [call["function"] for call in (*fed.tool_calls, *last.tool_calls)]
    assert [(call["name"], json.loads(call["arguments"])) for call in parsed] == calls
    assert fed.text + last.text == content.rstrip()


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    for arguments in (
        "{broken",
        "[1]",
        "7",
        '{"n": ' + "1" * 5000 + "}",
        '{"a": "\\ud83d"}',
        '{"a": ' + "[" * 50_000,
    ):
        call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
        plain = normalise({"role": "assistant", "content": None, "tool_calls": [call]}, 0)
        rendered = call_as_text("f", plain["tool_calls"][0]["function"]["arguments"])
        parsed = ToolCallParser().feed(rendered).tool_calls[0]["function"]
        assert parsed == {"name": "f", "arguments": arguments}
