"""What the pages name exists: links, paths, modules, keys, headers, metrics, the heads that were measured."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, LossConfig
from openclaw_rl.config_gate import GateConfig
from openclaw_rl.config_sources import from_toml, options, resolve, sections
from openclaw_rl.judging import classifier, verdict_logits
from openclaw_rl.supervision.children import START_ORDER
from openclaw_rl.training.evaluation import evaluated
from openclaw_rl.training.gate import RULES
from openclaw_rl.training.gatekeeper import KnownAnswer
from openclaw_rl.training.metric_names import BY_NAME
from openclaw_rl.types import JudgementOutcome, Method
from tests.docs.pages import PAGES, ROOT, code_spans, links_of
from tests.training.support import mixed_samples, tiny_trainer

SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
BENCHMARKS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MADE_BY_A_RUN = ("RUN_DIR/", "openclaw-run/", "demo-run/", "checkpoints/", "adapter/", ".venv-")
"""Paths that a deployment or `make` makes, not the repository; `test_commands` looks for them in a real one."""

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def exists_as_path(span: str) -> bool:
    return any((folder / span).exists() for folder in (ROOT, ROOT / "src" / "openclaw_rl"))


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that a module holds."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def section(title: str) -> str:
    """What stands below a heading of whichever page has it; just one does."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    (rest,) = [rest for page in pages for _, found, rest in [page.partition(f"\n{title}\n")] if found]
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def first_column(text: str) -> list[str]:
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", text, flags=re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


# --- names -------------------------------------------------------------------------------------------------


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            assert target.exists(), link
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


@by_page
def test_paths_exist(page: Path) -> None:
    spans = [span for span in code_spans(page) if re.fullmatch(r"\.?[\w.-]+(/[\w.-]+)*/?", span)]
    named = [span for span in spans if "/" in span or re.search(r"\.(md|py|toml|txt)$", span)]
    outside = [span for span in named if span.startswith(MADE_BY_A_RUN)]
    assert [span for span in named if span not in outside and not exists_as_path(span)] == []


@by_page
def test_modules_and_what_they_hold_exist(page: Path) -> None:
    named = [span for span in code_spans(page) if re.fullmatch(r"openclaw_rl(\.\w+)+", span)]
    assert [name for name in named if not resolves(name)] == []


@by_page
def test_configuration_keys_exist(page: Path) -> None:
    keys = {option.key for option in options()}
    tops = {name.partition(".")[0] for name in sections()}
    spans = [span.partition(" = ")[0] for span in code_spans(page)]
    named = {span for span in spans if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span) and span.partition(".")[0] in tops}
    files = {span for span in named if re.search(r"\.(py|md|toml|json|sqlite)$", span)}
    assert named - files - keys - set(sections()) == set()


@by_page
def test_headers_exist(page: Path) -> None:
    named = re.findall(r"\bX-[A-Z][\w-]+", page.read_text(encoding="utf-8"))
    assert {name for name in named if name.lower() not in SOURCES.lower()} == set()


@by_page
def test_flags_exist(page: Path) -> None:
    ours = [span for span in code_spans(page) if span.startswith(("--", "openclaw-rl "))]
    named = {flag for span in ours for flag in re.findall(r"(?:^|\s)(--[a-z][\w.-]*)", span)}
    written = re.findall(r'"(--[a-z][\w.-]*)"', SOURCES + BENCHMARKS)
    known = {option.flag for option in options()} | {"--help", *written}
    assert named - known == set()


@by_page
def test_make_targets_exist(page: Path) -> None:
    targets = {words for span in code_spans(page) for words in re.findall(r"^make ([a-z-]+)$", span)}
    assert {target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)} == set()


def test_the_readme_says_when_the_recommended_recipe_updates() -> None:
    rollout = resolve(from_toml(ROOT / "recipes" / "combine.toml")).config.rollout
    said = (
        f"a batch of {rollout.batch_size} samples, or {rollout.min_batch_size} of which the oldest is "
        f"{rollout.max_batch_wait_s / 60:g} minutes old"
    )
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


# --- judging, training and the loss against the code ---------------------------------------------------------


def test_every_judge_has_its_row() -> None:
    kinds = Config.model_fields["judge"].annotation.model_fields["kind"].annotation  # type: ignore[union-attr]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|", section("### Which judge"), flags=re.MULTILINE)
    assert sorted(row for row in rows if row != "judge") == sorted(kinds.__args__)


def test_every_outcome_and_every_method_has_its_row() -> None:
    outcomes = re.findall(r"^\| `(\w+)` \|", section("## Judging"), flags=re.MULTILINE)
    assert sorted(outcomes) == sorted(outcome.value for outcome in JudgementOutcome)
    methods = re.findall(r"^\| `(\w+)` \|", section("## The three methods"), flags=re.MULTILINE)
    assert sorted(methods) == sorted(method.value for method in Method)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("## What a reward is measured against", "baseline"),
        ("## The loss of the sampled tokens", "kind"),
        ("## What holds the policy", "kl"),
    ],
)
def test_every_choice_of_the_loss_has_its_row(title: str, name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section(title), flags=re.MULTILINE)
    choices = LossConfig.model_fields[name].annotation.__args__  # type: ignore[union-attr]
    assert sorted(rows) == sorted({*choices, name})


def test_the_figures_are_those_of_the_heads_that_are_shipped() -> None:
    text = section("### How good they are")
    heads = {"classifier": classifier.load_head(), "verdict_logits": verdict_logits.load_head()}
    named = set(re.findall(r"`((?:classifier|verdict_logits)@\w+)`", text))
    assert named == {head.version for head in heads.values()}, "measure again with openclaw-rl judge try"
    for name, head in heads.items():
        shares = [f"{100 * head.fitted[key]:.0f} %" for key in ("signed_en", "signed_zh", "neutral")]
        assert f"| `{name}` | {head.fitted['rows']:.0f} | {' | '.join(shares)} |" in text


def test_the_metrics_are_those_of_a_step() -> None:
    lenient = dict.fromkeys(("max_nats_below_told_base", "max_nats_below_base", "max_probe_drop"), 50.0)
    trainer = tiny_trainer({"w_retry": 1.0, "tis_cap": 2.0}, gate={**lenient, "max_repetition": 1.0})
    known = [KnownAnswer(prompt_ids=(3, 4, 5), response_ids=(6, 7))]
    outcome = trainer.step(mixed_samples(trainer), hints=("be brief",), known=known)
    assert outcome.refused is None
    outcome = evaluated(outcome, lambda _: 1.0, Path("adapter"), trainer.config.gate)
    untold = trainer.step(mixed_samples(trainer))
    assert sorted(BY_NAME) == sorted({*outcome.metrics, *untold.metrics})


def test_every_reason_of_the_gate_has_its_row_with_its_bound() -> None:
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|[^|]*\| ([^|]*) \|", section("## The gate"), flags=re.MULTILINE)
    (not_finite, _), *bounded = rows
    assert [reason.strip("`") for reason, _ in bounded] == [rule.reason for rule in RULES]
    for (_, beyond), rule in zip(bounded, RULES, strict=True):
        words, _, key = beyond.partition(" ")
        assert words == ("above" if rule.at_most else "below")
        value = 0.123 if rule.at_most else 0.456
        values: dict[str, Any] = {key.strip("`"): value}
        if "evaluation" in key:
            values["evaluation_path"] = "a:b"
        assert rule.bound(GateConfig(**values)) == value
    assert all(f'"{reason}"' in SOURCES for reason in re.findall(r"`(\w+)`", not_finite))


def test_the_tables_of_the_folders_hold_every_one() -> None:
    package = ROOT / "src" / "openclaw_rl"
    named = set(first_column(section("## The folders")))
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")} - {"serving/"}
    modules = {path.stem for path in (package / "training").glob("*.py")} - {"__init__"}
    assert named == files | folders | modules | {"serving/gateway/", "serving/engines/"}


def test_the_illustrated_status_shows_every_process_in_its_order() -> None:
    shown = section("## Reading `status`")
    places = [shown.index(f"\n  {loop.value} ") for loop in START_ORDER]
    assert len(set(places)) == len(START_ORDER)


# --- these checks, by hand -----------------------------------------------------------------------------------


def test_names_resolve_or_not() -> None:
    assert resolves("openclaw_rl.config")
    assert resolves("openclaw_rl.types.Method.OPD")
    assert not resolves("openclaw_rl.nowhere")
    assert not resolves("openclaw_rl.types.Nothing")
    assert exists_as_path("docs/00-architecture.md")
    assert not exists_as_path("docs/nowhere.md")
