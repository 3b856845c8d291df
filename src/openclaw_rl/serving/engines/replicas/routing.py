"""Which replica a session goes to: rendezvous hashing. Pure.

Each replica draws a lot for the session, and the highest wins (Thaler and Ravishankar, 1998). Whoever computes it
comes to the same order, nothing is kept, and a replica that leaves moves only the sessions that it had won.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def preference(session: str, replicas: Iterable[str]) -> list[str]:
    """The replicas in the order in which `session` is to try them."""
    return sorted(replicas, key=lambda name: (_lot(session, name), name), reverse=True)


def _lot(session: str, name: str) -> bytes:
    return hashlib.blake2b(
        f"{len(session)}\0{session}{name}".encode("utf-8", "surrogatepass"), digest_size=8
    ).digest()
