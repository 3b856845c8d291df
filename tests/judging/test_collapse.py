from __future__ import annotations

from openclaw_rl.judging.collapse import ScoreWatch
from openclaw_rl.types import JudgementOutcome, TurnState
from tests.builders import make_judgement, make_turn, user

TURN = make_turn(state=TurnState.JUDGING, next_state=(user("ok"),))
EMPTY = make_turn(state=TurnState.JUDGING, next_state=(user(" "),))


def test_equal_scores_warn_once_and_say_what_to_check() -> None:
    watch = ScoreWatch(4)
    assert [watch.saw(make_judgement(score=0.5), turn) for turn in (TURN, EMPTY, EMPTY, TURN, TURN)] == [
        False, False, False, True, False,
    ]  # fmt: skip
    assert watch.warning is not None
    for words in ("last 4 scores", "about +0.50", "next state empty (in 2 of them)", "prompt", "enough votes"):
        assert words in watch.warning


def test_scores_that_differ_do_not_warn_and_end_a_warning() -> None:
    watch = ScoreWatch(3)
    for score in (0.5, 0.51, 0.49):
        watch.saw(make_judgement(score=score), TURN)
    assert watch.warning is not None
    assert not watch.saw(make_judgement(score=-1.0), TURN)
    assert watch.warning is None
    for _ in range(2):
        watch.saw(make_judgement(score=1.0), TURN)
    assert watch.warning is None


def test_no_score_is_no_score() -> None:
    watch = ScoreWatch(2)
    for _ in range(5):
        assert not watch.saw(make_judgement(outcome=JudgementOutcome.TIE), TURN)
    assert watch.warning is None
