"""What SGLang was seen to do with adapters, weights and requests: a fake, in process or behind its HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from openclaw_rl.serving.engines.protocol import EngineError
from openclaw_rl.serving.engines.sglang.wire import error_of

Json = dict[str, Any]
DRAWN = (40, 41, 42)
"""The ids of every answer."""

FIT: Json = {
    "version": "0.5.23",
    "enable_lora": True,
    "context_length": 512,
    "sampling_mask_max_tokens": 64,
    "disable_overlap_schedule": True,
}


@dataclass
class FakeSglang:
    """What it has, and what it shall do. `asked`: the paths of what changes something, in order."""

    adapters: dict[str, str] = field(default_factory=dict)
    weights: str = "default"
    seed: int = 1
    paused: bool = False
    info: Json = field(default_factory=dict)
    """What it says of its options, beside what one that fits says."""
    asked: list[str] = field(default_factory=list)
    fails: dict[str, EngineError] = field(default_factory=dict)
    updating: asyncio.Event | None = None
    """Where there is one, an update of the weights takes until it is set."""
    listing: asyncio.Event | None = None
    """Where there is one, a list of the models is sent off only then, however old it is by that time."""
    holding: asyncio.Event | None = None
    """Where there is one, a request stays in the queue until it is set."""
    after_first: asyncio.Event | None = None
    """Where there is one, an answer goes on after its first token only then."""
    key: str | None = None
    """What it asks for, over HTTP."""
    generated: list[Json] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Json:
        """One question, as `SglangVersions` asks it."""
        await asyncio.sleep(0)
        if method == "POST":
            self.asked.append(path)
        if path in self.fails:
            raise self.fails[path]
        answers: dict[str, Callable[[Mapping[str, Any]], Json]] = {
            "/server_info": lambda _: FIT | {"random_seed": self.seed} | self.info,
            "/model_info": lambda _: {"weight_version": self.weights},
            "/v1/models": self._models,
            "/load_lora_adapter": self._load,
            "/unload_lora_adapter": self._unload,
            "/pause_generation": lambda _: self._pause(True),
            "/continue_generation": lambda _: self._pause(False),
            "/update_weights_from_disk": self._update,
            "/abort_request": self._abort,
            "/v1/loads": lambda _: {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]},
        }
        if path == "/update_weights_from_disk" and self.updating is not None:
            await self.updating.wait()
        if path not in answers:
            raise error_of({"message": "Not Found"}, 404)
        answer = answers[path](body or {})
        if path == "/v1/models" and self.listing is not None:
            await self.listing.wait()
        return answer

    def restart(self) -> None:
        """As if it had been killed and started again."""
        self.adapters, self.weights, self.seed, self.paused = {}, "default", self.seed + 1, False

    def has(self) -> set[str]:
        """The adapters by the first parts of their names, which hold the version."""
        return {"-".join(name.split("-")[:2]) for name in self.adapters}

    def _models(self, _body: Mapping[str, Any]) -> Json:
        adapters = [{"id": name, "parent": "m", "max_model_len": None} for name in self.adapters]
        return {"data": [{"id": "m", "parent": None, "max_model_len": 512}, *adapters]}

    def _load(self, body: Mapping[str, Any]) -> Json:
        if body["lora_name"] in self.adapters:
            raise error_of({"success": False, "error_message": "already loaded"}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return {"success": True}

    def _unload(self, body: Mapping[str, Any]) -> Json:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise error_of({"success": False, "error_message": "does not exist"}, 400)
        return {"success": True}

    def _pause(self, paused: bool) -> Json:
        self.paused = paused
        return {"status": "ok"}

    def _update(self, body: Mapping[str, Any]) -> Json:
        assert self.paused
        assert body["flush_cache"] is False, "requests in flight need what they computed"
        self.weights = body["weight_version"]
        return {"success": True, "message": "Succeeded"}

    def _abort(self, body: Mapping[str, Any]) -> Json:
        self.aborted.append(body["rid"])
        return {}

    async def answer(self, body: Json) -> AsyncIterator[str]:
        """The pieces of one answer, one token each; its head is sent before any of them."""
        self.generated.append(body)
        if self.holding is not None:
            await self.holding.wait()
        spans: list[Json] = []
        for number, token in enumerate(DRAWN):
            if number == 1 and self.after_first is not None:
                await self.after_first.wait()
            spans.append({"version": self.weights, "start": number, "end": number + 1})
            last = number == len(DRAWN) - 1
            meta = {
                "finish_reason": {"type": "length"} if last else None,
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": number + 1,
                "weight_version": self.weights,
                "output_token_logprobs": [[-0.5, token, None]],
            }
            piece = {"output_ids": [token], "meta_info": meta | ({"weight_versions": spans} if last else {})}
            yield f"data: {json.dumps(piece)}\n\n"
        yield "data: [DONE]\n\n"

    async def score(self, body: Json) -> Json:
        """The log-probabilities of a prompt's tokens from a place on; there is none before it."""
        self.generated.append(body)
        if self.holding is not None:
            await self.holding.wait()
        _, *tokens = body["input_ids"][body["logprob_start_len"] :]
        pairs = [[None, body["input_ids"][0], None], *([-token / 100, token, None] for token in tokens)]
        return {"meta_info": {"weight_version": self.weights, "input_token_logprobs": pairs}}


def create_fake(fake: FakeSglang) -> FastAPI:
    """Its HTTP."""
    app = FastAPI()

    @app.middleware("http")
    async def authorize(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if fake.key is not None and request.headers.get("authorization") != f"Bearer {fake.key}":
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        return await go_on(request)

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        body = await request.json()
        if not body["stream"]:
            return JSONResponse(await fake.score(body))
        return StreamingResponse(fake.answer(body), media_type="text/event-stream")

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def other(path: str, request: Request) -> Response:
        body = await request.json() if await request.body() else None
        try:
            return JSONResponse(await fake.ask(request.method, f"/{path}", body, 0.0))
        except EngineError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=error.status)

    return app
