"""HTTP/1.1 to one engine on loopback, with httptools: connections are kept, and bodies are read as they come.

A general HTTP client takes a millisecond for a request, which is most of what a gateway may cost. This one knows one
address, no redirects, no proxies, no compression.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import cast

import httptools

MOST_IDLE = 32
HIGH_WATER_BYTES = 1 << 20
"""An engine that is faster than its reader waits when so much has not been read."""


class ConnectFailed(Exception):
    """Nobody listens there, or not within the time."""


class ConnectionLost(Exception):
    """The connection ended before the answer did; or what came is no HTTP."""


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._wake: asyncio.Future[None] | None = None
        self._has_head = False
        self._keep_alive = False
        self.complete = True
        self.lost = False
        self.heard = False

    # --- the exchange --------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Begin an exchange."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces.clear()
        self._buffered = 0
        self.complete = self._has_head = self.heard = False
        self._transport.write(data)

    async def status(self, timeout_s: float) -> int:
        """The status of the answer, as soon as its head is here.

        Raises:
            ConnectionLost: it ended before.
            TimeoutError: not within `timeout_s`.
        """
        while not self._has_head:
            await self._more(timeout_s)
        return int(self._parser.get_status_code())

    async def read(self, timeout_s: float) -> bytes:
        """The next part of the body; empty at its end.

        Raises:
            ConnectionLost: it ended before.
            TimeoutError: nothing came within `timeout_s`.
        """
        while not self._pieces:
            if self.complete:
                return b""
            await self._more(timeout_s)
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._buffered > HIGH_WATER_BYTES and self._transport is not None and not self.lost:
            self._transport.resume_reading()
        self._buffered = 0
        return data

    def close(self) -> None:
        """Close it; an exchange under way is given up."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def reusable(self) -> bool:
        """Whether another exchange can follow; not on one that reads no more, for nobody took what is there."""
        return self.complete and not self.lost and self._keep_alive and self._buffered <= HIGH_WATER_BYTES

    async def _more(self, timeout_s: float) -> None:
        if self.lost:
            raise ConnectionLost
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake
        finally:
            self._wake = None

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- what the transport and the parser say -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whichever side."""
        self.lost = True
        self._woken()

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; others than those of an answer end the connection."""
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.lost = True
            self.close()
        self._woken()

    def on_headers_complete(self) -> None:
        """The head is here."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._pieces.append(body)
        self._buffered += len(body)
        if self._buffered > HIGH_WATER_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole; only now can the parser say whether another may follow."""
        self.complete = True
        self._keep_alive = bool(self._parser.should_keep_alive())


class Exchange:
    """One request and its answer; at the end the connection is kept, or closed where more would come."""

    def __init__(self, pool: Connections, data: bytes, timeout_s: float) -> None:
        self._pool = pool
        self._data = data
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self.status = 0

    async def __aenter__(self) -> Exchange:
        """Send, and wait for the head of the answer.

        Raises:
            ConnectFailed, ConnectionLost, TimeoutError: as they say.
        """
        kept = self._pool.take_kept()
        while self._connection is None:
            connection = kept or await self._pool.connect()
            try:
                connection.send(self._data)
                self.status = await connection.status(self._timeout_s)
                self._connection = connection
            except ConnectionLost:
                if kept is None or connection.heard:
                    raise
                kept = None  # it was closed while it was idle: the engine has not seen this request
            finally:
                if self._connection is None:
                    connection.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._pool.give_back(self._connection)

    async def read(self) -> bytes:
        """The next part of the body; empty at its end.

        Raises:
            ConnectionLost, TimeoutError: as they say.
        """
        assert self._connection is not None
        return await self._connection.read(self._timeout_s)

    async def read_all(self) -> bytes:
        """The whole body."""
        pieces: list[bytes] = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)


class Connections:
    """The connections to one address."""

    def __init__(
        self, host: str, port: int, *, connect_timeout_s: float, unix: str | None = None, key: str | None = None
    ) -> None:
        """`unix`: the path of a Unix socket to connect to instead; host and port are then only what requests name.
        `key`: what every request is authorized by, as a bearer of it."""
        self._host = host
        self._port = port
        self._unix = unix
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []
        name = f"[{host}]" if ":" in host else host
        authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
        self._common = f"host: {name}:{port}\r\n{authorization}".encode()

    def exchange(self, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> Exchange:
        """Ask; `timeout_s` is how long each further part of the answer may take."""
        about = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body) if body else b""
        head = f"{method} {path} HTTP/1.1\r\n".encode() + self._common + about + b"\r\n"
        return Exchange(self, head + body, timeout_s)

    def take_kept(self) -> Connection | None:
        """A kept connection that is still there, the latest used first."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
        return None

    async def connect(self) -> Connection:
        """A new connection.

        Raises:
            ConnectFailed: nobody listens, or not within the time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._unix is not None:
                    _, connection = await loop.create_unix_connection(Connection, self._unix)
                else:
                    _, connection = await loop.create_connection(Connection, self._host, self._port)
        except OSError as error:  # a TimeoutError is one
            raise ConnectFailed from error
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next exchange, if it can have one."""
        if connection.reusable and len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close those that are kept."""
        while self._idle:
            self._idle.pop().close()
