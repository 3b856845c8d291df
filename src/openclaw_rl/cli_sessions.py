"""`openclaw-rl sessions`: what is recorded of conversations, listed, shown, exported, imported and deleted.

It works on the run directory, whether or not the deployment is up. What takes long to import is imported by its
command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.cli_names import given, nobody, remark, shown
from openclaw_rl.cli_store import store_of
from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, load, load_json

if TYPE_CHECKING:
    from openclaw_rl.store import Store
    from openclaw_rl.store.archive import SessionSummary

OK, FAILED = 0, 1

AddCommand = Callable[[Any, str, Any, str], argparse.ArgumentParser]


def add_sessions(
    commands: Any, add_command: AddCommand, add_run_dir: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Add `sessions` and its five commands to a parser's commands."""
    parser = add_command(commands, "sessions", None, "list, show, export, import and delete conversations")
    own = parser.add_subparsers(dest="sessions_command", required=True, metavar="COMMAND")

    listing = add_command(own, "list", run_list, "list all sessions, without their content")
    listing.add_argument("--key", type=given, metavar="NAME", help="only those of this key")
    listing.add_argument("--user", type=given, metavar="NAME", help="only those of this user (policies.per)")
    listing.add_argument("--json", action="store_true", help="for programs")

    showing = add_command(own, "show", run_show, "show one conversation, turn by turn")
    _add_name(showing, None)
    showing.add_argument("--json", action="store_true", help="everything, for programs")

    exporting = add_command(own, "export", run_export, "write sessions as JSON lines")
    _add_choice(exporting, "export")
    exporting.add_argument(
        "--format",
        choices=("full", "trajectory", "messages"),
        default="full",
        help="full: everything (default); trajectory: the original's; messages: OpenAI-style logs",
    )
    exporting.add_argument("--output", type=Path, metavar="FILE", help="by default standard output")

    importing = add_command(own, "import", run_import, "take conversations in, to be judged and trained")
    importing.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a format of export; found out")
    importing.add_argument("--key", type=given, metavar="NAME", help="the key that they will belong to")
    importing.add_argument("--user", type=given, metavar="NAME", help="the user whose they will be (policies.per)")
    importing.add_argument("--recipe", type=Path, metavar="FILE.toml", help="of a run directory never started")
    importing.add_argument("--json", action="store_true", help="for programs")

    deleting = add_command(own, "delete", run_delete, "delete sessions with all that came of them")
    _add_choice(deleting, "delete")
    deleting.add_argument("--yes", action="store_true", help="do not ask")
    deleting.add_argument("--json", action="store_true", help="for programs")
    for command in (listing, showing, exporting, importing, deleting):
        add_run_dir(command)


def _add_name(parser: argparse.ArgumentParser, nargs: str | None) -> None:
    what = "its id, the start of it, or what its client calls it"
    parser.add_argument("session", nargs=nargs, type=given, metavar="SESSION", help=what)


def _add_choice(parser: argparse.ArgumentParser, verb: str) -> None:
    _add_name(parser, "*")
    parser.add_argument("--key", type=given, metavar="NAME", help=f"{verb} all sessions of this key")
    parser.add_argument("--user", type=given, metavar="NAME", help=f"{verb} all sessions of this user (policies.per)")
    parser.add_argument("--all", action="store_true", help=f"{verb} all sessions")


# --- the commands ------------------------------------------------------------------------------------------


def run_list(parsed: argparse.Namespace) -> int:
    """`sessions list`."""
    from openclaw_rl.sessions.view import listing, summary_json

    with _opened(parsed) as (store, config):
        keys = key_names(config)
        owner = None if parsed.key is None else _key_id(parsed.key, config)
        there = store.archive.summaries()
        found = [one for one in there if owner in (None, one.key_id) and parsed.user in (None, one.owner)]
        if not found and (parsed.user, parsed.key) != (None, None):
            remark(_none_of(there, parsed))
    if parsed.json:
        _say(json.dumps([summary_json(one, keys) for one in found], indent=2))
    else:
        _say(listing(found, keys))
    return OK


def run_show(parsed: argparse.Namespace) -> int:
    """`sessions show SESSION`."""
    from openclaw_rl.sessions.document import to_document
    from openclaw_rl.sessions.view import conversation

    with _opened(parsed) as (store, config):
        rows = store.archive.read(_one(store, parsed.session))
        if rows is None:
            raise ConfigError(f"session {parsed.session} was deleted a moment ago")
        deployment = store.archive.deployment()
    if parsed.json:
        _say(json.dumps(to_document(rows, deployment), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _say(conversation(rows, key_names(config)))
    return OK


def run_export(parsed: argparse.Namespace) -> int:
    """`sessions export`: one line for each session; for each conversation in it with `--format messages`."""
    from openclaw_rl.config_render import write_private
    from openclaw_rl.sessions.document import to_document
    from openclaw_rl.sessions.formats import to_message_logs, to_trajectory
    from openclaw_rl.sessions.view import json_line

    lines: list[str] = []
    with _opened(parsed) as (store, config):
        deployment = store.archive.deployment()
        for session_id in _chosen(store, config, parsed):
            rows = store.archive.read(session_id)
            if rows is None:
                continue  # deleted a moment ago
            if parsed.format == "messages":
                lines += [json_line(log) for log in to_message_logs(rows)]
            else:
                lines.append(
                    json_line(to_trajectory(rows) if parsed.format == "trajectory" else to_document(rows, deployment))
                )
    text = "".join(f"{line}\n" for line in lines)
    if parsed.output is None:
        if lines:
            _say(text.removesuffix("\n"))
        return OK
    try:
        write_private(parsed.output, text)
    except OSError as error:
        raise ConfigError(f"--output {parsed.output}: {error.strerror or error}") from error
    _say(f"wrote {len(lines)} lines to {parsed.output}")
    return OK


def run_import(parsed: argparse.Namespace) -> int:
    """`sessions import FILE…`: each file whole or not at all."""
    from openclaw_rl.sessions.importing import import_file

    with _opened(parsed, create=True) as (store, config):
        key = None if parsed.key is None else _key_id(parsed.key, config)
        done = [import_file(store, config, path, key_id=key, user=parsed.user) for path in parsed.files]
    if parsed.json:
        _say(json.dumps([one.to_json() for one in done], indent=2))
    else:
        for one in done:
            _say(one.text())
    return OK


def run_delete(parsed: argparse.Namespace) -> int:
    """`sessions delete`: asks first."""
    from openclaw_rl.rollout.record_files import RecordsLocked
    from openclaw_rl.sessions.deletion import delete_sessions
    from openclaw_rl.sessions.view import deleted_text, listing, trained_json
    from openclaw_rl.store.erasure import BeingTrained, NotScrubbed

    with _opened(parsed) as (store, config):
        if store.erasure.unscrubbed():  # an earlier deletion was interrupted before its bytes were gone
            store.erasure.scrub()
        chosen = _chosen(store, config, parsed)
        if chosen and not parsed.yes and not _agreed(listing(store.archive.summaries(chosen), key_names(config))):
            _say("nothing was deleted")
            return FAILED
        try:
            outcome = delete_sessions(store, config, chosen)
        except BeingTrained as error:
            return _failed(f"nothing was deleted: {error}; try again in a moment")
        except RecordsLocked as error:
            return _failed(f"nothing was deleted: {error}; try again in a moment")
        except NotScrubbed as error:
            return _failed(f"deleted, but their bytes are in the store's file still: {error}. Run the command again")
    if parsed.json:
        counts = {name: getattr(outcome.deleted, name) for name in type(outcome.deleted).__dataclass_fields__}
        tree = {"session_ids": chosen, "deleted": {**counts, "record_lines": outcome.lines}}
        _say(json.dumps({**tree, "trained_versions": trained_json(outcome.trained)}, indent=2))
    else:
        _say(deleted_text(outcome.deleted, outcome.lines, outcome.trained))
    return OK


# --- inside ------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _failed(text: str) -> int:
    print(f"openclaw-rl: {text}", file=sys.stderr)  # noqa: T201
    return FAILED


def _agreed(what: str) -> bool:
    _say(what)
    if not sys.stdin.isatty():
        raise ConfigError("nobody is at the terminal to be asked: add --yes to delete without asking")
    print("Delete this and all that came of it? [y/N] ", end="", flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


@contextmanager
def _opened(parsed: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[Store, Config]]:
    """The store of a run directory and the configuration that its deployment runs with."""
    config = _configuration(parsed)
    if not create and not config.store_path.is_file():
        raise ConfigError(f"{config.run_dir} holds no store: nothing was recorded there")
    with store_of(config.run_dir, config.store_path) as store:
        yield store, config


def _configuration(parsed: argparse.Namespace) -> Config:
    """What a supervisor wrote into the run directory; where none ever ran, what recipe and environment say."""
    from openclaw_rl.supervision.state import child_config_path

    resolved = load(getattr(parsed, "recipe", None), os.environ, parsed.settings).config
    written = child_config_path(resolved.run_dir)
    if not written.is_file():
        return resolved
    return load_json(written).model_copy(update={"run_dir": resolved.run_dir})


def key_names(config: Config) -> Mapping[str, str]:
    """The names of keys by the ids under which sessions are kept."""
    from openclaw_rl.serving.gateway.auth import LOCAL, key_id

    return {LOCAL.key_id: LOCAL.key_id, **{key_id(key.name): key.name for key in config.serving.api_keys}}


def _key_id(name: str, config: Config) -> str:
    """The id of the key called `name`; the id itself serves for one that is configured no more.

    Raises:
        ConfigError: naming those that there are.
    """
    by_name = {known: key for key, known in key_names(config).items()}
    if name in by_name:
        return by_name[name]
    if name.startswith("key") and len(name) == len("key") + 20:
        return name
    raise ConfigError(f"no key is called {name}; there are {', '.join(sorted(by_name))}")


def _one(store: Store, name: str) -> str:
    found = store.archive.matching(name)
    if not found:
        raise ConfigError(f"no session is called {name}; `openclaw-rl sessions list` shows those that there are")
    if len(found) > 1:
        raise ConfigError(f"{len(found)} sessions may be meant by {name}: {', '.join(found[:4])}")
    return found[0]


def _chosen(store: Store, config: Config, parsed: argparse.Namespace) -> list[str]:
    """The sessions that are named, or those of a key, or of a user, or all.

    Raises:
        ConfigError: not exactly one of the four was asked for, or a name means none or several.
    """
    if (bool(parsed.session), parsed.key is not None, parsed.user is not None, parsed.all).count(True) != 1:
        raise ConfigError("say which sessions: some SESSION, or --key NAME, or --user NAME, or --all")
    if parsed.session:
        return list(dict.fromkeys(_one(store, name) for name in parsed.session))
    owner = None if parsed.key is None else _key_id(parsed.key, config)
    there = store.archive.summaries()
    chosen = [one for one in there if owner in (None, one.key_id) and parsed.user in (None, one.owner)]
    if not chosen:
        remark(_none_of(there, parsed))
    return [one.session_id for one in chosen]


def _none_of(there: Sequence[SessionSummary], parsed: argparse.Namespace) -> str:
    """Why none of the sessions that are there was chosen: in a name of a user, nobody notices a slip otherwise."""
    owners = {one.owner for one in there}
    if parsed.user is not None and parsed.user not in owners:
        return nobody(parsed.user, "has sessions here", owners)
    whose = [f"of {kind} {shown(name)}" for kind, name in (("user", parsed.user), ("key", parsed.key)) if name]
    return " ".join(["there are no sessions", *whose])
