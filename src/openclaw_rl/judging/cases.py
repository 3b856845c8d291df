"""Labelled cases: a task, an output, what came next, and what a person would conclude from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from openclaw_rl.judging.text import content_text, is_cjk
from openclaw_rl.types import Message

DATA = files("openclaw_rl.judging") / "data"


class InvalidCase(ValueError):
    """A line that is not a labelled case; the message names the line and the field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One labelled case. `score` is 1, 0 or -1; `corrective` says whether the next state holds an instruction."""

    task: str
    output: str
    next_state: tuple[Message, ...]
    score: int
    corrective: bool
    group: str | None = None

    @property
    def language(self) -> str:
        """`zh` where any CJK character stands in the case, else `en`."""
        texts = (self.task, self.output, *(str(message.get("content")) for message in self.next_state))
        return "zh" if any(map(is_cjk, texts)) else "en"


def case_from(row: Mapping[str, Any]) -> Case:
    """Read one row; `next_state` is text (what the user said), one message, or a list of them.

    Raises:
        InvalidCase: naming the field that is missing or wrong.
    """
    missing = [name for name in ("task", "output", "next_state", "score", "corrective") if name not in row]
    if missing:
        raise InvalidCase(f"missing {', '.join(missing)}")
    if row["score"] not in (-1, 0, 1):
        raise InvalidCase(f"score must be -1, 0 or 1, got {row['score']!r}")
    for name in ("task", "output"):
        if not isinstance(row[name], str):
            raise InvalidCase(f"{name} must be a text")
    if not isinstance(row["corrective"], bool):
        raise InvalidCase(f"corrective must be true or false, got {row['corrective']!r}")
    following = row["next_state"]
    if isinstance(following, str):
        following = {"role": "user", "content": following}
    messages = following if isinstance(following, list) else [following]
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidCase("next_state must be text, a message with role and content, or a list of messages")
    return Case(
        task=row["task"],
        output=row["output"],
        next_state=tuple(messages),
        score=row["score"],
        corrective=row["corrective"],
        group=row.get("group"),
    )


def parse_cases(lines: Iterable[str]) -> list[Case]:
    """Read cases from JSON lines, empty lines left out."""
    cases = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise InvalidCase("not a JSON object")
                cases.append(case_from(row))
            except ValueError as error:
                raise InvalidCase(f"line {number}: {error}") from error
    return cases


def load_cases(path: Path) -> list[Case]:
    """Read a file of cases.

    Raises:
        OSError: if it cannot be read.
        InvalidCase: naming the line, or that it is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidCase(f"not UTF-8 at byte {error.start}") from error
    return parse_cases(text.split("\n"))  # JSON may hold other ends of lines, as U+2028, inside a text


def user_examples(cases: Iterable[Case]) -> list[tuple[str, str, str]]:
    """Task, output and words of the cases in which a user speaks first."""
    spoken = [case for case in cases if case.next_state[0].get("role") == "user"]
    return [(case.task, case.output, content_text(case.next_state[0])) for case in spoken]


def shipped_cases(name: str) -> list[Case]:
    """The cases that come with the package: `calibration`, `held_aside` or `feedback`."""
    return parse_cases((DATA / f"{name}.jsonl").read_text(encoding="utf-8").split("\n"))
