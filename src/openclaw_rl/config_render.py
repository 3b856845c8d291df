"""The configuration as text: TOML for `--dry-run`, JSON for the loops, a table for the documentation."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from openclaw_rl.config import Config
from openclaw_rl.config_sources import FLAG_ALIASES, Option, options

HIDDEN = "***"
TABLE_BEGIN = "<!-- the tables below are written by `make docs`; do not edit them -->"
TABLE_END = "<!-- end of the tables -->"


def plain(value: Any, *, reveal: bool) -> Any:
    """`value` in JSON's types. Secrets become `***` unless `reveal`, which only the loops' own file asks for."""
    if isinstance(value, SecretStr):
        return value.get_secret_value() if reveal else HIDDEN
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name), reveal=reveal) for name in type(value).model_fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(item, reveal=reveal) for item in value]
    return value


def write_private_json(config: Config, path: Path) -> None:
    """Write the tree, secrets included, readable by its owner alone; the file appears whole or not at all."""
    write_private(path, json.dumps(plain(config, reveal=True), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace the file at `path` by one that only its owner can read, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


# --- TOML --------------------------------------------------------------------------------------------------


def to_toml(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """The resolved tree as TOML, with secrets hidden and, beside each key that was set, its source.

    A key that is None is written as a comment: TOML has no null, and leaving it out means the same.
    """
    lines: list[str] = []
    _section(plain(config, reveal=False), (), origins or {}, lines)
    return "\n".join(lines).strip() + "\n"


def _section(tree: Mapping[str, Any], path: tuple[str, ...], origins: Mapping[str, str], lines: list[str]) -> None:
    if path:
        lines += ["", f"[{'.'.join(path)}]"]
    for name, value in tree.items():
        if isinstance(value, dict):
            continue
        origin = origins.get(".".join((*path, name)))
        comment = f"  # {origin}" if origin else ""
        lines.append(f"# {name} is not set{comment}" if value is None else f"{name} = {_value(value)}{comment}")
    for name, value in tree.items():
        if isinstance(value, dict):
            _section(value, (*path, name), origins, lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_value(item)}' for name, item in value.items())} }}"
    # JSON's escapes are TOML's, but for DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


# --- documentation -----------------------------------------------------------------------------------------


def to_markdown() -> str:
    """A table per section: key, type, default, meaning; each row's flag and variable follow from the key."""
    aliases: dict[str, list[str]] = {}
    for flag, key in FLAG_ALIASES.items():
        aliases.setdefault(key, []).append(f"`{flag}`")
    lines: list[str] = []
    section: str | None = None
    for option in options():
        name = ".".join(option.path[:-1])
        if name != section:
            section = name
            title = f"`[{name}]`" if name else "Top level"
            lines += ["", f"### {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        untold = [flag for flag in aliases.get(option.key, []) if flag not in option.description]
        also = f" Also {', '.join(untold)}." if untold else ""
        meaning = f"{option.description}{also}".strip()
        lines.append(f"| `{option.key}` | {type_name(option)} | {_default(option.default)} | {meaning} |")
    return "\n".join(lines).strip() + "\n"


def with_tables(page: str) -> str:
    """The page with the tables between its markers made anew.

    Raises:
        ValueError: if the page has no markers.
    """
    before, begin, rest = page.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not begin or not end:
        raise ValueError(f"the page has no {TABLE_BEGIN!r} and {TABLE_END!r}")
    return f"{before}{TABLE_BEGIN}\n\n{to_markdown()}\n{TABLE_END}{after}"


def type_name(option: Option) -> str:
    """The type of an option in words: `int, at least 1`, or the values to choose from."""
    name = _annotation(option.annotation)
    return f"{name}, {option.bounds}" if option.bounds else name


def _annotation(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotation(args[0])
    if origin is typing.Literal:
        return " or ".join(f"`{arg}`" for arg in args)
    if origin is tuple:
        return f"list of {_annotation(args[0])}"
    if origin in {typing.Union, types.UnionType}:
        return _annotation(next(arg for arg in args if arg is not type(None))) + " (or unset)"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "tables of " + ", ".join(f"`{name}`" for name in annotation.model_fields)
    return {Path: "path", str: "text", SecretStr: "text, secret"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _default(value: Any) -> str:
    return "unset" if value is None else f"`{_value(plain(value, reveal=False))}`"
