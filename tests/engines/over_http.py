"""A gateway as its clients see it."""

from __future__ import annotations

from typing import Any

import httpx

CHAT = "/v1/chat/completions"
QUICKLY: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "user", "content": "Name a river."}],
    "max_tokens": 4,
}
"""A body that is soon answered."""


def client_of(url: str, timeout_s: float = 120.0) -> httpx.AsyncClient:
    """A client of the gateway at `url`, by no proxy."""
    return httpx.AsyncClient(base_url=url, timeout=timeout_s, trust_env=False)


async def is_ready(http: httpx.AsyncClient) -> bool:
    """Whether the gateway says that it can answer."""
    return await _readiness(http) == 200


async def is_away(http: httpx.AsyncClient) -> bool:
    """Whether the gateway is there, and says that it cannot answer."""
    return await _readiness(http) == 503


async def _readiness(http: httpx.AsyncClient) -> int | None:
    try:
        return (await http.get("/readyz")).status_code
    except httpx.TransportError:  # it does not listen yet
        return None


def check_put_off(answered: httpx.Response) -> None:
    """Whether a client is told that the engine is away, and when another try is worth it."""
    assert answered.status_code == 503, answered.text
    assert int(answered.headers["retry-after"]) >= 1
    error = answered.json()["error"]
    assert error["code"] == "engine_unavailable"
    assert "engine" in error["message"]


def version_of(answered: httpx.Response) -> int:
    """The version that answered."""
    assert answered.status_code == 200, answered.text
    return int(answered.headers["x-policy-version"])
