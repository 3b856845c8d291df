"""Who says what when: the conversations against a server that answers as told."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from openclaw_rl.evaluation.conversations import (
    ConversationOptions,
    Conversations,
    InteractionBudget,
    request_seed,
)
from openclaw_rl.evaluation.ledger import Ledger, Purpose
from openclaw_rl.evaluation.preferences import PREFERENCES
from openclaw_rl.evaluation.questions import TRAINING_QUESTIONS
from openclaw_rl.evaluation.simulated_user import SimulatedUser
from openclaw_rl.evaluation.talker import talker
from tests.evaluation.fake_api import REFUSE, FakeApi, serving

WORDY = "This is a long story.\n- It has a list.\n- And more of it."


def hold(answer: Callable[[dict[str, Any]], str], **values: Any) -> tuple[Ledger, FakeApi]:
    options = ConversationOptions(**{"interactions": 6, "words_per_second": 1000.0, **values})
    user = SimulatedUser(PREFERENCES["terse"], random.Random(1), session_lengths=(2, 3))

    async def go() -> tuple[Ledger, FakeApi]:
        ledger = Ledger()
        async with serving(FakeApi(answer, delay_s=0.002)) as api:
            async with talker(api.url, ledger=ledger, timeout_s=10.0) as client:
                await Conversations(client, user, options).hold()
            return ledger, api

    return asyncio.run(go())


def good_answer(body: dict[str, Any]) -> str:
    """A short sentence that holds a subject word of the last question asked."""
    asked = body["messages"][-1]["content"]
    words = {q.text: q.subject_words[0] for q in TRAINING_QUESTIONS}
    found = [word for text, word in words.items() if text in asked]
    return f"It has much to do with {found[0]}." if found else "You are welcome."


def test_a_content_user_asks_once_and_parts_with_thanks_or_in_silence() -> None:
    ledger, api = hold(good_answer, threads=1, interactions=20)
    questions = ledger.select(lambda e: e.purpose is Purpose.QUESTION)
    closings = ledger.select(lambda e: e.purpose is Purpose.CLOSING)
    assert [e.attempt for e in questions] == [1] * len(questions)
    assert ledger.interactions == 20 == len(questions) + len(closings)
    assert all(e.verdict == 1 and e.satisfied and e.on_topic for e in questions)
    sessions = {e.session: e for e in questions}  # the last question of each
    thanked = {e.session for e in closings}
    assert 0 < len(closings) < len(sessions)
    assert all((last.reaction is not None) == (session in thanked) for session, last in sessions.items())
    assert all(e.reaction for e in questions if e is not sessions[e.session])
    done = [seen for seen in api.seen if seen.headers.get("x-session-done")]
    assert [seen.body["max_tokens"] for seen in done] == [8] * len(closings)
    assert all(seen.body["messages"][-1]["content"] in PREFERENCES["terse"].acceptances for seen in done)


def test_each_request_carries_the_whole_session_so_far() -> None:
    _, api = hold(good_answer, threads=3)
    sessions = defaultdict(list)
    for seen in api.seen:
        sessions[seen.headers["x-session-id"]].append(seen)
    assert len(sessions) >= 2
    for requests in sessions.values():
        for earlier, later in pairwise(requests):
            expected = [*earlier.body["messages"], {"role": "assistant", "content": earlier.answer}]
            assert later.body["messages"][:-1] == expected
            assert later.body["messages"][-1]["role"] == "user"


def test_a_user_who_is_never_content_tries_again_within_twice_the_interactions() -> None:
    ledger, _ = hold(lambda body: WORDY)
    assert ledger.interactions == 6
    assert ledger.answers == 12
    seconds = ledger.select(lambda e: e.attempt == 2)
    firsts = ledger.first_answers
    assert seconds
    assert {e.interaction for e in seconds} <= {e.interaction for e in firsts}
    assert all(e.verdict == -1 for e in (*firsts, *seconds))


def test_several_sessions_are_open_at_once() -> None:
    _, api = hold(good_answer, threads=2, interactions=8)
    assert api.most_open == 2


def test_a_failed_request_ends_its_session_and_no_other() -> None:
    calls = iter([REFUSE])
    ledger, _ = hold(lambda body: next(calls, None) or good_answer(body), threads=1, interactions=10)
    refused = ledger.select(lambda e: e.refused)
    assert len(refused) == 1
    assert [e for e in ledger if e.session == refused[0].session] == [refused[0]]
    assert ledger.answers > 4


def test_closing_words_are_an_interaction_too() -> None:
    ledger, _ = hold(good_answer, threads=1, interactions=30)
    closings = ledger.select(lambda e: e.purpose is Purpose.CLOSING)
    questions = ledger.select(lambda e: e.purpose is Purpose.QUESTION and e.attempt == 1)
    assert closings
    assert len(closings) + len(questions) == 30 == ledger.interactions


def test_the_budget_ends() -> None:
    budget = InteractionBudget(2)
    assert not budget.spent
    assert [budget.take() for _ in range(3)] == [True, True, False]
    assert budget.spent


def test_a_user_who_was_refused_twice_goes_on_in_another_chat() -> None:
    ledger, _ = hold(lambda body: WORDY, threads=1, interactions=12)
    questions = defaultdict(set)
    for entry in ledger:
        questions[entry.session].add(entry.interaction)
    assert all(len(asked) == 1 for asked in questions.values())
    assert {i for asked in questions.values() for i in asked} == set(range(12))


def test_every_request_has_a_seed_of_its_own() -> None:
    seeds = [request_seed(seed, i, attempt) for seed in range(3) for i in range(48) for attempt in (1, 2, 3)]
    assert len(set(seeds)) == len(seeds)
    assert request_seed(1, 2, 1) == request_seed(1, 2, 1)
