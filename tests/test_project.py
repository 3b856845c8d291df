"""The project's own files against its code."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (NAME.match(line) for line in project["dependencies"])
    return {normal(match.group()) for match in found if match}


def imported(folder: Path) -> set[str]:
    """The top-level modules that the files below `folder` import, wherever in a file."""
    names: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"openclaw_rl"}


def test_everything_that_is_imported_is_declared() -> None:
    distributions = packages_distributions()
    needed = {module: {normal(name) for name in distributions[module]} for module in imported(ROOT / "src")}
    assert needed
    assert {module for module, names in needed.items() if not names & declared()} == set()


def test_everything_that_is_declared_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if line and not line.startswith("#")}
    assert declared() - pinned == set()


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {file.parent for file in (ROOT / "tests").rglob("test_*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
