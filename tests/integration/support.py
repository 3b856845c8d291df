"""A deployment of real processes around a tiny model, and people who talk to it with the official client."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from openclaw_rl.config import Config

QUESTION = "What is a tide?"
TIMEOUT_S = 60.0
LONGEST = 900
"""Tokens of a long answer: what the tiny model's context holds beside a prompt, or nearly so."""


def deployment_config(run_dir: Path, model: Path, **sections: Any) -> Config:
    """The embedded engine with `model`, the scripted judge, and a trainer that steps after two samples."""
    defaults: dict[str, Any] = {
        "serving": {"port": 0},
        "engine": {"context_length": 1024, "max_parallel": 4, "threads": 1},
        "judge": {"kind": "scripted"},
        "rollout": {"batch_size": 2, "poll_interval_s": 0.05},
        # A random model has no language to lose, and the gate would find it lost.
        "training": {"threads": 1, "niceness": 0, "lora": {"rank": 4, "alpha": 8.0}, "gate": {"probes": 0}},
        "supervisor": {"restart_backoff_s": 0.5},
    }
    merged = {name: {**defaults.get(name, {}), **sections.get(name, {})} for name in {*defaults, *sections}}
    return Config.model_validate({"run_dir": run_dir, "model": {"path": str(model)}, **merged})


def connect(url: str) -> openai.OpenAI:
    """The official client, which never retries. It reads no certificates, which takes longer than a test."""
    return openai.OpenAI(
        base_url=url,
        api_key="none",
        max_retries=0,
        timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(verify=False),
    )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client got, and when (seconds since the epoch)."""

    turn_id: str
    version: int
    text: str
    finish_reason: str | None
    began_at: float
    ended_at: float


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, messages: Sequence[Any], *, session: str = "", **options: Any) -> Answer:
    """One request, answered at once."""
    began = time.time()
    raw = client.chat.completions.with_raw_response.create(**_body(messages, session, options))
    whole = raw.parse()
    choice = whole.choices[0]
    return Answer(
        turn_id=raw.headers["x-turn-id"],
        version=int(raw.headers["x-policy-version"]),
        text=choice.message.content or "",
        finish_reason=choice.finish_reason,
        began_at=began,
        ended_at=time.time(),
    )


def stream(
    client: openai.OpenAI,
    messages: Sequence[Any],
    *,
    session: str = "",
    begun: threading.Event | None = None,
    **options: Any,
) -> Answer:
    """One request, streamed; `begun` is set when the first text is there."""
    began, text, reason = time.time(), "", None
    raw = client.chat.completions.with_raw_response.create(**_body(messages, session, options), stream=True)
    for chunk in raw.parse():
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            if choice.delta.content and begun is not None:
                begun.set()
    return Answer(
        turn_id=raw.headers["x-turn-id"],
        version=int(raw.headers["x-policy-version"]),
        text=text,
        finish_reason=reason,
        began_at=began,
        ended_at=time.time(),
    )


def react(client: openai.OpenAI, question: str, reaction: str) -> str:
    """Ask, and say what one thinks of the answer: its turn, which gets that as its next state."""
    session = uuid.uuid4().hex
    first = ask(client, [user(question)], session=session, max_tokens=12)
    said = [user(question), {"role": "assistant", "content": first.text}, user(reaction)]
    ask(client, said, session=session, max_tokens=2)
    return first.turn_id


class LongStreams(threading.Thread):
    """Someone who reads one long streamed answer after the other, until told that it is enough."""

    def __init__(self, client: openai.OpenAI, *, once: bool = False) -> None:
        super().__init__(name="long streams", daemon=True)
        self._client = client
        self._once = once
        self.begun = threading.Event()
        self.enough = threading.Event()
        self.answers: list[Answer] = []
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                options: dict[str, Any] = {"max_tokens": LONGEST, "temperature": 1.0, "begun": self.begun}
                self.answers.append(stream(self._client, [user("Tell me a long story.")], **options))
                if self._once:
                    return
        except Exception as error:  # noqa: BLE001 - the test fails with it, on its own thread
            self.failure = error

    def finish(self) -> list[Answer]:
        """Every answer, each whole."""
        self.enough.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure
        assert all(answer.finish_reason in {"stop", "length"} for answer in self.answers)
        return self.answers


def _body(messages: Sequence[Any], session: str, options: dict[str, Any]) -> dict[str, Any]:
    headers = {"X-Session-Id": session} if session else {}
    return {"model": "policy", "messages": list(messages), "extra_headers": headers, **options}
