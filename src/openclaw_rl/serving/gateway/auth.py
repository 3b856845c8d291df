"""Who asks: API keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.config import ApiKey
from openclaw_rl.serving.gateway.errors import unauthorized


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """The owner of a request: sessions belong to `key_id`. `train` False: served, nothing recorded.

    `admin`: may give feedback on everybody's turns, and ask for every policy's versions by name. `name`: what the
    configuration calls the key; empty without keys.
    """

    key_id: str
    train: bool
    admin: bool = False
    name: str = ""


LOCAL = Principal(key_id="local", train=True, admin=True)
"""Whoever asks a gateway without keys, which only loopback can."""


def key_id(name: str) -> str:
    """A stable id for a key: a hash of its name, so that a rotated key keeps its sessions."""
    return "key" + hashlib.blake2b(name.encode(), digest_size=10).hexdigest()


class KeyRing:
    """The configured keys."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = [
            (
                _digest(key.key.get_secret_value().encode()),
                Principal(key_id=key_id(key.name), train=key.train, admin=key.admin, name=key.name),
            )
            for key in keys
        ]

    def principal(self, authorization: bytes | None) -> Principal:
        """The owner of the key in an `Authorization: Bearer` header.

        All keys are compared, each by a digest of fixed length, so that time tells nothing about any of them.

        Raises:
            GatewayError: 401 where keys are configured and this is none of them.
        """
        if not self._keys:
            return LOCAL
        scheme, _, offered = (authorization or b"").partition(b" ")
        digest = _digest(offered.strip())
        found: Principal | None = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None or scheme.lower() != b"bearer":
            raise unauthorized()
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
