from __future__ import annotations

import random

from openclaw_rl.judging.breaker import FIRST_PAUSE_S, MAX_ASKED_PAUSE_S, MAX_PAUSE_S, CircuitBreaker


def open_breaker(now: float = 100.0) -> CircuitBreaker:
    breaker = CircuitBreaker(random.Random(0))
    breaker.failed("timeout", now)
    return breaker


def test_closed_it_lets_all_workers_in() -> None:
    breaker = CircuitBreaker()
    assert [breaker.allowance(4, running, 0.0) for running in (0, 3, 4, 5)] == [4, 1, 0, 0]


def test_open_it_lets_nobody_in_and_half_open_one() -> None:
    breaker = open_breaker()
    assert breaker.outage is not None
    following = breaker.outage.next_try_at
    assert 100.0 + FIRST_PAUSE_S / 2 <= following <= 100.0 + FIRST_PAUSE_S
    assert breaker.allowance(4, 0, following - 0.01) == 0
    assert breaker.allowance(4, 0, following) == 1
    assert breaker.allowance(4, 1, following) == 0


def test_what_was_under_way_does_not_lengthen_the_pause() -> None:
    breaker = open_breaker()
    first = breaker.outage
    assert breaker.failed("connection", 100.1) == first


def test_each_failed_probe_doubles_the_pause_up_to_a_limit() -> None:
    breaker, now = open_breaker(), 100.0
    pauses = []
    for _ in range(12):
        assert breaker.outage is not None
        pauses.append(breaker.outage.next_try_at - now)
        now = breaker.outage.next_try_at
        breaker.failed("timeout", now)
    for number, pause in enumerate(pauses):
        whole = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**number)
        assert whole / 2 <= pause <= whole
    assert breaker.outage is not None
    assert breaker.outage.since == 100.0


def test_success_closes_it_and_forgets() -> None:
    breaker = open_breaker()
    ended = breaker.succeeded()
    assert ended is not None
    assert ended.since == 100.0
    assert breaker.succeeded() is None
    assert breaker.allowance(2, 0, 100.0) == 2
    assert breaker.failed("timeout", 200.0).failed_tries == 1


def test_retry_after_is_honoured_within_reason() -> None:
    breaker = CircuitBreaker()
    assert breaker.failed("status_429", 0.0, 60.0).next_try_at == 60.0
    assert breaker.failed("status_429", 60.0, 1e9).next_try_at == 60.0 + MAX_ASKED_PAUSE_S


def test_the_sentence_says_since_when_why_and_until_when() -> None:
    breaker = CircuitBreaker()
    outage = breaker.failed("status_503", 1000.0, 10.0)
    assert "which is down since" in outage.sentence(1004.0)
    assert outage.sentence(1004.0).endswith("(status_503); next try in 6 s")
    assert outage.sentence(1010.0).endswith("it is tried now")
