"""Who may ask a gateway without keys: programs of this machine, and no web page that its browser happens to show.

Binding loopback keeps other machines out, not browsers on this one. A page can post to 127.0.0.1 without asking first
(a "simple" request, whose `Origin` names the page), or have its own name resolve to 127.0.0.1 (DNS rebinding: the
`Host` is then the page's). A browser lets a page change neither header.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw_rl.serving.gateway import errors

_AUTHORITY = r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{1,5})?"
_HOST = re.compile(_AUTHORITY)
_ORIGIN = re.compile(r"https?://" + _AUTHORITY)


def is_loopback_host(host: str) -> bool:
    """Whether a `Host` header names this machine by a loopback name or address, with any port."""
    return _is_loopback(_HOST.fullmatch(host))


def is_loopback_origin(origin: str) -> bool:
    """Whether an `Origin` header names a page of this machine; `null`, an origin that is kept secret, does not."""
    return _is_loopback(_ORIGIN.fullmatch(origin))


def _is_loopback(found: re.Match[str] | None) -> bool:
    if found is None:
        return False
    host = found["v6"] or found["name"]
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LocalOnly:
    """ASGI middleware that answers 403 to whatever may come from somewhere else; the body is not read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes from this machine."""
        refused = _refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": refused.body()})


def _refusal(scope: Scope) -> errors.GatewayError | None:
    """Every one of a repeated header has to be local; a request without `Host` says too little."""
    sent: dict[bytes, list[str]] = {b"host": [], b"origin": []}
    for name, value in scope["headers"]:
        if name in sent:
            sent[name].append(value.decode("latin-1"))
    if not all(map(is_loopback_origin, sent[b"origin"])):
        return errors.not_local("Origin")
    if not sent[b"host"] or not all(map(is_loopback_host, sent[b"host"])):
        return errors.not_local("Host")
    return None
