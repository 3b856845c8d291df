"""Names on the command line that choose whose sessions or versions are meant, and how names are shown there."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable

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


def nobody(name: str, lacks: str, known: Iterable[str]) -> str:
    """That nobody of this name has what was asked for, and who was meant, if one of those that have it looks like it.

    `config_sources.nearest` is for options: it always knows one, and takes people of one domain for namesakes.
    """
    plain = {one.lower(): one for one in sorted(known) if one}
    near = difflib.get_close_matches(name.lower(), plain, n=1)
    return "; the nearest name is ".join(
        [f"nobody called {shown(name)} {lacks}", *(shown(plain[one]) for one in near)]
    )


def remark(text: str) -> None:
    """Say something beside the output, which may go into a program or a file."""
    print(f"openclaw-rl: {text}", file=sys.stderr)  # noqa: T201
