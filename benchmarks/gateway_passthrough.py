"""The least that a streaming proxy can do (Starlette and httpx): what the gateway is measured against.

It reads a body, sends it on, and sends back what comes, chunk by chunk. It understands and records nothing.

    python -m benchmarks.gateway_passthrough PORT UPSTREAM_URL
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route


def create_app(upstream: str) -> Starlette:
    """The proxy in front of `upstream`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    client = httpx.AsyncClient(base_url=upstream, timeout=600.0, limits=limits, trust_env=False)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    async def forward(request: Request) -> StreamingResponse:
        headers = {"content-type": "application/json"}
        asked = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
        answer = await client.send(asked, stream=True)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            {"content-type": answer.headers["content-type"]},
            background=BackgroundTask(answer.aclose),
        )

    return Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(
        create_app(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
