"""What goes out of one exchange: a JSON body or a stream of events, with the headers that identify it."""

from __future__ import annotations

from starlette.types import Message, Send

from openclaw_rl.serving.gateway.dialects.openai_chat import render_stream_error
from openclaw_rl.serving.gateway.errors import GatewayError

_JSON = (b"content-type", b"application/json")
_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # reverse proxies must not hold tokens back
)


class ClientGone(Exception):
    """The client closed the connection before its exchange was complete."""


class Outlet:
    """The sending side of one exchange. Every answer carries what is known of session, turn and version."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._identity: list[tuple[bytes, bytes]] = []
        self._streaming = False
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the last bytes were handed over, so that nothing is left to be cancelled."""
        return self._done

    async def _put(self, message: Message) -> None:
        try:
            await self._send(message)
        except TimeoutError:  # an OSError too, but ours: the deadline of the exchange
            raise
        except OSError as error:
            raise ClientGone from error

    def identify(
        self, *, session_id: str | None = None, turn_id: str | None = None, version: int | None = None
    ) -> None:
        """Add what became known; it goes out with the headers."""
        for name, value in ((b"x-session-id", session_id), (b"x-turn-id", turn_id), (b"x-policy-version", version)):
            if value is not None:
                self._identity.append((name, str(value).encode("ascii")))

    async def send_json(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Send a whole body, and nothing after it."""
        length = (b"content-length", str(len(body)).encode())
        self._done = True
        await self._put({
            "type": "http.response.start",
            "status": status,
            "headers": [_JSON, length, *headers, *self._identity],
        })  # fmt: skip
        await self._put({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Send the headers of a stream."""
        self._streaming = True
        await self._put({"type": "http.response.start", "status": 200, "headers": [*_STREAM, *self._identity]})

    async def send_event(self, event: bytes) -> None:
        """Send one event; waits while the client is slow to read."""
        await self._put({"type": "http.response.body", "body": event, "more_body": True})

    async def end_stream(self, events: bytes) -> None:
        """Send the last events and close the stream."""
        self._done = True
        await self._put({"type": "http.response.body", "body": events})

    async def send_error(self, error: GatewayError) -> None:
        """Tell the client of an error: by its status, or as an event where the stream has begun."""
        if self._done:
            return
        if self._streaming:
            await self.end_stream(render_stream_error(error.body()))
            return
        headers = tuple((name.encode(), value.encode()) for name, value in error.headers.items())
        await self.send_json(error.status, error.body(), headers)
