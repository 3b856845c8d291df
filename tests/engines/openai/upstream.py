"""An upstream that really listens and answers as a test tells it: status, headers, body, or a stream of events."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. `events`: a stream, each after `pause_s`; `cut`: the connection ends in mid-stream.

    `mute`: it ends without a word.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: Any = None
    events: Sequence[Any] = ()
    pause_s: float = 0.0
    before_s: float = 0.0
    cut: bool = False
    mute: bool = False


@dataclass
class Upstream:
    """What it was asked, and what it will answer: the replies in turn, the last one for ever."""

    replies: list[Reply] = field(default_factory=list)
    models: Reply = field(default_factory=lambda: Reply(body={"data": [{"id": "big", "max_model_len": 4096}]}))
    lora: Reply = field(default_factory=lambda: Reply(status=404, body={"detail": "Not Found"}))
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    left_early: int = 0
    url: str = ""

    def take(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def delta(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with a piece of text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]}


def exact(text: str, token: int, **more: Any) -> dict[str, Any]:
    """A chunk with one token: its text, its id, its log-probability."""
    return delta(text, token_ids=[token], logprobs={"content": [{"token": text, "logprob": -token / 10}]}, **more)


USAGE = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}}
PLAIN = Reply(events=[delta("Good "), delta("day."), delta(finish="stop"), USAGE])
EXACT = Reply(
    events=[exact("Good ", 5) | {"prompt_token_ids": [1, 2]}, exact("day.", 6), delta(finish="stop"), USAGE]
)


@contextlib.contextmanager
def listening(*replies: Reply, **more: Any) -> Iterator[Upstream]:
    upstream = Upstream(replies=list(replies) or [PLAIN], **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(upstream.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path.endswith("/chat/completions"):
                upstream.asked.append(body)
                upstream.keys.append(self.headers.get("authorization"))
                self._answer(upstream.take())
            else:
                upstream.loads.append(body)
                self._answer(upstream.lora)

        def _answer(self, reply: Reply) -> None:
            time.sleep(reply.before_s)
            if reply.mute:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            if reply.events:
                self._stream(reply)
                return
            data = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, reply: Reply) -> None:
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.send_header("connection", "close")
            self.end_headers()
            try:
                for event in [*reply.events, *([] if reply.cut else ["[DONE]"])]:
                    time.sleep(reply.pause_s)
                    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
                    data = f"data: {text}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                if not reply.cut:
                    self.wfile.write(b"0\r\n\r\n")
            except OSError:
                upstream.left_early += 1
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    upstream.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield upstream
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
