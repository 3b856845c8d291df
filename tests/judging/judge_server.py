"""A judge's endpoint that really listens, and fails in the ways that endpoints do."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], str]


def boxed(_body: dict[str, Any]) -> str:
    """A judge that likes everything."""
    return r"It did its job. \boxed{1}"


class JudgeServer:
    """`mode`: how it behaves now; `answer`: what it says when it is well; `bodies`: what it was asked."""

    def __init__(self, answer: Answer = boxed) -> None:
        self.mode = "well"
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                getattr(self, f"be_{server.mode}")(body)

            def be_well(self, body: dict[str, Any]) -> None:
                message = {"role": "assistant", "content": server.answer(body)}
                self.send(200, json.dumps({"choices": [{"message": message}]}))

            def be_without_formats(self, body: dict[str, Any]) -> None:
                if "response_format" in body:
                    self.send(400, json.dumps({"error": {"message": "response_format is not supported"}}))
                else:
                    self.be_well(body)

            def be_hanging(self, _body: dict[str, Any]) -> None:
                server.over.wait(30)
                self.close_connection = True

            def be_failing(self, _body: dict[str, Any]) -> None:
                self.send(500, "internal error")

            def be_refusing(self, _body: dict[str, Any]) -> None:
                self.send(401, json.dumps({"error": {"message": "wrong key"}}))

            def be_babbling(self, _body: dict[str, Any]) -> None:
                self.send(200, '{"choices": [{"message": {"content": "score: excellent, 10 of 10"}}]}')

            def be_no_api(self, _body: dict[str, Any]) -> None:
                self.send(200, "<html>" + "[" * 100_000)

            def be_dying_half_way(self, _body: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "500")
                self.end_headers()
                self.wfile.write(b'{"choices": [{"message": {"content": "\\\\boxed{1}')
                self.wfile.flush()
                self.close_connection = True

            def send(self, status: int, text: str) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def judge_server(answer: Answer = boxed) -> Iterator[JudgeServer]:
    server = JudgeServer(answer)
    try:
        yield server
    finally:
        server.close()
