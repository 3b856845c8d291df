"""A small server that speaks as much of the chat API as the demo uses, and breaks it on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

REFUSE = "refuse"
BREAK = "break"
NO_FINISH = "no finish"


@dataclass(kw_only=True)
class Seen:
    """One request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    answer: str


@dataclass
class FakeApi:
    """`answer` gives the text for a request's body, or one of the words above for what is to go wrong."""

    answer: Callable[[dict[str, Any]], str]
    delay_s: float = 0.0
    models: list[str] = field(default_factory=lambda: ["policy", "base"])
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    most_open: int = 0
    open: int = 0

    def app(self) -> FastAPI:
        """The application."""
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.json()
            text = self.answer(body)
            turn_id = f"t{len(self.seen)}"
            self.seen.append(Seen(body=body, headers=dict(request.headers), answer=text))
            if text == REFUSE:
                return JSONResponse({"error": {"message": "busy", "type": "x", "code": "y"}}, status_code=503)
            headers = {"X-Turn-Id": turn_id, "X-Policy-Version": "policy-v3"}
            return StreamingResponse(self._stream(turn_id, text), media_type="text/event-stream", headers=headers)

        @app.get("/v1/models")
        async def models() -> Response:
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "x"} for name in self.models]
            return JSONResponse({"object": "list", "data": data})

        return app

    async def _stream(self, turn_id: str, text: str) -> AsyncIterator[str]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            words = ["half", " an"] if text in {BREAK, NO_FINISH} else _pieces(text)
            yield _chunk(turn_id, {"role": "assistant", "content": ""})
            for word in words:
                await asyncio.sleep(self.delay_s)
                yield _chunk(turn_id, {"content": word})
            if text == BREAK:
                raise RuntimeError("the server lost its thread")
            if text != NO_FINISH:
                yield _chunk(turn_id, {}, finish="stop")
            yield "data: [DONE]\n\n"
        finally:
            self.open -= 1


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [words[0], *(f" {word}" for word in words[1:])]


def _chunk(turn_id: str, delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": f"chatcmpl-{turn_id}", "object": "chat.completion.chunk", "created": 0, "model": "policy"}
    return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[FakeApi]:
    """Serve on a free port inside the running event loop."""
    server = uvicorn.Server(uvicorn.Config(api.app(), host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has a flag, no event)
        await asyncio.sleep(0.01)
    api.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    try:
        yield api
    finally:
        server.should_exit = True
        await task
