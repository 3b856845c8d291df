"""Which version of a server is installed for another Python, asked before it is started there.

An older one would end at the first option that it does not know, and be started again and again, without a word of
versions.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.config_sources import ConfigError

logger = logging.getLogger(__name__)

ASK_S = 30.0
_SHOWN = 200
"""Characters of what an interpreter says that cannot answer."""
_PROGRAM = """
import importlib.metadata, importlib.util, json, sys
module, *distributions = sys.argv[1:]
found = None
for name in distributions:
    try:
        found = importlib.metadata.version(name)
        break
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec(module)
print(json.dumps({"version": found, "importable": spec is not None and spec.origin is not None}))
"""
"""Imports nothing of the server: that takes many seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A server as it is installed. `name` is for people, `module` what Python imports, `made_for` the version that
    its adapter was written for and is tested with, the oldest that is started.

    `distributions`: under what it is published; one for special hardware may have another name. `remedy`: how to get
    it.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    made_for: str
    remedy: str


def check_installed(package: Package, python: Path, *, within_s: float = ASK_S) -> None:
    """Return if a server may be started with `python`; where its version cannot be told, with a warning.

    Raises:
        ConfigError: it has no such package, or an older one, or is no Python; says how to get one.
    """
    try:
        version, importable = _ask(package, python, within_s)
    except subprocess.TimeoutExpired:
        logger.warning("%s did not say within %.0f s which %s it has", python, within_s, package.name)
        return
    if version is None and not importable:
        raise ConfigError(f"{python} has no {package.name} installed: {package.remedy}")
    if version is None or ".dev" in version:  # a build from sources may call itself 0.1.dev1
        logger.warning("%s has a %s that does not say its version (%s)", python, package.name, version)
    elif release(version) < release(package.made_for):
        raise ConfigError(
            f"{python} has {package.name} {version}, and {package.made_for} or newer is needed (made for and tested "
            f"with {package.made_for}): {package.remedy}"
        )


def _ask(package: Package, python: Path, within_s: float) -> tuple[str | None, bool]:
    """The package's version there, and whether its module is; without the variables that are for our own (`-E`)."""
    command = [str(python), "-E", "-c", _PROGRAM, package.module, *package.distributions]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=within_s
        )
    except OSError as error:
        raise ConfigError(f"{python} cannot be run: {error.strerror}") from error
    try:
        last = done.stdout.strip().rpartition("\n")[2]  # an interpreter's start may print others before it
        found = json.loads(last)
        return found["version"], found["importable"]
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2][:_SHOWN]
        raise ConfigError(
            f"{python} is no Python that could say which {package.name} it has (code {done.returncode}: {said})"
        ) from error


def release(version: str) -> tuple[int, ...]:
    """`0.5.23.post1` and `0.5.23rc1+cpu` as (0, 5, 23); nothing of what is no version."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return () if numbers is None else tuple(int(number) for number in numbers[0].split("."))
