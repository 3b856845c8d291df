"""The clients of the gateway benchmark, in a process of their own: what they saw goes to standard output as JSON.

Each client holds one conversation after another over one connection: a long system prompt, and a history that grows
by the answer it got and a new question until it has 40 messages. A bare asyncio protocol, and bodies that are put
together from messages that were written once, so that clients take little of the machine from what is measured.

    python -m benchmarks.gateway_load '{"port": 1234, "seconds": 5, "clients": 8, ...}'
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import cast

import httptools
import uvloop

ANSWER_TIMEOUT_S = 60.0
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    "authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to ask of whom. `rate`: streamed answers at so many requests a second; None: whole ones, back to back."""

    port: int
    key: str
    seconds: float
    clients: int
    system_characters: int
    messages: int
    question_characters: int
    rate: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the clients saw: answers within the time, and the seconds to the first token of each streamed one."""

    answers: int
    seconds: float
    first_token_s: tuple[float, ...]


class BadAnswer(Exception):
    """A status or a body that is no answer; a benchmark of errors would measure nothing."""


class Connection(asyncio.Protocol):
    """One HTTP connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._on_data: Callable[[bytes], None] | None = None

    async def ask(self, data: bytes, on_data: Callable[[bytes], None] | None = None) -> bytes:
        """Send a request; its whole body, of which `on_data` sees every part as it arrives."""
        assert self._transport is not None
        self._body, self._on_data = [], on_data
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await asyncio.wait_for(self._waiting, ANSWER_TIMEOUT_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer under way will not come."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BadAnswer("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._body.append(body)
        if self._on_data is not None:
            self._on_data(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        assert self._waiting is not None
        body, status = b"".join(self._body), self._parser.get_status_code()
        if self._waiting.done():
            return
        if status == 200:
            self._waiting.set_result(body)
        else:
            self._waiting.set_exception(BadAnswer(f"status {status}: {body[:500]!r}"))


class Client:
    """One client with its connection and its conversation."""

    def __init__(self, plan: Plan, connection: Connection) -> None:
        self._plan = plan
        self._connection = connection
        self._system = _message(
            "system", ("You are a helpful agent with many rules. " * 1000)[: plan.system_characters]
        )
        self._messages: list[str] = []

    async def whole(self) -> None:
        """Ask the next question; take the whole answer in."""
        answer = json.loads(await self._connection.ask(self._request(stream=False)))
        self._take(answer["choices"][0]["message"]["content"])

    async def streamed(self, begin: float) -> float:
        """Ask the next question; seconds from `begin` to its first token."""
        times: list[float] = []

        def note(data: bytes) -> None:
            if not times and b'"content"' in data and any(map(_text_of, data.split(b"\n"))):
                times.append(time.perf_counter())

        body = await self._connection.ask(self._request(stream=True), note)
        if not times or b"data: [DONE]" not in body:
            raise BadAnswer(f"a stream without a token or an end: {body[:500]!r}")
        self._take("".join(map(_text_of, body.split(b"\n"))))
        return times[0] - begin

    def _request(self, *, stream: bool) -> bytes:
        if not self._messages or len(self._messages) + 2 > self._plan.messages:
            self._messages = [self._system]
        filler = "What should be done about this, and why? " * 100
        question = f"{uuid.uuid4().hex} {filler}"[: self._plan.question_characters]
        self._messages.append(_message("user", question))
        fields = f'"model": "policy", "max_tokens": 64, "stream": {json.dumps(stream)}'
        body = f'{{{fields}, "messages": [{", ".join(self._messages)}]}}'.encode()
        return _HEAD.format(port=self._plan.port, key=self._plan.key, length=len(body)).encode() + body

    def _take(self, answer: str) -> None:
        if not answer:
            raise BadAnswer("an empty answer")
        self._messages.append(_message("assistant", answer))


def _message(role: str, content: str) -> str:
    return json.dumps({"role": role, "content": content})


def _text_of(line: bytes) -> str:
    """The text in one line of a stream; none where it holds none."""
    if not line.startswith(b"data: {") or not line.endswith(b"}"):
        return ""
    choices = json.loads(line[6:]).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


async def run(plan: Plan) -> Seen:
    """Connect the clients and do as planned."""
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for _ in range(plan.clients):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", plan.port)
        clients.append(Client(plan, connection))
    return await (_back_to_back(plan, clients) if plan.rate is None else _at_rate(plan, plan.rate, clients))


async def _back_to_back(plan: Plan, clients: list[Client]) -> Seen:
    begin = time.perf_counter()

    async def keep_asking(client: Client) -> int:
        answers = 0
        while time.perf_counter() - begin < plan.seconds:
            await client.whole()
            answers += 1
        return answers

    answers = sum(await asyncio.gather(*map(keep_asking, clients)))
    return Seen(answers=answers, seconds=time.perf_counter() - begin, first_token_s=())


async def _at_rate(plan: Plan, rate: float, clients: list[Client]) -> Seen:
    """One request each 1/rate seconds, whoever is free; a wait for a free client counts."""
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in clients:
        free.put_nowait(client)
    begin = time.perf_counter()

    async def ask() -> float:
        asked = time.perf_counter()
        client = await free.get()
        try:
            return await client.streamed(asked)
        finally:
            free.put_nowait(client)

    tasks: list[asyncio.Task[float]] = []
    for number in range(max(1, round(plan.seconds * rate))):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(ask()))
    first_token_s = tuple(await asyncio.gather(*tasks))
    return Seen(answers=len(tasks), seconds=time.perf_counter() - begin, first_token_s=first_token_s)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(run(Plan(**json.loads(sys.argv[1])))))))
