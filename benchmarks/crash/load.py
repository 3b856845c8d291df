"""Clients in conversation: they correct, they retry what failed, some walk out, some ask again what they have."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.crash.ledger import Accepted, Ledger

THINGS = ("a tide", "a lighthouse", "rust", "an echo", "yeast", "a glacier", "a sundial", "the moon", "a compass")
REACTIONS = (
    "No, that is wrong. Please answer in {n} words and name {thing}.",
    "That is not what I asked. Write one short sentence about {thing}, number {n}.",
    "Too long! Keep it under {n} words next time, and begin with {thing}.",
    "Thanks, that is just what I needed. What about {thing}, case {n}?",
    "Perfect. Now tell me about {thing}, part {n}.",
    "Hmm. Use simpler words: {thing} for a child of {n}.",
    "Wrong again, you forgot {thing}. Add {n} examples.",
    "Great answer! Next: {thing}, number {n}.",
)
TURNS = 4
PAUSE_S = (0.4, 1.6)
"""Between reading an answer and writing the next message."""
RETRY_S = (0.2, 0.8)
MAX_TOKENS = (8, 28)
WALKS_OUT, ASKS_AGAIN, STREAMS, NAMED, SAYS_COUNT = 0.05, 0.05, 0.7, 0.5, 0.5
"""Shares: of streams left in the middle, of answers asked for again, of streams, of conversations with a session id,
of conversations whose retries say their number (the others have an idempotency key)."""
TIMEOUT_S = 60.0
FAILING = frozenset({429, 500, 502, 503, 504})
"""How a request may fail while a process is dead; anything else is a fault."""


class WalkedOut(Exception):
    """The client closed the connection in the middle of a stream."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request with everything that its retries repeat."""

    conversation: str
    body: Mapping[str, Any]
    follows: str | None
    named: bool
    says_count: bool
    key: str


class Client:
    """One person, one conversation after the other. Random, by its own seed."""

    def __init__(self, url: str, ledger: Ledger, number: int, seed: int, stop: threading.Event) -> None:
        self._url = f"{url}/chat/completions"
        self._ledger = ledger
        self._number = number
        self._random = random.Random(f"{seed}/{number}")
        self._stop = stop
        self._count = 0

    async def run(self) -> None:
        """Converse until told to stop; the last conversation is finished first."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=False) as http:
            while not self._stop.is_set():
                await self._converse(http)

    async def _converse(self, http: httpx.AsyncClient) -> None:
        conversation = uuid.UUID(int=self._random.getrandbits(128)).hex
        named, says_count = self._random.random() < NAMED, self._random.random() < SAYS_COUNT
        messages: list[dict[str, str]] = [{"role": "user", "content": f"What is {self._thing()}? ({conversation})"}]
        follows: str | None = None
        for number in range(TURNS):
            body = {
                "model": "policy",
                "messages": list(messages),
                "max_tokens": self._random.randint(*MAX_TOKENS),
                "stream": self._random.random() < STREAMS,
                "session_done": number == TURNS - 1,
            }
            ask = Ask(
                conversation=conversation,
                body=body,
                follows=follows,
                named=named,
                says_count=says_count,
                key=f"{conversation}{number}",
            )
            answer = await self._answer(http, ask)
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": self._reaction()}]
            follows = answer.turn_id

    def _thing(self) -> str:
        return self._random.choice(THINGS)

    def _reaction(self) -> str:
        self._count += 1
        return self._random.choice(REACTIONS).format(n=self._count * 16 + self._number, thing=self._thing())

    async def _answer(self, http: httpx.AsyncClient, ask: Ask) -> Accepted:
        """Ask until there is an answer that the client goes on with. It does not give up."""
        attempt = 0
        while True:
            self._ledger.change(asking=1)
            try:
                got = await self._attempt(http, ask, attempt)
            except httpx.HTTPError as error:
                self._ledger.fail(type(error).__name__)
                got = None
            except WalkedOut:
                self._ledger.fail("walked out")
                got = None
            finally:
                self._ledger.change(asking=-1)
            if got is not None and not got.asked_again:
                return got
            attempt += 1
            await asyncio.sleep(self._random.uniform(*RETRY_S))

    def _headers(self, ask: Ask, attempt: int) -> dict[str, str]:
        headers = {"X-Session-Id": ask.conversation} if ask.named else {}
        if ask.says_count:
            return {**headers, "X-Stainless-Retry-Count": str(attempt)}
        return {**headers, "Idempotency-Key": ask.key}

    async def _attempt(self, http: httpx.AsyncClient, ask: Ask, attempt: int) -> Accepted | None:
        """One request; None where it got no answer."""
        began = time.time()
        async with http.stream("POST", self._url, json=ask.body, headers=self._headers(ask, attempt)) as response:
            if response.status_code != 200:
                await response.aread()
                self._refused(response)
                return None
            text, whole = await (self._stream(response) if ask.body["stream"] else _body(response))
            if text is None:
                self._ledger.fail("error in a stream")
                return None
            entry = Accepted(
                turn_id=response.headers["x-turn-id"],
                conversation=ask.conversation,
                text=text,
                version=int(response.headers["x-policy-version"]),
                follows=ask.follows,
                asked_again=not whole or self._random.random() < ASKS_AGAIN,
                began_at=began,
                ended_at=time.time(),
            )
        self._ledger.accept(entry)
        return entry

    def _refused(self, response: httpx.Response) -> None:
        if response.status_code in FAILING:
            self._ledger.fail(f"status {response.status_code}")
        else:
            self._ledger.fault(f"status {response.status_code}: {response.text[:200]}")

    async def _stream(self, response: httpx.Response) -> tuple[str | None, bool]:
        """The text once the stream has said that it ends (None if it did not), and whether it ended properly."""
        text, ended, begun = "", False, False
        leaves = self._random.random() < WALKS_OUT
        try:
            async for event in _events(response):
                if event is None:
                    return (text, True) if ended else (None, False)
                if "error" in event:
                    return (text, False) if ended else (None, False)
                for choice in event.get("choices") or ():
                    text += choice["delta"].get("content") or ""
                    ended = ended or choice.get("finish_reason") is not None
                if text and not begun:
                    begun = True
                    self._ledger.change(streaming=1)
                    if leaves and not ended:
                        raise WalkedOut
        except httpx.HTTPError:
            if not ended:
                raise
        finally:
            if begun:
                self._ledger.change(streaming=-1)
        return (text, False) if ended else (None, False)


async def _body(response: httpx.Response) -> tuple[str | None, bool]:
    whole = json.loads(await response.aread())
    return whole["choices"][0]["message"]["content"] or "", True


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a stream; None is its proper end."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            yield None if data == "[DONE]" else json.loads(data)


class Load(threading.Thread):
    """All clients on one event loop, on a thread of their own."""

    def __init__(self, url: str, ledger: Ledger, *, clients: int, seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self._enough = threading.Event()
        self._clients = [Client(url, ledger, number, seed, self._enough) for number in range(clients)]
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run all clients."""
        try:
            asyncio.run(self._run())
        except BaseException as error:  # told by `finish`, on the thread that asks
            self.failure = error
            raise

    async def _run(self) -> None:
        await asyncio.gather(*(client.run() for client in self._clients))

    def finish(self, timeout_s: float) -> bool:
        """Let every client end its conversation; whether they did in time and without a bug of ours."""
        self._enough.set()
        self.join(timeout_s)
        return not self.is_alive() and self.failure is None
