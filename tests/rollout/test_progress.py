from __future__ import annotations

from typing import Any

from openclaw_rl.rollout.progress import StallWatch, progress_of
from openclaw_rl.rollout.waiting import WaitingSamples
from openclaw_rl.store.status import Counts

NOTHING = WaitingSamples(count=0, due=False, why="0 of 8 samples")
FULL = WaitingSamples(count=8, due=True, why="8 of 8 samples")


def _counts(**values: Any) -> Counts:
    empty: dict[str, Any] = {
        "sessions": 0,
        "turns_by_state": {},
        "turns_by_reason": {},
        "judgements": 0,
        "hints": 0,
        "samples_by_state": {},
        "counters": {},
    }
    return Counts(**{**empty, **values})


def test_the_sentence_names_everything_that_is_missing() -> None:
    counts = _counts(
        turns_by_state={"awaiting_next_state": 3, "judging": 1, "excluded": 3},
        turns_by_reason={"no_next_state": 1, "greedy": 2},
    )
    waiting = WaitingSamples(count=5, due=False, why="5 of 8 samples; the oldest is 41 s old, due at 300 s")
    progress = progress_of(counts, waiting)
    assert progress.sentence() == (
        "3 turns wait for a next state, 1 is being judged; "
        "5 of 8 samples; the oldest is 41 s old, due at 300 s; excluded: 2 greedy, 1 no_next_state"
    )


def test_the_sentence_of_an_empty_store() -> None:
    progress = progress_of(_counts(), NOTHING)
    assert progress.sentence() == (
        "0 turns wait for a next state, 0 are being judged; 0 of 8 samples; excluded: none"
    )
    assert progress.waiting_for() == "requests from clients (0 of 8 samples)"
    assert progress.work is None


def test_only_what_other_loops_have_to_do_is_work() -> None:
    one = WaitingSamples(count=1, due=False, why="1 of 8 samples")
    batch = WaitingSamples(count=11, due=True, why="11 samples ready (a batch takes 8)")
    excluded = _counts(turns_by_state={"excluded": 4, "sampled": 2}, turns_by_reason={"greedy": 4})
    awaiting = _counts(turns_by_state={"awaiting_next_state": 20})
    assert progress_of(excluded, NOTHING).work is None
    assert progress_of(awaiting, one).work is None
    assert progress_of(_counts(turns_by_state={"judging": 1}), NOTHING).work is not None
    assert progress_of(awaiting, batch).work is not None
    in_training = _counts(samples_by_state={"claimed": 8, "ready": 11})
    assert progress_of(in_training, batch).work is None


def test_it_waits_for_the_loop_nearest_to_the_batch() -> None:
    both = _counts(turns_by_state={"awaiting_next_state": 1, "judging": 2})
    one = _counts(turns_by_state={"awaiting_next_state": 1})
    assert progress_of(both, FULL).waiting_for().startswith("training to take the batch")
    assert progress_of(both, NOTHING).waiting_for().startswith("judging of 2 turns")
    assert progress_of(one, NOTHING).waiting_for().startswith("a next state for 1 turn (")


def test_a_warning_comes_each_interval_and_counts_from_the_last_progress() -> None:
    watch = StallWatch(30.0, now=0.0)
    assert watch.stalled_for(29.9) is None
    assert watch.stalled_for(30.0) == 30.0
    assert watch.stalled_for(31.0) is None
    assert watch.stalled_for(60.0) == 60.0
    watch.moved(70.0)
    assert watch.stalled_for(90.0) is None
    assert watch.stalled_for(100.0) == 30.0


def test_without_work_nothing_stands_and_what_others_do_is_progress() -> None:
    watch = StallWatch(30.0, now=0.0)
    for now in (10.0, 500.0):
        watch.saw(None, now)
    assert watch.stalled_for(520.0) is None
    watch.saw((1, 0, 0, 0), 521.0)
    watch.saw((1, 0, 0, 0), 545.0)
    assert watch.stalled_for(551.0) == 30.0
    watch.saw((0, 10, 0, 4), 560.0)
    assert watch.stalled_for(585.0) is None
