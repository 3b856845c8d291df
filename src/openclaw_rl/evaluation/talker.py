"""Asking over the public API with the official `openai` client, streaming, and writing it all down.

No retries: what the server refuses or breaks is entered in the ledger as it happened.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from openclaw_rl.config import ServingConfig
from openclaw_rl.evaluation.ledger import Entry, Ledger, Purpose

API_KEY_PLACEHOLDER = "none"


class OpenStreams:
    """How many requests are under way; readers use it so that not everybody reads at the same time."""

    def __init__(self) -> None:
        self._open = 0
        self._none = asyncio.Event()
        self._none.set()

    @property
    def count(self) -> int:
        """Requests sent and not ended."""
        return self._open

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request as open inside the block."""
        self._open += 1
        self._none.clear()
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._none.set()

    async def pause_while_others(self, seconds: float) -> None:
        """Wait `seconds`, but no longer than some request is open; at once when none is."""
        deadline = time.monotonic() + seconds
        while self._open and (left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._none.wait(), left)
            except TimeoutError:
                return


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request as a user makes it. `train` False: the server is told to keep nothing of it."""

    purpose: Purpose
    model: str
    messages: tuple[dict[str, str], ...]
    question: str
    session: str | None = None
    interaction: int | None = None
    attempt: int = 1
    temperature: float
    max_tokens: int
    seed: int | None = None
    train: bool = True
    done: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        headers = {} if self.session is None else {"X-Session-Id": self.session}
        if self.done:
            headers["X-Session-Done"] = "1"
        if not self.train:
            headers["X-No-Train"] = "1"
        return headers


class Talker:
    """A client of the public API that keeps its own ledger of every request."""

    def __init__(self, client: AsyncOpenAI, ledger: Ledger) -> None:
        self._client = client
        self.ledger = ledger
        self.streams = OpenStreams()

    async def models(self) -> list[str]:
        """The names that can be asked for now."""
        return [model.id async for model in await self._client.models.list()]

    async def ask(self, ask: Ask) -> Entry:
        """Send one request, read its stream to the end, and return its entry; failures are in the entry."""
        entry = Entry(
            purpose=ask.purpose,
            model=ask.model,
            session=ask.session,
            question=ask.question,
            interaction=ask.interaction,
            attempt=ask.attempt,
            sent_at=time.time(),
        )
        self.ledger.add(entry)
        with self.streams.one():
            try:
                await self._stream(ask, entry)
            except openai.APIStatusError as error:
                entry.status = error.status_code
                entry.error = f"{type(error).__name__}: HTTP {error.status_code}"
            except asyncio.CancelledError:
                entry.error, entry.cancelled = "hung up by the client", True
                raise
            # Whatever else ends a stream early (the client library lets the transport's own errors through) is
            # a broken stream: it is entered as one, not hidden.
            except Exception as error:  # noqa: BLE001
                entry.error = f"{type(error).__name__}: {error}"
            finally:
                entry.ended_at = time.time()
        return entry

    async def _stream(self, ask: Ask, entry: Entry) -> None:
        """Open the stream and copy what arrives into the entry."""
        raw = await self._client.chat.completions.with_raw_response.create(
            model=ask.model,
            messages=cast(Any, list(ask.messages)),
            stream=True,
            temperature=ask.temperature,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            extra_headers=ask.headers,
        )
        entry.opened_at = time.time()
        entry.status = raw.http_response.status_code
        entry.turn_id = raw.headers.get("X-Turn-Id")
        entry.version = parse_version(raw.headers.get("X-Policy-Version"))
        stream = raw.parse()
        try:
            async for chunk in stream:
                if entry.turn_id is None:
                    entry.turn_id = chunk.id.removeprefix("chatcmpl-")
                for choice in chunk.choices:
                    if choice.delta.content:
                        entry.chunk_times.append(time.time())
                        entry.text += choice.delta.content
                    if choice.finish_reason is not None:
                        entry.finish_reason = choice.finish_reason
        finally:
            await stream.close()


def parse_version(header: str | None) -> int | None:
    """The number in `12`, `policy-v12` or `base` (0); None for anything else."""
    if header is None:
        return None
    if header == "base":
        return 0
    match = re.search(r"(\d+)$", header)
    return int(match.group(1)) if match else None


def key_of(serving: ServingConfig) -> str:
    """A key that the gateway takes: the first one whose conversations are trained, else simply the first.

    Without configured keys any word will do.
    """
    keys = sorted(serving.api_keys, key=lambda key: not key.train)
    return keys[0].key.get_secret_value() if keys else API_KEY_PLACEHOLDER


@asynccontextmanager
async def talker(
    base_url: str, *, ledger: Ledger, timeout_s: float, api_key: str = API_KEY_PLACEHOLDER
) -> AsyncIterator[Talker]:
    """A talker on `base_url` (ending in /v1), closed at the end of the block; `api_key`: if the gateway has keys."""
    direct = DefaultAsyncHttpxClient(trust_env=False)  # the gateway is on this machine, behind no proxy
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=timeout_s, http_client=direct)
    async with client:
        yield Talker(client, ledger)
