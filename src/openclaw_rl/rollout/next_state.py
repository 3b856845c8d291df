"""What counts as the next state of a turn: the feedback that the judge reads.

The next state is *all* that the client sent after the turn's answer, in order and with roles: a user's words,
several tool results, notes of the client between them. Nothing is cut out of it, since a judge that sees a tool's
result without the user's remark beside it judges another conversation. It ends where another answer begins, one that
we do not know (another server's, or an edited one): what follows that is not about ours. And not every request brings
feedback; `next_state_of` says which does.
"""

from __future__ import annotations

from itertools import takewhile

from openclaw_rl.types import Message, Request, TurnType

REACTION_ROLES = frozenset({"user", "tool", "function"})
"""Roles whose messages react to an answer. `system` and `developer` messages are instructions of the client; they are
kept beside a reaction and are none by themselves."""

_TOOL_ROLES = frozenset({"tool", "function"})


def next_state_of(child: Request) -> tuple[Message, ...] | None:
    """The next state that `child` gives its parent, or None if it brings no feedback.

    Four kinds of requests bring none: one without a parent; a side request (a client's housekeeping, such as asking
    for a title, is not the user's reaction); one whose parent is uncertain (its feedback could belong to
    another answer); and one that adds no reaction to the parent's answer.
    """
    if child.parent_turn_id is None or child.ambiguous or child.turn_type is not TurnType.MAIN:
        return None
    about_it = tuple(takewhile(lambda message: message.get("role") != "assistant", child.new_messages))
    return about_it if any(is_reaction(message) for message in about_it) else None


def is_reaction(message: Message) -> bool:
    """Whether this message reacts to the answer before it.

    A tool's result always does: an empty result is a result. A user's message does unless it is blank.
    """
    role = message.get("role")
    if role in _TOOL_ROLES:
        return True
    return role in REACTION_ROLES and _says_something(message.get("content"))


def _says_something(content: object) -> bool:
    """Whether content (text, or OpenAI content parts) is more than white space; any part but text is."""
    if isinstance(content, str):
        return bool(content.strip())
    if isinstance(content, list | tuple):
        return any(_part_says_something(part) for part in content)
    return False


def _part_says_something(part: object) -> bool:
    if not isinstance(part, dict):
        return isinstance(part, str) and bool(part.strip())
    if part.get("type", "text") == "text":
        return bool(str(part.get("text") or "").strip())
    return True
