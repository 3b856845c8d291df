"""What the terminal shows of a run."""

import dataclasses
import io

from rich.console import Console

from openclaw_rl.evaluation.ledger import Ledger
from openclaw_rl.evaluation.live_view import LiveView, PhaseProgress, SystemState, bar, share, shorten
from tests.evaluation.entries import make_entry, make_ledger

STATE = SystemState(
    sessions=3,
    turns_by_state={"judging": 2, "sampled": 9},
    judged=11,
    hints=4,
    samples_waiting=5,
    samples_training=8,
    samples_trained=16,
    batch_size=8,
    version="policy-v2",
    steps=2,
    trainer="8 samples for the next batch",
)


def make_view(ledger: Ledger, phase: PhaseProgress, state: SystemState | None = STATE) -> tuple[LiveView, Console]:
    console = Console(file=io.StringIO(), width=140, force_terminal=False, record=True)
    return LiveView(console, ledger, phase, lambda: state, title="demo", plain=True), console


def answered(satisfied: bool = True) -> Ledger:
    return make_ledger(
        make_entry(satisfied=satisfied, verdict=1, reaction="Great, thanks.", text="Verse\nthat rhymes.")
    )


def test_the_page_shows_every_figure() -> None:
    phase = PhaseProgress()
    phase.start("conversations")
    phase.advance(12, 48)
    view, console = make_view(answered(), phase)
    console.print(view.page())
    text = console.export_text()
    for words in (
        "conversations",
        "12 of 48 answers",
        "2 being judged, 9 samples",
        "11, 4 with a hint",
        "5 of 8 samples, 8 in training, 16 trained",
        "policy-v2 after 2 updates",
        "8 samples for the next batch",
        "1.00",
        "Verse that rhymes.",
        "Great, thanks.",
    ):
        assert words in text


def test_the_line_says_the_same_in_one_line() -> None:
    phase = PhaseProgress()
    phase.start("conversations")
    view, _ = make_view(answered(satisfied=False), phase)
    line = view.line()
    assert "\n" not in line
    for words in ("1 answers", "11 judged (4 hints)", "5 of 8 samples", "policy-v2 after 2 updates", "score 0.00"):
        assert words in line


def test_what_is_counted_and_what_a_batch_takes_are_said() -> None:
    phase = PhaseProgress()
    phase.start("the last updates")
    phase.counts = "questions to the base, told the preference"
    phase.advance(1, 40)
    view, _ = make_view(answered(), phase, dataclasses.replace(STATE, samples_waiting=18, batch_size=4))
    line = view.line()
    assert "] the last updates: 1 of 40 questions to the base, told the preference | " in line
    assert "| 18 samples ready (a batch takes 4) |" in line


def test_before_there_is_anything_to_show() -> None:
    phase = PhaseProgress()
    phase.start("starting the loops")
    view, console = make_view(Ledger(), phase, state=None)
    console.print(view.page())
    assert "starting the loops" in console.export_text()
    assert "answers" not in view.line()


def test_small_forms() -> None:
    assert shorten("a  b\nc") == "a b c"
    assert shorten("x" * 50, limit=10) == "x" * 9 + "…"
    assert (share(None), share(0.625)) == ("-", "0.62")
    assert bar(0.5, width=4) == "██░░"
    assert bar(None, width=2) == "░░"
