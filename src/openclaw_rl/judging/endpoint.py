"""One request to a chat-completions endpoint, for a vote: retries with backoff and jitter, under one deadline.

Three kinds of failure are told apart, because the loop acts on them differently: the endpoint is away or overloaded
(`Unreachable`), it refuses everything we ask (`Refused` with a status such as 401), or it refuses this one request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from openclaw_rl.judging.text import content_text

log = logging.getLogger(__name__)

BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""Statuses that say nothing against the request itself."""
OF_THIS_REQUEST = frozenset({400, 413, 414, 422})
"""Statuses that say something against this request alone (too long, not understood); others are of all requests."""
_NO_SUCH_FORMAT = frozenset({400, 422})


class Refused(Exception):
    """The endpoint answered that it will not serve this request; trying again changes nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the judge's endpoint answered {status}")
        self.status = status


class Unreachable(Exception):
    """The endpoint did not answer, or is overloaded, after all retries. `reason` is a word for the counters."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the judge's endpoint gives no answer ({reason})")
        self.reason = reason
        self.retry_after_s = retry_after_s


class ChatEndpoint:
    """An OpenAI-compatible endpoint that is asked for short answers.

    With `response_format`, structured output is asked for first. An endpoint that refuses it with 400 or 422 and
    takes the same request without it is remembered as one that does not know it.
    """

    def __init__(
        self,
        *,
        base_url: str,
        key: str | None,
        timeout_s: float,
        max_retries: int,
        response_format: Mapping[str, Any] | None,
        trust_env: bool,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`trust_env`: whether a proxy of the environment may be used."""
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._response_format = response_format
        self._rng = rng or random.Random()
        headers = {"X-No-Train": "1"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/") + "/",
            headers=headers,
            transport=transport,
            timeout=timeout_s,
            trust_env=trust_env,
        )

    @property
    def structured(self) -> bool:
        """Whether structured output is asked for."""
        return self._response_format is not None

    async def reply(self, body: Mapping[str, Any]) -> str:
        """The text that the endpoint answers within `timeout_s`, retries included; empty where it has no text.

        Raises:
            Unreachable: no answer in time, or none after all retries.
            Refused: it will not serve this.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._tried(body, deadline)
        except TimeoutError:
            raise Unreachable("timeout") from None

    async def _tried(self, body: Mapping[str, Any], deadline: float) -> str:
        for attempt in range(self._max_retries + 1):
            try:
                return await self._ask(body)
            except Unreachable as error:
                pause = min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt) * (0.5 + self._rng.random() / 2)
                pause = max(pause, error.retry_after_s or 0.0)
                if attempt == self._max_retries or time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("a loop that always returns or raises")

    async def _ask(self, body: Mapping[str, Any]) -> str:
        asked = self._response_format
        extra = {} if asked is None else {"response_format": asked}
        response = await self._post({**body, **extra})
        if asked is not None and response.status_code in _NO_SUCH_FORMAT:
            response = await self._post(body)
            if response.status_code < 300 and self._response_format is not None:
                log.warning("the judge's endpoint refuses structured output; reading \\boxed{} from now on")
                self._response_format = None
        if response.status_code in MAY_PASS:
            raise Unreachable(f"status_{response.status_code}", retry_after_of(response.headers, time.time()))
        if response.status_code >= 300:  # redirections are not followed: the key is for this endpoint
            raise Refused(response.status_code)
        return reply_text(response)

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        try:
            return await self._client.post("chat/completions", json=body)
        except httpx.TimeoutException as error:
            raise Unreachable("timeout") from error
        except httpx.RequestError as error:  # no connection, one that broke half-way, a body that cannot be unpacked
            raise Unreachable("connection") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or as a date; None where it says nothing that can be read."""
    said = headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(int(said)))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def reply_text(response: httpx.Response) -> str:
    """The text of a chat completion; a body of another shape reads as an empty reply, which is no valid vote."""
    try:
        message = response.json()["choices"][0]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return content_text(message) if isinstance(message, dict) else ""
