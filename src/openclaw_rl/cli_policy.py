"""`openclaw-rl policy ...`: the versions of a deployment, whether or not it is up.

What changes which version serves takes effect for the next request: gateway and trainer read it from the store.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from openclaw_rl.cli_names import given, nobody, remark, shown
from openclaw_rl.cli_store import store_of
from openclaw_rl.cli_versions import as_json, listing, names, on_disk, when
from openclaw_rl.config import Config
from openclaw_rl.config_sources import ConfigError, load_json
from openclaw_rl.policy_files import CorruptPolicy, UnreadablePolicy, WeightsKind, verify_manifest, weights_of
from openclaw_rl.supervision.state import child_config_path, read_state
from openclaw_rl.types import BASE_VERSION, PolicyVersion, StepRecord, VersionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openclaw_rl.store import Store
    from openclaw_rl.training.compare import Difference

OK = 0
MODULES_SHOWN = 8
_NAME = re.compile(r"(?:policy-)?v?([0-9]{1,9})|(base)")


class AddCommand(Protocol):
    """Makes one command: its name, what runs it, a line of help."""

    def __call__(self, commands: Any, name: str, run: Any, help_text: str) -> argparse.ArgumentParser:
        """Make it."""
        ...


def add_policy(commands: Any, command: AddCommand, add_run_dir: Callable[[argparse.ArgumentParser], None]) -> None:
    """The command `policy` and what can be done with it."""
    policy = commands.add_parser("policy", help="list, compare, pin, roll back and export policy versions")
    actions = policy.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Any, help_text: str, *versions: str) -> argparse.ArgumentParser:
        parser = command(actions, name, run, help_text)
        for argument in versions:
            parser.add_argument(argument, metavar=argument.upper(), help="base, 12, v12, policy-v12 or serving")
        parser.add_argument(
            "--user", type=given, metavar="NAME", help="of this user's policy, or key's (policies.per)"
        )
        add_run_dir(parser)
        return parser

    for told in (
        action("list", run_list, "every version, and what became of it"),
        action("show", run_show, "one version: its step, its figures, where it lies", "version"),
        action("diff", run_diff, "how far two versions lie apart", "a", "b"),
    ):
        told.add_argument("--json", action="store_true", help="for programs")
    action("rollback", run_rollback, "serve an earlier version, from the next request on", "version")
    action("pin", run_pin, "serve a version and keep it in service; training waits", "version")
    action("unpin", run_unpin, "let newer versions take over again")
    export = action("export", run_export, "copy a version's PEFT directory", "version")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="must not be there yet")
    merge = action("merge", run_merge, "write the base with a version merged in", "version")
    merge.add_argument(
        "--to", type=Path, required=True, metavar="PATH", help="a directory, or a file that ends in .gguf"
    )
    merge.add_argument("--gguf-base", type=Path, metavar="FILE", help="the base's own GGUF, for its tokenizer")


# --- the actions -------------------------------------------------------------------------------------------


def run_list(parsed: argparse.Namespace) -> int:
    """`policy list`."""
    with opened_store(parsed) as (store, _):
        at_base = _kept_at_base(store, parsed.user)
        there = store.versions.all()
        versions = [one for one in there if _asked_for(one, parsed.user, at_base)]
        steps, since = _steps(store), store.versions.states_since()
        begun = not versions and bool(store.sessions.spoken_for_by(parsed.user))
    if begun:
        remark(f"{shown(parsed.user)} has no version of their own yet")
    elif not versions:
        remark(nobody(parsed.user, "has a policy of their own", {one.owner for one in there}))
    if parsed.json:
        _print_json([as_json(one, steps.get(one.version), since[one.version], at_base) for one in versions])
        return OK
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    _say(listing(versions, steps, since, at_base, width=width))
    return OK


def run_show(parsed: argparse.Namespace) -> int:
    """`policy show VERSION`."""
    with opened_store(parsed) as (store, _):
        version = _version(store, parsed.version, parsed.user)
        step = _steps(store).get(version.version)
        since = store.versions.states_since()[version.version]
        at_base = _kept_at_base(store, parsed.user)
    body = as_json(version, step, since, at_base)
    if parsed.json:
        _print_json(body)
        return OK
    console = Console(highlight=False, soft_wrap=True)
    for name, value in body.items():
        if name == "metrics":
            for metric, figure in sorted((value or {}).items()):
                console.print(f"{metric:<24}{figure:.5g}", markup=False)
        elif value is not None and value != []:
            console.print(f"{name:<24}{_as_text(name, value)}", markup=False)
    return OK


def _as_text(name: str, value: Any) -> str:
    if name in {"owner", "pinned_for"}:  # chosen by others
        return ", ".join(shown(one) for one in ([value] if isinstance(value, str) else value))
    return ", ".join(value) if isinstance(value, list) else when(value) if name == "since" else str(value)


def run_diff(parsed: argparse.Namespace) -> int:
    """`policy diff A B`."""
    with opened_store(parsed) as (store, config):
        a, b = (_version(store, name, parsed.user) for name in (parsed.a, parsed.b))
        between = _between(store, a, b)
    with _sound_files():
        found = _difference(config, _files(a), _files(b))
    trained = sum(len(step.sample_ids) for step in between)
    if parsed.json:
        _print_json(
            {
                "a": a.name,
                "b": b.name,
                "norm_a": found.norm_a,
                "norm_b": found.norm_b,
                "norm_difference": found.norm_difference,
                "steps_between": len(between),
                "samples_between": trained,
                "by_module": found.by_module,
            }
        )
        return OK
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(between)} steps on {trained} samples lie between {a.name} and {b.name}", markup=False)
    console.print(f"added to the base: {a.name} {found.norm_a:.4g}, {b.name} {found.norm_b:.4g} (Frobenius norm)")
    console.print(f"difference: {found.norm_difference:.4g}" + "; most of it in" * bool(found.by_module))
    for module, norm in list(found.by_module.items())[:MODULES_SHOWN]:
        console.print(f"  {norm:<10.4g}{module}", markup=False)
    return OK


def _between(store: Store, a: PolicyVersion, b: PolicyVersion) -> list[StepRecord]:
    """The steps that one of the two went through on its way from the base, and the other did not."""
    from openclaw_rl.training.line import line_in_store

    on_the_way = ({one.version for one in line_in_store(store, own.owner, own.version)} for own in (a, b))
    apart = set.symmetric_difference(*on_the_way)
    return [step for number, step in _steps(store).items() if number in apart]


def _difference(config: Config, a: Path | None, b: Path | None) -> Difference:
    """How far apart, whichever kind of weights the two are."""
    from openclaw_rl.training.compare import compare

    whole = [weights_of(path).kind is WeightsKind.FULL for path in (a, b) if path is not None]
    if not any(whole):
        return compare(a, b)
    if not all(whole):
        raise ConfigError("one of the two is a whole model and the other an adapter: they are of different runs")
    from openclaw_rl.models import resolve_model
    from openclaw_rl.training.compare_whole import compare_whole

    return compare_whole(resolve_model(config.model), a, b)


def run_rollback(parsed: argparse.Namespace) -> int:
    """`policy rollback VERSION`."""
    from_when = _from_when(parsed)
    with opened_store(parsed) as (store, config):
        version = _servable(store, parsed.version, parsed.user)
        owner = _whose(store, version, parsed.user, config)
        _remark_slip(store, owner, config)
        before = store.versions.serving(owner)
        store.versions.roll_back(version.version, owner)
    waits = _waits(owner, config)
    if before.version == version.version:
        _say(f"{version.name} was in service and stays; what was to follow it is given up{waits}")
        return OK
    begins = "serves" if waits else f"serves from {from_when}"
    _say(f"{version.name} {begins}, in place of {before.name}; training goes on from it{waits}")
    return OK


def run_pin(parsed: argparse.Namespace) -> int:
    """`policy pin VERSION`."""
    with opened_store(parsed) as (store, config):
        version = _servable(store, parsed.version, parsed.user)
        owner = _whose(store, version, parsed.user, config)
        _remark_slip(store, owner, config)
        store.versions.pin(version.version, owner)
    training, whose = ("this policy's training", f" --user {shlex.quote(owner)}") if owner else ("training", "")
    until = f"openclaw-rl policy unpin{whose}"
    _say(f"{version.name} stays in service, and {training} waits, until: {until}{_waits(owner, config)}")
    return OK


def run_unpin(parsed: argparse.Namespace) -> int:
    """`policy unpin`."""
    with opened_store(parsed) as (store, config):
        pinned_owners = store.versions.pinned_owners()
        if parsed.user is None and config.policies.owned and pinned_owners != {""}:  # the shared policy's, of before
            pinned_owners -= {""}
            there = f"pinned are those of {names(pinned_owners)}" if pinned_owners else "nobody's is pinned"
            raise ConfigError(f"{_per(config)}: say whose policy, with --user NAME; {there}")
        _remark_slip(store, parsed.user or "", config)
        pinned = store.versions.pinned(parsed.user or "")
        store.versions.unpin(parsed.user or "")
    if pinned is None:
        _say("no version was pinned")
        return OK
    _say(f"{pinned.name} may be followed by newer ones again{_waits(parsed.user or '', config)}")
    return OK


def run_export(parsed: argparse.Namespace) -> int:
    """`policy export VERSION --to DIR`."""
    with opened_store(parsed) as (store, _):
        version = _version(store, parsed.version, parsed.user)
    adapter = _files(version)
    if adapter is None:
        raise ConfigError("the base has no adapter to export: it is the model itself")
    from openclaw_rl.training.export import export_adapter

    with _sound_files():
        export_adapter(adapter, parsed.to)
    _say(f"{version.name} is in {parsed.to}: PeftModel.from_pretrained(base, {str(parsed.to)!r}) loads it")
    return OK


def run_merge(parsed: argparse.Namespace) -> int:
    """`policy merge VERSION --to PATH`."""
    with opened_store(parsed) as (store, config):
        version = _version(store, parsed.version, parsed.user)
    adapter = _files(version)
    as_gguf = parsed.to.suffix == ".gguf"
    if parsed.gguf_base is not None and not as_gguf:
        raise ConfigError("--gguf-base is for a --to that ends in .gguf")
    if parsed.to.exists():
        raise ConfigError(f"{parsed.to} is there already")
    from openclaw_rl.training.export import merge, merge_to_gguf

    with _sound_files():
        if as_gguf:
            merge_to_gguf(config.model, adapter, parsed.to, base_gguf=parsed.gguf_base)
        else:
            merge(config.model, adapter, parsed.to)
    made = (
        "copied" if adapter is not None and weights_of(adapter).kind is WeightsKind.FULL else "merged into its base"
    )
    _say(f"{version.name}, {made}, is in {parsed.to}")
    return OK


# --- what they share ---------------------------------------------------------------------------------------


@contextmanager
def opened_store(parsed: argparse.Namespace) -> Iterator[tuple[Store, Config]]:
    """The record of the run directory, and the configuration that it runs with."""
    from openclaw_rl.cli import resolve_arguments

    config = resolve_arguments(parsed, None).config
    if not config.store_path.is_file():
        raise ConfigError(f"no deployment has run in {config.run_dir}: --run-dir names another directory")
    used = child_config_path(config.run_dir.expanduser())
    with store_of(config.run_dir, config.store_path) as store:
        yield store, load_json(used) if used.is_file() else config


@contextmanager
def _sound_files() -> Iterator[None]:
    try:
        yield
    except (CorruptPolicy, UnreadablePolicy) as error:
        raise ConfigError(str(error)) from error


def _version(store: Store, name: str, user: str | None = None) -> PolicyVersion:
    """The version that is called so; with `user`, one of that user's policy, or the base."""
    if name == "serving":
        return store.versions.serving(user or "")
    found = _NAME.fullmatch(name)
    if found is None:
        raise ConfigError(f"{name!r} names no version: base, 12, v12, policy-v12 or serving")
    version = store.versions.get(int(found[1] or BASE_VERSION))
    if version is None:
        there = store.versions.all()
        which = (
            f"there are {there[0].name} to {there[-1].name}" if len(there) > 1 else f"there is only {there[0].name}"
        )
        raise ConfigError(f"there is no version {name}; {which}")
    if version.version != BASE_VERSION and user not in (None, version.owner):
        raise ConfigError(f"{version.name} is no version of {user}'s policy: openclaw-rl policy list --user {user}")
    return version


def _whose(store: Store, version: PolicyVersion, user: str | None, config: Config) -> str:
    """Whom a version is to serve. The base is everybody's: with a policy for each, somebody has to be named.

    With one policy for all, an owner's is there for later (`_waits`): `up` asks for that before it goes on with it.
    """
    if user and not config.policies.owned and user not in store.versions.owners():
        raise ConfigError(f"{shown(user)} has no policy of their own, with {_per(config)} nor from before")
    if version.version != BASE_VERSION:
        if config.policies.owned and not version.owner:
            raise ConfigError(f"{version.name} is of the shared policy, which serves nobody with {_per(config)}")
        return version.owner
    if user is None and config.policies.owned:
        raise ConfigError(f"{_per(config)}: say whose policy, with --user NAME")
    return user or ""


def _remark_slip(store: Store, owner: str, config: Config) -> None:
    """Say so where nobody of that name was ever here: it may be meant for later, and a slip would go unnoticed."""
    keys = {key.name for key in config.serving.api_keys}
    owners = store.versions.owners() | store.versions.pinned_owners()
    if owner and owner not in owners | keys and not store.sessions.spoken_for_by(owner):
        spoken = {one.owner for one in store.archive.summaries()}
        remark(nobody(owner, "has a policy or a session here", owners | keys | spoken))


def _waits(owner: str, config: Config) -> str:
    """A line more for what is said of an owner's policy while there is one for all; nothing where it serves."""
    if not owner or config.policies.owned:
        return ""
    serves = f"with {_per(config)} nothing of {shown(owner)}'s serves"
    return f"\nThis counts once policies.per is user or key again: {serves}"


def _per(config: Config) -> str:
    return f"policies.per = {config.policies.per}"


def _from_when(parsed: argparse.Namespace) -> str:
    """When what the record says of versions takes effect: it depends on whether a deployment runs."""
    from openclaw_rl.cli import resolve_arguments

    state = read_state(resolve_arguments(parsed, None).config.run_dir.expanduser())
    return "the next request on" if state is not None and state.alive else "the next start on (no deployment is up)"


def _kept_at_base(store: Store, user: str | None) -> set[str]:
    """Who is kept at the base; with `user`, whether that one is."""
    return {one for one in store.versions.kept_at_base() if user in (None, one)}


def _asked_for(version: PolicyVersion, user: str | None, at_base: Set[str]) -> bool:
    """Whether it is listed: with `user` those of that user, and the base for one who is kept at it."""
    return user in (None, version.owner) or (version.version == BASE_VERSION and bool(at_base))


def _servable(store: Store, name: str, user: str | None) -> PolicyVersion:
    version = _version(store, name, user)
    if version.state is VersionState.REJECTED:
        raise ConfigError(f"{version.name} was rejected ({version.reason}) and never serves")
    if version.state is VersionState.CANDIDATE:
        raise ConfigError(f"{version.name} is not in service yet: wait for it")
    files = _files(version)
    if files is not None:
        with _sound_files():
            verify_manifest(files)
    return version


def _files(version: PolicyVersion) -> Path | None:
    """Where the adapter lies, or the whole model; None for the base.

    Raises:
        ConfigError: it was pruned.
    """
    if version.version == BASE_VERSION:
        return None
    if not on_disk(version):
        raise ConfigError(f"{version.name} is no longer on disk: training.keep_checkpoints says how many are kept")
    return Path(str(version.path))


def _steps(store: Store) -> Mapping[int, StepRecord]:
    return {step.version: step for step in store.samples.steps()}


def _print_json(body: Any) -> None:
    _say(json.dumps(body, indent=2))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
