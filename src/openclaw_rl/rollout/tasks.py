"""Reads `rollout.tasks`: a JSON object on each line, strict about its keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.config_sources import ConfigError, nearest
from openclaw_rl.rollout.extension_contracts import Task

KEYS = ("id", "messages", "prompt", "tools", "metadata")
ID_CHARACTERS = 128


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file, in order.

    A line has `messages`, or `prompt` (the one user message); perhaps `id` (else a hash of the line), `tools` and
    `metadata`. Empty lines do not count.

    Raises:
        ConfigError: the file cannot be read, or a line is no task; it names the line.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"rollout.tasks: cannot read {path}: {error}") from error
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = parse_task(line)
        except ValueError as error:
            raise ConfigError(f"rollout.tasks: line {number} of {path}: {error}") from error
        if task.task_id in seen:
            raise ConfigError(
                f"rollout.tasks: lines {seen[task.task_id]} and {number} of {path} have one id, {task.task_id!r}"
            )
        seen[task.task_id] = number
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"rollout.tasks: there is no task in {path}")
    return tasks


def parse_task(line: str) -> Task:
    """One line.

    Raises:
        ValueError: it is no task, and why.
    """
    tree = json.loads(line)
    if not isinstance(tree, dict):
        raise ValueError("not a JSON object")
    for name in tree:
        if name not in KEYS:
            raise ValueError(f"unknown key {name!r}: the nearest valid one is {nearest(name, KEYS)!r}")
    if ("messages" in tree) == ("prompt" in tree):
        raise ValueError("a task has either messages or prompt")
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:32]
    return Task(
        task_id=_identifier(tree.get("id", digest[:16])),
        messages=_messages(tree),
        tools=_objects(tree.get("tools", []), "tools"),
        metadata=_object(tree.get("metadata", {}), "metadata"),
        digest=digest,
    )


def _identifier(value: Any) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value):
        raise ValueError("id is a text or a whole number")
    if len(str(value)) > ID_CHARACTERS:
        raise ValueError(f"id has more than {ID_CHARACTERS} characters")
    return str(value)


def _messages(tree: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    if "prompt" in tree:
        if not isinstance(tree["prompt"], str) or not tree["prompt"]:
            raise ValueError("prompt is a text")
        return ({"role": "user", "content": tree["prompt"]},)
    messages = _objects(tree["messages"], "messages")
    if not messages or not all(isinstance(message.get("role"), str) for message in messages):
        raise ValueError("messages is a list of objects with a role, at least one")
    return messages


def _objects(value: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is a list of objects")
    return tuple(_object(one, name) for one in value)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} has to hold JSON objects")
    return value
