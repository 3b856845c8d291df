"""The commands. Each reads its options and calls a loop; what takes long to import is imported by its command.

Exit codes: 0, 1 for something that failed while it ran, 2 for something that was asked wrongly, 130 for Ctrl-C.
Every error is one line on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from openclaw_rl import __version__
from openclaw_rl.cli_engine import add_engine
from openclaw_rl.cli_judge import add_judge
from openclaw_rl.cli_names import given
from openclaw_rl.cli_plot import add_plot
from openclaw_rl.cli_policy import add_policy
from openclaw_rl.cli_sessions import add_sessions
from openclaw_rl.config import Config
from openclaw_rl.config_render import to_toml, type_name, with_tables
from openclaw_rl.config_sources import (
    FLAG_ALIASES,
    KNOWN_ELSEWHERE,
    ConfigError,
    Option,
    Resolved,
    from_flags,
    load,
    nearest,
    options,
)
from openclaw_rl.extension_checks import check_extensions
from openclaw_rl.model_paths import check_model_path
from openclaw_rl.types import Method

OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130
WATCH_INTERVAL_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = build_parser()
        check_flags(parser, arguments)
        parsed = parser.parse_args(arguments)
        return int(parsed.run(parsed))
    except ConfigError as error:
        print(f"openclaw-rl: {error}", file=sys.stderr)  # noqa: T201
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`status | head`); Python must not complain of it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def say(text: str) -> None:
    """Tell the person at the terminal."""
    print(text, flush=True)  # noqa: T201


# --- the commands ------------------------------------------------------------------------------------------


def run_up(parsed: argparse.Namespace) -> int:
    """`up RECIPE`: all loops, until Ctrl-C."""
    resolved = resolve_arguments(parsed, parsed.recipe)
    if parsed.dry_run:
        check_model_path(resolved.config)
        check_extensions(resolved.config)
        say(to_toml(resolved.config, resolved.origins).rstrip())
        return OK
    from openclaw_rl.supervision.process import stop_event
    from openclaw_rl.supervision.supervisor import Supervisor

    run_dir = resolved.config.run_dir
    if parsed.recipe is None:
        say("no recipe: with the defaults; recipes/combine.toml is the recommended one")
    say(f"starting in {run_dir}; logs in {resolved.config.logs_dir}")
    return Supervisor(resolved.config, say, on_ready=lambda url: say(what_to_try(url, resolved.config))).run(
        stop_event()
    )


def what_to_try(url: str, config: Config) -> str:
    """What a person who has just started a deployment can do with it."""
    asked = {
        "model": config.model.served_name,
        "stream": True,
        "messages": [{"role": "user", "content": "What is a tide?"}],
    }
    where = "" if config.run_dir == Config().run_dir else f" --run-dir {config.run_dir}"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.serving.api_keys else ""
    user = ""
    if config.policies.per == "user":
        user, key = " --user YOU", f"{key} -H 'X-User-Id: YOU'"
    return "\n".join(
        [
            f"point any OpenAI client at {url}, or try in another terminal:",
            f"  openclaw-rl chat{user}{where}",
            f"  openclaw-rl status --watch{where}",
            f"  curl -N {url}/chat/completions -H 'Content-Type: application/json'{key} -d '{json.dumps(asked)}'",
            "Ctrl-C stops it.",
        ]
    )


def run_status(parsed: argparse.Namespace) -> int:
    """`status`: who waits for whom, since when."""
    from openclaw_rl.supervision.status import collect, render

    run_dir = resolve_arguments(parsed, None).config.run_dir
    if parsed.watch and parsed.json:
        raise ConfigError("--json and --watch do not go together: ask for --json as often as you like")
    if parsed.watch:
        return watch_status(run_dir)
    report = collect(run_dir)
    say(json.dumps(report.to_json(), indent=2) if parsed.json else render(report))
    return OK if report.running else FAILED


def watch_status(run_dir: Path) -> int:
    """Show the status anew each second, until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    from openclaw_rl.supervision.status import collect, render

    with Live(Text(""), auto_refresh=False) as live:
        while True:
            live.update(Text(render(collect(run_dir))), refresh=True)
            time.sleep(WATCH_INTERVAL_S)


def run_chat(parsed: argparse.Namespace) -> int:
    """`chat`: talk to the policy of a running deployment."""
    from openclaw_rl.cli_chat import chat

    run_dir = resolve_arguments(parsed, None).config.run_dir
    return chat(
        run_dir, model=parsed.model, temperature=parsed.temperature, max_tokens=parsed.max_tokens, user=parsed.user
    )


def run_demo(parsed: argparse.Namespace) -> int:
    """`demo`: the whole system at work, with a simulated user."""
    from openclaw_rl.evaluation.demo_options import DemoOptions, demo_config

    sizes = ("interactions", "held_out", "temperature", "max_tokens", "threads")
    names = ("preference", "form_only", "seed", *sizes, "report", "plot", "run_dir")
    given = {name: value for name in names if (value := getattr(parsed, name)) is not None}
    if parsed.dry_run:
        given.setdefault("run_dir", Path("demo-run"))  # a real run makes a new directory below it
    options = DemoOptions(
        **given,
        method=Method(parsed.method),
        recipe=find_recipe(parsed.recipe) if parsed.recipe else None,
        settings=tuple(from_flags(parsed.settings)),
    )
    if parsed.dry_run:
        config = demo_config(options, os.environ)
        check_model_path(config)
        check_extensions(config)
        say(to_toml(config).rstrip())
        return OK
    from openclaw_rl.evaluation.demo import main as demo

    return demo(options)


def run_options(parsed: argparse.Namespace) -> int:
    """`options`: everything that can be set."""
    if parsed.update is not None:
        try:
            parsed.update.write_text(with_tables(parsed.update.read_text(encoding="utf-8")), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--update {parsed.update}: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"--update {parsed.update}: {error}") from error
        return OK
    for option in options():
        say(f"{option.flag} ({type_name(option)})")
        say(f"    {option.description or 'no description'}")
    return OK


def run_version(_parsed: argparse.Namespace) -> int:
    """`version`."""
    say(f"openclaw-rl {__version__}")
    return OK


# --- options -----------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Reports misuse as one line, as everything else here does."""

    def error(self, message: str) -> NoReturn:
        """Raise what `main` prints."""
        raise ConfigError(f"{message} (see {self.prog} --help)")


class KeepSetting(argparse.Action):
    """Keeps a configuration flag and its text, in the order given: the last one wins."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add (flag, text) to `namespace.settings`."""
        namespace.settings = [*namespace.settings, (option_string, values)]


def build_parser() -> Parser:
    """All commands and their options."""
    parser = Parser(prog="openclaw-rl", description="An agent that learns from being used.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"openclaw-rl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_up(commands)
    _add_demo(commands)
    _add_chat(commands)
    _add_status(commands)
    add_judge(commands, _command, _add_configuration)
    add_sessions(commands, _command, _add_run_dir)
    add_policy(commands, _command, _add_run_dir)
    add_engine(commands, _command, _add_run_dir)
    add_plot(commands, _command, _add_run_dir)
    listing = _command(commands, "options", run_options, "list everything that can be set")
    listing.add_argument("--update", type=Path, metavar="PAGE.md", help="write the tables of that page anew instead")
    _command(commands, "version", run_version, "print the version")
    return parser


def _add_up(commands: Any) -> None:
    parser = _command(commands, "up", run_up, "start all loops; Ctrl-C stops them")
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="a TOML file, or a name in recipes/; without it, the defaults"
    )
    parser.add_argument(
        "--eval",
        action="append_const",
        dest="settings",
        const=("--training.enabled", "false"),
        help="judge answers, and train nothing",
    )
    _add_configuration(parser, tuple(FLAG_ALIASES))


def _add_demo(commands: Any) -> None:
    parser = _command(commands, "demo", run_demo, "watch it learn a preference from a simulated user")
    methods = [method.value for method in Method]
    parser.add_argument("--preference", help="what the simulated user likes: terse (default), warm")
    parser.add_argument(
        "--form-only",
        action="store_true",
        default=None,
        help="the user minds the form of an answer only, not what it says: what the gate is for",
    )
    parser.add_argument("--method", choices=methods, default=Method.COMBINE.value, help="combine, binary_rl or opd")
    parser.add_argument("--interactions", type=int, help="how many requests the user makes (48)")
    parser.add_argument("--held-out", type=int, help="how many held-out questions are asked")
    parser.add_argument("--temperature", type=float, help="of the answers during training")
    parser.add_argument("--max-tokens", type=int, help="of an answer during training")
    parser.add_argument("--threads", type=int, help="how many conversations the user holds at once (3)")
    parser.add_argument("--seed", type=int, help="fixes what can be fixed")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write the figures for programs")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="where the plot goes")
    parser.add_argument("--recipe", help="a TOML file, or a name in recipes/; by default the method's own")
    parser.add_argument(
        "--run-dir", "--save-dir", type=Path, dest="run_dir", help="by default a new one in demo-run/"
    )
    own = {"--method", "--run-dir", "--save-dir"}
    _add_configuration(parser, tuple(flag for flag in FLAG_ALIASES if flag not in own))


def _add_chat(commands: Any) -> None:
    parser = _command(commands, "chat", run_chat, "talk to the running policy")
    parser.add_argument("--model", help="another model name, such as base or policy-v3")
    parser.add_argument("--temperature", type=float, default=1.0, help="1.0 by default: what is drawn can be trained")
    parser.add_argument("--max-tokens", type=int, help="the longest answer")
    parser.add_argument("--user", type=given, help="whose policy is to learn, where policies.per = user")
    _add_run_dir(parser)


def _add_status(commands: Any) -> None:
    parser = _command(commands, "status", run_status, "say who waits for whom, since when")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--watch", action="store_true", help="anew each second, until Ctrl-C")
    _add_run_dir(parser)


def _command(commands: Any, name: str, run: Any, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run, settings=[], dry_run=False)
    return parser


def _add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", action=KeepSetting, metavar="DIR", help="the deployment's directory")


def _add_configuration(parser: argparse.ArgumentParser, aliases: Iterable[str]) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and do nothing")
    parser.add_argument(
        "--set", action=KeepSetting, metavar="KEY=VALUE", help="set any key, as in --set training.lr=1e-4"
    )
    by_key = {option.key: option for option in options()}
    group = parser.add_argument_group(
        "configuration", "every key is a flag too (--training.lr 1e-4): openclaw-rl options"
    )
    for flag in aliases:
        alone = _alone(by_key[FLAG_ALIASES[flag]])
        group.add_argument(flag, action=KeepSetting, metavar="VALUE", help=FLAG_ALIASES[flag], **alone)
    for option in by_key.values():
        names = {option.flag, option.flag.replace("_", "-")} - set(FLAG_ALIASES)
        if names:
            parser.add_argument(*sorted(names), action=KeepSetting, help=argparse.SUPPRESS, **_alone(option))


def _alone(option: Option) -> dict[str, Any]:
    """How a flag is read without a value: a switch is on, any other needs one."""
    return {"nargs": "?", "const": "true"} if option.annotation is bool else {}


def check_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Complain of a flag that the command does not have, naming the nearest, before argparse misreads its value.

    Raises:
        ConfigError: for the first such flag.
    """
    known = parser
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if not argument.startswith("--"):
            known = _subparsers(known).get(argument, known)
        elif flag not in known._option_string_actions:
            if flag in KNOWN_ELSEWHERE:
                raise ConfigError(f"unknown option {flag}: {KNOWN_ELSEWHERE[flag]}")
            spelled = [name for name in known._option_string_actions if "-" not in name.partition(".")[2]]
            near = nearest(flag, spelled)
            raise ConfigError(f"unknown option {flag}: the nearest valid name is {near}")


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def resolve_arguments(parsed: argparse.Namespace, recipe: str | None) -> Resolved:
    """The configuration that a command's recipe, the environment and its flags make together."""
    path = find_recipe(recipe) if recipe is not None else None
    return load(path, os.environ, parsed.settings)


def find_recipe(name: str) -> Path:
    """The recipe at a path, or the one of that name in `recipes/`, here or in the source tree.

    Raises:
        ConfigError: naming those that there are.
    """
    if Path(name).is_file():
        return Path(name)
    folders = [Path("recipes"), Path(__file__).resolve().parents[2] / "recipes"]
    for folder in folders:
        named = folder / f"{name.removesuffix('.toml')}.toml"
        if named.is_file():
            return named
    there = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise ConfigError(f"no such recipe: {name}; there are {', '.join(there) or 'none here'}, or give a path")


if __name__ == "__main__":
    sys.exit(main())
