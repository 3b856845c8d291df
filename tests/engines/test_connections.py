"""HTTP to an engine, against a server that does what it is told, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from openclaw_rl.serving.engines.embedded.connections import (
    HIGH_WATER_BYTES,
    ConnectFailed,
    ConnectionLost,
    Connections,
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def asked(reader: asyncio.StreamReader) -> bytes:
    """One request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), b"x: 0")
    return await reader.readexactly(int(length.split(b" ")[1]))


async def with_server(serve: Serve, use: Callable[[Connections], Awaitable[None]]) -> int:
    """Run `use` against a server; how many connections it had."""
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    connections = Connections("127.0.0.1", server.sockets[0].getsockname()[1], connect_timeout_s=2.0)
    try:
        await use(connections)
    finally:
        connections.close()
        server.close()
    return count


async def ask(connections: Connections, body: bytes = b"", timeout_s: float = 2.0) -> tuple[int, bytes]:
    async with connections.exchange("POST", "/x", body, timeout_s=timeout_s) as answer:
        return answer.status, await answer.read_all()


def test_a_connection_is_kept_for_the_next_exchange() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await asked(reader)
            writer.write(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")

    async def use(connections: Connections) -> None:
        assert [await ask(connections, body) for body in (b"ab", b"", b"c")] == [
            (200, b"ab"),
            (200, b""),
            (200, b"c"),
        ]

    assert asyncio.run(with_server(serve, use)) == 1


def test_one_that_was_closed_while_idle_is_replaced_and_nobody_notices() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(WHOLE)
        await asked(reader)  # the next request is read, and not answered

    async def use(connections: Connections) -> None:
        assert [await ask(connections) for _ in range(3)] == [(200, b"hello")] * 3

    assert asyncio.run(with_server(serve, use)) == 3


def test_a_new_connection_that_is_lost_is_not_tried_again() -> None:
    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asked(reader)

    async def use(connections: Connections) -> None:
        with pytest.raises(ConnectionLost):
            await ask(connections)

    assert asyncio.run(with_server(serve, use)) == 1


def test_an_answer_that_breaks_off_is_lost_after_what_came() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n")

    async def use(connections: Connections) -> None:
        async with connections.exchange("GET", "/x", timeout_s=2.0) as answer:
            assert await answer.read() == b"hello"
            with pytest.raises(ConnectionLost):
                await answer.read()

    asyncio.run(with_server(serve, use))


@pytest.mark.parametrize("sent", [b"", CHUNKED, CHUNKED + b"5\r\nhello\r\n"])
def test_waiting_has_an_end(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(sent)
        await reader.read()

    async def use(connections: Connections) -> None:
        with pytest.raises(TimeoutError):
            await ask(connections, timeout_s=0.1)

    asyncio.run(with_server(serve, use))


def test_what_is_no_http_is_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"SSH-2.0-something\r\n")
        await reader.read()

    async def use(connections: Connections) -> None:
        with pytest.raises(ConnectionLost):
            await ask(connections)

    asyncio.run(with_server(serve, use))


def test_leaving_early_closes_the_connection() -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        await reader.read()
        left.set()

    async def use(connections: Connections) -> None:
        async with connections.exchange("GET", "/x", timeout_s=2.0) as answer:
            await answer.read()
        async with asyncio.timeout(2.0):
            await left.wait()

    asyncio.run(with_server(serve, use))


def test_a_body_larger_than_is_buffered_arrives_whole() -> None:
    body = bytes(range(256)) * 4096 * 5  # 5 MiB

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()

    async def use(connections: Connections) -> None:
        async with connections.exchange("GET", "/x", timeout_s=2.0) as answer:
            await asyncio.sleep(0.1)
            assert await answer.read_all() == body

    asyncio.run(with_server(serve, use))


def test_a_connection_on_which_an_answer_was_left_unread_is_not_kept() -> None:
    """It reads no more, and the next exchange on it would wait for ever."""
    size = HIGH_WATER_BYTES + 1

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
        await writer.drain()
        await serve(reader, writer)

    async def use(connections: Connections) -> None:
        async with connections.exchange("GET", "/x", timeout_s=2.0):
            await asyncio.sleep(0.2)
        status, body = await ask(connections)
        assert (status, len(body)) == (200, size)

    assert asyncio.run(with_server(serve, use)) == 2


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed):
            await ask(Connections("127.0.0.1", 9, connect_timeout_s=1.0))

    asyncio.run(main())
