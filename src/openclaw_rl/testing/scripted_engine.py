"""A fake engine that answers from a script: the embedded engine's HTTP without a model, for tests and quick trials.

The script is a JSON list of entries; the first that applies answers. An entry's keys, all but one optional:

    match            a substring of the last user message (with "on": "tool", of the last tool result)
    on               "tool": only when the last message is a tool result
    times            how often the entry may be used; without it, always
    text             the answer, or
    tool_calls       a list of {"name", "arguments": {...}}; may stand beside a text
    delay_per_token_s  seconds before each token
    fail             an HTTP status: refuse the request; with fail_after, break off after so many tokens
    fail_after
    logprobs         "none" or "nan": what to put in place of log-probabilities (to test that nobody trains on them)
    extra_tokens     how many tokens more than it sent the engine claims (to test that nobody believes it)

Token ids are the UTF-8 bytes, and 256 ends an answer; log-probabilities are a fixed function of the id.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError
from openclaw_rl.serving.engines.embedded.answer import AnswerText
from openclaw_rl.serving.engines.embedded.app import create_app, serve
from openclaw_rl.serving.engines.protocol import (
    ChatEvent,
    ChatRequest,
    EngineCapabilities,
    EngineError,
    EngineHealth,
    EngineOverloaded,
    EngineUnavailable,
    Finished,
    InvalidEngineRequest,
    PromptRead,
    ScoreRequest,
    ScoreResult,
    TokensDrawn,
    UnknownVersion,
)
from openclaw_rl.serving.engines.rendering import call_as_text, normalise
from openclaw_rl.store import Store
from openclaw_rl.supervision.process import LoopReporter, Reports
from openclaw_rl.types import BASE_VERSION, FinishReason, LoopName, Message, PolicyVersion

END_TOKEN = 256


class ByteTokenizer:
    """Bytes as token ids; what `AnswerText` needs of a tokenizer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The UTF-8 bytes."""
        return tuple(text.encode())

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        """The text of `ids`; the end token has none, half a character is a replacement character."""
        return bytes(token for token in ids if token < END_TOKEN).decode(errors="replace")


class ScriptEntry(BaseModel):
    """One entry of a script; the module's docstring says what the keys mean."""

    model_config = ConfigDict(extra="forbid")

    match: str = ""
    on: str | None = None
    times: int | None = None
    text: str = ""
    tool_calls: list[dict[str, Any]] = []
    delay_per_token_s: float = 0.0
    fail: int | None = None
    fail_after: int = 0
    logprobs: str | None = None
    extra_tokens: int = 0

    @property
    def full_text(self) -> str:
        """The text with its tool calls, as a model would write it."""
        calls = [call_as_text(call["name"], call.get("arguments", {})) for call in self.tool_calls]
        return "\n".join([self.text, *calls] if self.text else calls)


class ScriptedEngine:
    """Implements `Engine` from a script, in process."""

    def __init__(self, script: Sequence[Mapping[str, Any]], *, context_length: int = 8192) -> None:
        self._entries = [ScriptEntry.model_validate(entry) for entry in script]
        self._tokenizer = ByteTokenizer()
        self._context = context_length
        self._instance_id = uuid.uuid4().hex
        self._versions = {BASE_VERSION}
        self._active = 0

    @property
    def capabilities(self) -> EngineCapabilities:
        """All of them, so that it stands in for any engine."""
        return EngineCapabilities(
            token_ids=True, logprobs=True, lora_versions=True, score=True, tools=True, full_weights=True
        )

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Answer with the first entry that applies."""
        self._check_version(request.version)
        prompt = await self.render(request.messages, request.tools)
        room = self._context - len(prompt)
        if room < 1:
            message = f"the messages are {len(prompt)} tokens long, the context holds {self._context}"
            raise InvalidEngineRequest(message, param="messages", code="context_length_exceeded")
        entry = self._entry(request.messages)
        if entry.fail is not None and not entry.fail_after:
            raise _failure(entry.fail)
        self._active += 1
        try:
            yield PromptRead(prompt_ids=prompt)
            async for event in self._answer(request, entry, len(prompt), min(room, request.sampling.max_tokens)):
                yield event
        finally:
            self._active -= 1

    async def render(
        self, messages: tuple[Message, ...], tools: tuple[Mapping[str, Any], ...], *, generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Roles and contents, one after the other, as bytes."""
        if not messages:
            raise InvalidEngineRequest("messages must not be empty", param="messages")
        lines = [json.dumps(tool, sort_keys=True) for tool in tools]
        for index, message in enumerate(messages):
            plain = normalise(message, index)
            calls = [call_as_text(**call["function"]) for call in plain.get("tool_calls", [])]
            lines.append("\n".join([f"[{plain['role']}] {plain['content']}", *calls]))
        return self._tokenizer.encode("\n".join([*lines, "[assistant] "] if generation_prompt else lines))

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """The same log-probabilities as in an answer."""
        self._check_version(request.version)
        if not 1 <= request.start < len(request.ids):
            raise InvalidEngineRequest("start lies between 1 and the number of ids, exclusively", param="start")
        return ScoreResult(logprobs=tuple(logprob_of(token) for token in request.ids[request.start :]))

    async def load_version(self, version: PolicyVersion) -> None:
        """Note the version as loaded; its files are not read."""
        self._versions.add(version.version)

    async def unload_version(self, version: int) -> None:
        """Forget the version."""
        self._versions -= {version} - {BASE_VERSION}

    async def health(self) -> EngineHealth:
        """Always ready."""
        return EngineHealth(
            ready=True,
            instance_id=self._instance_id,
            loaded_versions=tuple(sorted(self._versions)),
            active_requests=self._active,
            queued_requests=0,
            context_length=self._context,
        )

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _answer(
        self, request: ChatRequest, entry: ScriptEntry, prompt_tokens: int, most: int
    ) -> AsyncIterator[ChatEvent]:
        text = AnswerText(self._tokenizer, stop=request.sampling.stop, has_tools=bool(request.tools))
        ids = (*self._tokenizer.encode(entry.full_text), END_TOKEN)
        sent = 0
        for token in ids[:most]:
            await asyncio.sleep(entry.delay_per_token_s)
            if entry.fail is not None and sent >= entry.fail_after:
                raise _failure(entry.fail)
            parsed = text.feed((token,))
            sent += 1
            last = sent == min(len(ids), most) or text.stopped
            rest = text.finish() if last else None
            yield TokensDrawn(
                ids=(token,),
                logprobs=(_faulty(entry.logprobs, token),),
                versions=(request.version,),
                text=parsed.text + (rest.text if rest else ""),
                tool_calls=parsed.tool_calls + (rest.tool_calls if rest else ()),
            )
            if last:
                break
        reason = FinishReason.STOP if text.stopped or sent == len(ids) else FinishReason.LENGTH
        yield Finished(
            finish_reason=text.finish_reason(reason),
            prompt_tokens=prompt_tokens,
            completion_tokens=sent + entry.extra_tokens,
        )

    def _entry(self, messages: Sequence[Message]) -> ScriptEntry:
        last = normalise(messages[-1], len(messages) - 1)
        users = [normalise(message, 0)["content"] for message in messages if message.get("role") == "user"]
        for entry in self._entries:
            subject = last["content"] if entry.on == "tool" else (users[-1] if users else "")
            applies = entry.on is None or entry.on == last["role"]
            if applies and entry.match in subject and entry.times != 0:
                entry.times = None if entry.times is None else entry.times - 1
                return entry
        raise EngineError("the script has no entry for this request")

    def _check_version(self, version: int) -> None:
        if version not in self._versions:
            raise UnknownVersion(f"policy version {version} is not loaded", param="model")


def logprob_of(token: int) -> float:
    """The log-probability that every token has here: between -1 and -1/8, by its id."""
    return -(1 + token % 8) / 8


def scripted_app(script: Sequence[Mapping[str, Any]], *, context_length: int = 8192) -> FastAPI:
    """The HTTP of a scripted engine, to be called in process (`httpx.ASGITransport`)."""
    return create_app(ScriptedEngine(script, context_length=context_length))


def load_script(path: Path) -> list[dict[str, Any]]:
    """Read a script.

    Raises:
        ConfigError: the file cannot be read, or is no JSON list.
    """
    try:
        script = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.script {path} cannot be read: {error}") from error
    if not isinstance(script, list):
        raise ConfigError(f"{path} holds no JSON list")
    return script


def run(config: Config, stop: threading.Event, reporter: Reports | None = None) -> None:
    """Serve the script that `config.engine.script` names, until `stop` is set; `reporter` None: tell the record."""
    if config.engine.script is None:
        raise ConfigError("engine.kind = scripted needs engine.script")
    app = scripted_app(load_script(config.engine.script), context_length=config.engine.context_length)
    host, port = config.engine.host, config.engine.port
    if reporter is not None:
        told = reporter
        uvloop.run(serve(app, host, port, stop, lambda: told.waiting("a request")))
        return
    store = Store.open(config.store_path)
    own = LoopReporter(store, LoopName.ENGINE)
    try:
        uvloop.run(serve(app, host, port, stop, lambda: own.waiting("a request")))
    finally:
        store.close()


def _faulty(fault: str | None, token: int) -> float | None:
    if fault == "none":
        return None
    return math.nan if fault == "nan" else logprob_of(token)


def _failure(status: int) -> EngineError:
    for kind in (EngineOverloaded, EngineUnavailable, InvalidEngineRequest):
        if kind.status == status:
            return kind("the script says that this fails")
    return EngineError("the script says that this fails")
