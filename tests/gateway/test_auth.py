from __future__ import annotations

import pytest

from openclaw_rl.config import ApiKey
from openclaw_rl.serving.gateway.auth import LOCAL, KeyRing, key_id
from openclaw_rl.serving.gateway.errors import GatewayError


def ring(*pairs: tuple[str, str]) -> KeyRing:
    return KeyRing([ApiKey(name=name, key=key) for name, key in pairs])  # type: ignore[arg-type]


def test_without_keys_everybody_is_local() -> None:
    for header in (None, b"", b"Bearer whatever"):
        assert ring().principal(header) == LOCAL


def test_the_right_key_among_several() -> None:
    keys = ring(("ann", "a1"), ("bob", "b2"), ("eve", "e3"))
    for name, header in (("ann", b"Bearer a1"), ("bob", b"bearer b2"), ("eve", b"Bearer  e3 ")):
        assert keys.principal(header).key_id == key_id(name)


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"a1", b"Basic a1", b"Bearer a", b"Bearer a11"])
def test_anything_else_is_a_401(header: bytes | None) -> None:
    with pytest.raises(GatewayError) as caught:
        ring(("ann", "a1"), ("bob", "b2")).principal(header)
    assert caught.value.status == 401


def test_key_id_belongs_to_the_name_and_survives_a_new_key() -> None:
    before = ring(("ann", "a1")).principal(b"Bearer a1")
    after = ring(("ann", "new")).principal(b"Bearer new")
    assert before.key_id == after.key_id
    assert key_id("ann") != key_id("bob")
    assert key_id("ann").isalnum()
