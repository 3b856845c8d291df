"""Names on the command line that choose whose sessions or versions are meant, and how names are shown there."""

from __future__ import annotations

import argparse

SHOWN = 40
"""Characters of a name."""


def given(text: str) -> str:
    """A name as it was given, for `type=`.

    An empty one is a shell's variable that was never set. It must not be taken for what has no name: to ask for the
    sessions of user "" would be to ask for all that belong to nobody in particular.

    Raises:
        ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("a name is wanted, and this one is empty")
    return text


def shown(name: str) -> str:
    """A name that others chose, as it may stand in a terminal: no longer than SHOWN, and nothing moves its cursor."""
    plain = "".join(character if character.isprintable() else "?" for character in name)
    return plain if len(plain) <= SHOWN else plain[: SHOWN - 1] + "…"
