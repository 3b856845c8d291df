"""`openclaw-rl engine ...`: the replicas of a deployment's engine, and which of them get no new requests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.cli_policy import AddCommand
from openclaw_rl.config_sources import ConfigError, load, load_json, nearest
from openclaw_rl.supervision.ports import engine_addresses
from openclaw_rl.supervision.state import child_config_path

OK = 0


def add_engine(commands: Any, command: AddCommand, add_run_dir: Callable[[argparse.ArgumentParser], None]) -> None:
    """The command `engine` and what can be done with it."""
    engine = commands.add_parser("engine", help="list the engine's replicas, drain one, take it back")
    actions = engine.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_run_dir(command(actions, "list", run_list, "every replica, and how it is"))
    for name, run, help_text in (
        ("drain", run_drain, "send a replica no new requests; what it answers now ends as it should"),
        ("undrain", run_undrain, "send a replica requests again, once it has the version in service"),
    ):
        parser = command(actions, name, run, help_text)
        parser.add_argument("url", metavar="URL", help="as `engine list` and `status` name it")
        add_run_dir(parser)


def run_list(parsed: argparse.Namespace) -> int:
    """`engine list`."""
    from openclaw_rl.supervision.status import collect

    run_dir, urls = _replicas(parsed)
    seen = {one.url: one.words() for one in collect(run_dir).replicas}
    drained = _list_of(run_dir).read()
    for url in urls:
        unseen = f"{url}  {'draining' if url in drained else 'the gateway has not said how it is'}"
        _say(seen.get(url, unseen))
    return OK


def run_drain(parsed: argparse.Namespace) -> int:
    """`engine drain URL`."""
    run_dir, urls = _replicas(parsed)
    url = _one_of(parsed.url, urls)
    drained = _list_of(run_dir).read() | {url}
    if not set(urls) - drained:
        raise ConfigError(f"{url} is the last replica that takes requests: undrain another first")
    _write(run_dir, drained)
    _say(f"{url} gets no new requests from now on; openclaw-rl engine list says when it has none left")
    return OK


def run_undrain(parsed: argparse.Namespace) -> int:
    """`engine undrain URL`."""
    run_dir, urls = _replicas(parsed)
    url = _one_of(parsed.url, urls)
    _write(run_dir, _list_of(run_dir).read() - {url})
    _say(f"{url} gets requests again once it has the version in service")
    return OK


def _replicas(parsed: argparse.Namespace) -> tuple[Path, tuple[str, ...]]:
    run_dir = load(None, os.environ, parsed.settings).config.run_dir.expanduser()
    path = child_config_path(run_dir)
    if not path.exists():
        raise ConfigError(f"no deployment in {run_dir}: start one with openclaw-rl up")
    urls = tuple(engine_addresses(load_json(path)))
    if len(urls) < 2:
        raise ConfigError(f"the deployment in {run_dir} has one engine: set engine.replicas or engine.urls for more")
    return run_dir, urls


def _one_of(url: str, urls: tuple[str, ...]) -> str:
    if url not in urls:
        raise ConfigError(f"no replica {url}: the nearest is {nearest(url, urls)}; there are {', '.join(urls)}")
    return url


def _list_of(run_dir: Path) -> Any:
    from openclaw_rl.serving.engines.replicas.drains import DrainList

    return DrainList(run_dir)


def _write(run_dir: Path, drained: frozenset[str]) -> None:
    try:
        _list_of(run_dir).write(drained)
    except OSError as error:
        raise ConfigError(f"cannot write in {run_dir}: {error.strerror or error}") from error


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
