"""A server that answers as vLLM does, as far as we ask it: a fake, which does what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

Json = dict[str, Any]
DRAWN = (40, 41, 42)
"""The ids of every answer."""


@dataclass
class FakeVllm:
    """What it has, and what it shall do."""

    adapters: dict[str, str] = field(default_factory=dict)
    started: float = 1.0
    well: bool = True
    scale_out: bool = True
    lora: bool = True
    developer: bool = True
    processed: bool = True
    logprob: float = -0.5
    label: str = "default"
    root: str | None = None
    max_lora_rank: int = 64
    device: str = "cpu"
    extended: bool = True
    lora_enabled: bool = True
    """Its routes are there either way."""
    list_held: asyncio.Event | None = None
    """Set by a test: the list of models is made at once, and sent only then."""
    paused: bool = False
    fail_reloads: int = 0
    fail_labels: int = 0
    """So many times the weights get no name, and the request no answer but an error."""
    fail_resumes: int = 0
    refuse_adapter: str | None = None
    slow_adapter_s: float = 0.0
    sees_files: bool = True
    hold: asyncio.Event | None = None
    hold_whole: asyncio.Event | None = None
    """Where there is one, an answer that is not streamed (a score) is sent only then."""
    open: int = 0
    asked: list[Json] = field(default_factory=list)
    reloaded: list[str] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    healed_before: list[int] = field(default_factory=list)

    def restart(self) -> None:
        """As if it had been killed and started again."""
        self.adapters.clear()
        self.started += 1.0
        self.label = "default"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)


def create_fake(fake: FakeVllm) -> FastAPI:
    """Its routes."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if fake.well else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(f"# HELP x\nprocess_start_time_seconds {fake.started}\nother 1\n")

    @app.get("/v1/models")
    async def models() -> Json:
        base = {"id": "theirs", "parent": None, "max_model_len": 100, "root": fake.root}
        listed = {"data": [base, *({"id": name, "parent": "theirs"} for name in fake.adapters)]}
        if fake.list_held is not None:
            await fake.list_held.wait()
        return listed

    @app.post("/inference/v1/generate")
    async def generate(request: Request) -> Response:
        body = await request.json()
        if not fake.scale_out:
            return _error(403, "start it with --enable-scale-out")
        fake.asked.append(body)
        if body["model"] not in {"theirs", *fake.adapters}:
            return _error(404, "no such model")
        if not body.get("stream"):
            if fake.hold_whole is not None:
                await fake.hold_whole.wait()
            return JSONResponse(_whole(fake, body))
        return StreamingResponse(_stream(fake, body), media_type="text/event-stream")

    if fake.lora:
        _add_adapters(app, fake)
    _add_weights(app, fake)
    return app


def _whole(fake: FakeVllm, body: Json) -> Json:
    sampling = body["sampling_params"]
    if sampling.get("prompt_logprobs") is not None:
        scores = [{str(token): {"logprob": -token / 100}} for token in body["token_ids"][1:]]
        return {"prompt_logprobs": [None, *scores]}
    scale = (sampling.get("temperature") or 1.0) if fake.processed else 1.0
    top = [{"token_id": token, "logprob": -token / scale} for token in range(5)]
    return {"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}


async def _stream(fake: FakeVllm, body: Json) -> AsyncIterator[str]:
    fake.open += 1
    labels = []
    try:
        for number, token in enumerate(DRAWN):
            if number == 1 and fake.hold is not None:
                await fake.hold.wait()
            labels.append(fake.label)
            choice: Json = {"index": 0, "token_ids": [token]}
            choice["logprobs"] = {"content": [{"token_id": token, "logprob": fake.logprob}]}
            if number == len(DRAWN) - 1:
                spans = [{"version": label, "start": at, "end": at + 1} for at, label in enumerate(labels)]
                choice |= {"finish_reason": "length", "weight_versions": spans}
            chunk = {"choices": [choice]} | ({"prompt_token_ids": body["token_ids"]} if number == 0 else {})
            yield f"data: {json.dumps(chunk)}\n\n"
        usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(DRAWN)}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
    finally:
        fake.open -= 1


def _add_adapters(app: FastAPI, fake: FakeVllm) -> None:
    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> Response:
        body = await request.json()
        if "lora_name" not in body:
            return _error(400, "lora_name is missing")
        await asyncio.sleep(fake.slow_adapter_s)
        if not fake.lora_enabled:
            return _error(500, "LoRA is not enabled. Use --enable-lora to enable LoRA.")
        if not fake.sees_files or body["lora_path"].startswith("/openclaw-rl/no/"):
            return _error(404, f"Loading lora {body['lora_name']} failed: No adapter found for {body['lora_path']}")
        if fake.refuse_adapter is not None:
            return _error(500, fake.refuse_adapter)
        if body["lora_name"] in fake.adapters:
            return _error(400, "already loaded")
        fake.adapters[body["lora_name"]] = body["lora_path"]
        return PlainTextResponse("Success")

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: Request) -> Response:
        name = (await request.json())["lora_name"]
        fake.unloaded.append(name)
        return PlainTextResponse("ok") if fake.adapters.pop(name, None) else _error(404, "not found")


def _add_weights(app: FastAPI, fake: FakeVllm) -> None:
    @app.get("/weight_info")
    async def info() -> Response:
        return JSONResponse({"weight_version": fake.label}) if fake.developer else _error(404, "Not Found")

    @app.get("/server_info")
    async def server_info(config_format: str) -> Response:
        assert config_format == "json"
        about = {"lora_config": {"max_lora_rank": fake.max_lora_rank}, "device_config": {"device_type": fake.device}}
        return JSONResponse({"vllm_config": about})

    @app.post("/pause")
    async def pause(mode: str) -> Response:
        assert mode == "keep"
        fake.paused = True
        return JSONResponse({})

    @app.post("/resume")
    async def resume() -> Response:
        if fake.fail_resumes:
            fake.fail_resumes -= 1
            return _error(500, "busy")
        fake.paused = False
        return JSONResponse({})

    @app.post("/collective_rpc")
    async def rpc(request: Request) -> Response:
        body = await request.json()
        if body["method"] == "openclaw_heal_cache":
            await asyncio.sleep(0.1)
            fake.healed_before.append(len(fake.asked))
        if not fake.extended:
            return _error(500, f"no method {body['method']}")
        if body["method"] != "openclaw_reload":
            return JSONResponse({"results": [{"present": True}]})
        assert fake.paused
        if fake.fail_reloads:
            fake.fail_reloads -= 1
            return _error(500, "shapes differ")
        fake.reloaded.append(body["kwargs"]["path"])
        return JSONResponse({"results": [None]})

    @app.post("/update_weight_version")
    async def label(request: Request) -> Response:
        assert fake.paused
        if fake.fail_labels:
            fake.fail_labels -= 1
            return _error(500, "no name")
        fake.label = (await request.json())["new_version"]
        return JSONResponse({})
