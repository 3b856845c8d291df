"""The engine that every contender of the gateway benchmark asks: one process, two dialects, no model.

OpenAI's (`POST /v1/chat/completions`, whole or streamed) for the proxies that speak that, and our engine protocol
(`POST /chat`, NDJSON) for our gateway. Both answer the same fixed text, token by token; the token ids of a prompt
go by its length, about four bytes a token, so that a conversation's prompts extend one another as real ones do.
`POST /pace` sets the pause between two tokens. It is a bare asyncio protocol, so that it is never the bottleneck.

    python -m benchmarks.gateway_engine PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import httptools
import uvloop

ANSWER = tuple(f" word{number:02d}" for number in range(32))
BYTES_PER_TOKEN = 4
_FIRST_ID = 10_000
_LONGEST = 60_000
_ALL_IDS = ", ".join(str(_FIRST_ID + position % 50_000) for position in range(_LONGEST))
_ID_WIDTH = 7  # five digits, a comma, a space

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LINES_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


def token_ids(begin: int, end: int) -> str:
    """The ids of the positions from `begin` to `end` as they stand in a JSON list."""
    return _ALL_IDS[begin * _ID_WIDTH : end * _ID_WIDTH - 2]


@dataclass(kw_only=True, slots=True)
class Pace:
    """Seconds between two tokens; 0 sends all that remains at once."""

    seconds: float = 0.0


class EngineProtocol(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody listens any more."""
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._send(_response(400, {"error": {"message": "not HTTP"}}))

    def on_url(self, url: bytes) -> None:
        """A request begins."""
        self._path, self._body = url, []

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """A request is here: answer it."""
        body = b"".join(self._body)
        fields: dict[str, Any] = json.loads(body) if body else {}
        prompt = len(body) // BYTES_PER_TOKEN
        match self._path:
            case b"/v1/chat/completions" if fields.get("stream"):
                self._stream(_STREAM_HEAD, _sse_events(prompt))
            case b"/v1/chat/completions":
                self._send(_response(200, _completion(prompt)))
            case b"/chat":
                self._stream(_LINES_HEAD, _ndjson_events(prompt, fields["version"]))
            case b"/health":
                self._send(_response(200, _HEALTH))
            case b"/pace":
                self._pace.seconds = fields["seconds"]
                self._send(_response(200, {}))
            case b"/versions/load" | b"/versions/unload":
                self._send(_response(200, {}))
            case _:
                self._send(_response(404, {"error": {"message": "no such path"}}))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _stream(self, head: bytes, events: list[bytes]) -> None:
        """Send the events: the first two at once (what was read, the first token), the others at the set pace."""
        if self._pace.seconds == 0.0:
            self._send(b"".join([head, *map(_chunk, events), b"0\r\n\r\n"]))
            return
        self._answering = asyncio.get_running_loop().create_task(self._paced(head, events))

    async def _paced(self, head: bytes, events: list[bytes]) -> None:
        self._send(b"".join([head, *map(_chunk, events[:2])]))
        async for event in _at_pace(events[2:], self._pace.seconds):
            self._send(_chunk(event))
        self._send(b"0\r\n\r\n")


async def _at_pace(events: list[bytes], seconds: float) -> AsyncIterator[bytes]:
    for event in events:
        await asyncio.sleep(seconds)
        yield event


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response(status: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(data),
        data,
    )


_HEALTH = {
    "ready": True,
    "instance_id": f"benchmark{time.time_ns()}",
    "loaded_versions": [0],
    "active_requests": 0,
    "queued_requests": 0,
    "context_length": _LONGEST,
}


def _shared(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-benchmark", "object": kind, "created": int(time.time()), "model": "policy"}


def _completion(prompt: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(ANSWER)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt, "completion_tokens": len(ANSWER), "total_tokens": prompt + len(ANSWER)}
    return {**_shared("chat.completion"), "choices": [choice], "usage": usage}


def _sse_events(prompt: int) -> list[bytes]:
    """The role, a chunk for each token, the end."""
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": text}, None) for text in ANSWER]
    deltas.append(({}, "stop"))
    shared = _shared("chat.completion.chunk")
    chunks = [
        {**shared, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        for delta, reason in deltas
    ]
    return [*(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]


def _ndjson_events(prompt: int, version: int) -> list[bytes]:
    """The prompt's ids, an event for each token, the end."""
    read = f'{{"event": "prompt_read", "prompt_ids": [{token_ids(0, prompt)}]}}\n'
    drawn = [
        f'{{"event": "tokens_drawn", "ids": [{token_ids(prompt + index, prompt + index + 1)}], "logprobs": [-0.25], '
        f'"versions": [{version}], "text": "{text}", "tool_calls": [], "kept": null}}\n'
        for index, text in enumerate(ANSWER)
    ]
    finished = (
        f'{{"event": "finished", "finish_reason": "stop", "prompt_tokens": {prompt}, '
        f'"completion_tokens": {len(ANSWER)}}}\n'
    )
    return [line.encode() for line in (read, *drawn, finished)]


async def serve(port: int) -> None:
    """Serve on loopback until cancelled."""
    pace = Pace()
    server = await asyncio.get_running_loop().create_server(lambda: EngineProtocol(pace), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
