"""README, CONTRIBUTING and docs/, read as what they show: fenced blocks, commands, links, names."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES: tuple[Path, ...] = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SHELL = frozenset({"sh", "bash"})


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: where it stands, what language it is marked as, and what is in it."""

    page: str
    language: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A command of a `console` block, and the lines of output that the page shows; `...` is any number of lines."""

    command: str
    output: tuple[str, ...]


def blocks_of(text: str, page: str) -> list[Block]:
    return [Block(page=page, language=language, text=body) for language, body in _FENCE.findall(text)]


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page.read_text(encoding="utf-8"), page.name)]


def commands_in(text: str) -> list[str]:
    """The commands of a shell block, a line each; a backslash at the end goes on in the next line."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [re.sub(r"\s+", " ", line).strip() for line in lines]
    commands = [line for line in found if line and not line.startswith("#")]
    for command in commands:
        shlex.split(command)  # an open quotation mark is an error
    return commands


def transcripts_in(text: str) -> list[Transcript]:
    """The commands of a `console` block, each with what follows it."""
    found: list[Transcript] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Transcript(command=line[2:], output=()))
        else:
            last = found.pop()
            found.append(Transcript(command=last.command, output=(*last.output, line)))
    return found


def shell_commands() -> list[str]:
    return [command for block in all_blocks() if block.language in _SHELL for command in commands_in(block.text)]


def transcripts() -> list[Transcript]:
    return [item for block in all_blocks() if block.language == "console" for item in transcripts_in(block.text)]


def python_snippets() -> dict[str, str]:
    """Python blocks by their first line, which is a comment that says what they do."""
    return {block.text.partition("\n")[0]: block.text for block in all_blocks() if block.language == "python"}


def prose_of(page: Path) -> str:
    """A page without its fenced blocks and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links_of(page: Path) -> list[str]:
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose_of(page))


def code_spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose_of(page))


def shows(output: str, lines: tuple[str, ...]) -> bool:
    """Whether `output` is what a page shows: these lines in this order, others only where `...` stands."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in lines)
    return re.fullmatch(pattern, output if output.endswith("\n") else output + "\n") is not None
