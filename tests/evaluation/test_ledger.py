"""What the client's ledger says of answers, refusals, broken streams and losses."""

import json
from pathlib import Path

from openclaw_rl.evaluation.ledger import Purpose, lost_turns, preference_score
from tests.evaluation.entries import make_entry, make_ledger

REFUSED = make_entry(opened_at=None, turn_id=None, finish_reason=None, error="HTTP 503", text="")
BROKEN = make_entry(finish_reason=None, error="ReadError", turn_id="t7")
UNFINISHED = make_entry(finish_reason=None, turn_id="t8")
HUNG_UP = make_entry(finish_reason=None, error="hung up", cancelled=True)
UNDER_WAY = make_entry(finish_reason=None, ended_at=None)


def test_an_entry_is_answered_refused_broken_or_under_way() -> None:
    states = [
        (e.answered, e.refused, e.broken) for e in (make_entry(), REFUSED, BROKEN, UNFINISHED, HUNG_UP, UNDER_WAY)
    ]
    assert states == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (False, False, True),
        (False, False, False),
        (False, False, False),
    ]


def test_second_tries_are_answers_but_no_interactions_and_closing_words_are_both() -> None:
    ledger = make_ledger(
        make_entry(interaction=0),
        make_entry(interaction=0, attempt=2),
        make_entry(interaction=1),
        make_entry(purpose=Purpose.CLOSING, interaction=None),
        make_entry(purpose=Purpose.EVALUATION, interaction=None),
        REFUSED,
        BROKEN,
    )
    assert ledger.interactions == 3
    assert ledger.answers == 4
    assert (ledger.refused_requests, ledger.broken_streams) == (1, 1)


def test_a_turn_is_lost_if_the_store_has_it_not_or_otherwise() -> None:
    ledger = make_ledger(
        make_entry(turn_id="kept", text="A poem."),
        make_entry(turn_id="missing", text="A poem."),
        make_entry(turn_id="changed", text="A poem."),
        make_entry(turn_id=None),
        make_entry(turn_id="unrecorded", purpose=Purpose.EVALUATION),
        BROKEN,
    )
    lost = lost_turns(ledger, {"kept": "A poem.", "changed": "A poem. And more."})
    assert [entry.turn_id for entry in lost] == ["missing", "changed", None]


def test_the_preference_score_is_taken_over_the_last_first_answers() -> None:
    assert preference_score(()) is None
    entries = [make_entry(interaction=i, sent_at=float(i), satisfied=i >= 2) for i in range(4)]
    ledger = make_ledger(*reversed(entries), make_entry(attempt=2, satisfied=False), make_entry(satisfied=None))
    assert [entry.interaction for entry in ledger.first_answers][:4] == [0, 1, 2, 3]
    assert preference_score(ledger.first_answers) == 0.5
    assert preference_score(ledger.first_answers[:4], window=2) == 1.0


def test_verdicts_are_those_that_were_put_into_words() -> None:
    ledger = make_ledger(
        make_entry(turn_id="a", verdict=1, reaction="Thanks."),
        make_entry(turn_id="b", verdict=-1, reaction="Shorter."),
        make_entry(turn_id="c", verdict=-1),
    )
    assert ledger.verdicts == {"a": 1, "b": -1}


def test_the_first_token_is_measured_from_the_request() -> None:
    assert make_entry(sent_at=10.0, chunk_times=[10.25, 11.0]).first_token_s == 0.25
    assert make_entry(chunk_times=[]).first_token_s is None


def test_the_ledger_is_written_a_line_each(tmp_path: Path) -> None:
    make_ledger(make_entry(text="a\nb ü"), make_entry()).write(tmp_path / "ledger.jsonl")
    lines = (tmp_path / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\nb ü", "A poem."]
