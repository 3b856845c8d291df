"""An agent's conversation with a tool, from the official client to the samples."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from openclaw_rl.config import Config
from openclaw_rl.judging import loop as judging
from openclaw_rl.rollout import loop as rollout
from openclaw_rl.serving.gateway import server
from openclaw_rl.store import Store
from openclaw_rl.testing import scripted_engine
from openclaw_rl.types import Turn, TurnState
from tests.gateway.conftest import free_port
from tests.integration.support import connect
from tests.supervision.waiting import eventually

SCRIPT: list[dict[str, Any]] = [
    {"on": "tool", "text": "It will be sunny in Bern."},
    {"match": "weather", "tool_calls": [{"name": "forecast", "arguments": {"place": "Bern"}}]},
    {"text": "You are welcome."},
]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "forecast", "parameters": {"type": "object"}}}]

System = tuple[openai.OpenAI, Store]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """Every loop but training, each in a thread of its own, talking over HTTP and through the record."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    config = Config.model_validate({
        "run_dir": tmp_path / "run",
        "serving": {"port": free_port()},
        "engine": {"kind": "scripted", "script": script, "port": free_port()},
        "judge": {"kind": "scripted"},
        "rollout": {"poll_interval_s": 0.02},
        "supervisor": {"shutdown_timeout_s": 3},
    })  # fmt: skip
    loops: list[Callable[[Config, threading.Event], None]] = [
        server.run,
        scripted_engine.run,
        rollout.run,
        judging.run,
    ]
    stops = [threading.Event() for _ in loops]
    threads = [threading.Thread(target=run, args=(config, stop)) for run, stop in zip(loops, stops, strict=True)]
    store = Store.open(config.store_path)
    for thread in threads:
        thread.start()
    try:
        with connect(f"http://127.0.0.1:{config.serving.port}/v1") as client:
            eventually(lambda: _answers(client), "the gateway answers")
            yield client, store
    finally:
        for thread, stop in zip(threads, stops, strict=True):  # the gateway first
            stop.set()
            thread.join(20)
        store.close()
    assert not any(thread.is_alive() for thread in threads)


def _answers(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.APIConnectionError:
        return False


def exchange(client: openai.OpenAI, messages: list[Any]) -> tuple[str, Any]:
    """Stream the next answer and put it into the conversation as it came; its turn and itself."""
    with client.chat.completions.stream(model="policy", messages=messages, tools=TOOLS) as stream:
        answer = stream.get_final_completion()
    message = answer.choices[0].message
    messages.append(message)
    return answer.id.removeprefix("chatcmpl-"), message


def test_each_turn_gets_the_next_state_that_the_client_sent_after_it(system: System) -> None:
    client, store = system
    messages: list[Any] = [{"role": "user", "content": "How will the weather be in Bern?"}]
    called, call = exchange(client, messages)
    (asked,) = call.tool_calls
    assert (asked.function.name, json.loads(asked.function.arguments)) == ("forecast", {"place": "Bern"})
    result = {"role": "tool", "tool_call_id": asked.id, "content": "sunny, 20 degrees [good]"}
    messages.append(result)
    told, answer = exchange(client, messages)
    assert answer.content == "It will be sunny in Bern."
    thanks = {"role": "user", "content": "Too long. [bad] hint: Say one word."}
    messages.append(thanks)
    closed, _ = exchange(client, messages)

    eventually(lambda: store.samples.ready().count == 2, "both turns with a next state are samples")
    turns = {turn_id: _turn(store, turn_id) for turn_id in (called, told, closed)}
    assert [turns[turn_id].request.parent_turn_id for turn_id in (called, told, closed)] == [None, called, told]
    assert [turns[turn_id].next_state for turn_id in (called, told, closed)] == [(result,), (thanks,), None]
    assert [turns[turn_id].state for turn_id in (called, told)] == [TurnState.SAMPLED] * 2
    assert turns[closed].state is TurnState.AWAITING_NEXT_STATE
    assert len({turn.request.session_id for turn in turns.values()}) == 1
    samples = {sample.turn_id: sample for sample in store.samples.claim(8, lease_s=60)}
    assert {turn_id: (s.reward, s.hint) for turn_id, s in samples.items()} == {
        called: (1.0, None),
        told: (-1.0, "Say one word."),
    }
    assert samples[called].tools == tuple(TOOLS)
    assert b'"forecast"' in bytes(samples[called].tokens.response_ids[:-1])
    assert bytes(samples[told].tokens.response_ids[:-1]).decode() == "It will be sunny in Bern."


def _turn(store: Store, turn_id: str) -> Turn:
    turn = store.turns.get(turn_id)
    assert turn is not None
    return turn
