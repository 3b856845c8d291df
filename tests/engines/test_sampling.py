from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from openclaw_rl.serving.engines.embedded.sampling import (
    MAX_KEPT,
    NonFiniteLogits,
    Wish,
    draw,
    draw_all,
    log_probabilities,
)
from openclaw_rl.types import GREEDY_BELOW

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies(temperature: float, top_p: float, n: int = 4000) -> dict[int, float]:
    g = generator()
    drawn = Counter(draw(LOGITS, temperature=temperature, top_p=top_p, generator=g).token for _ in range(n))
    return {token: times / n for token, times in drawn.items()}


def test_frequencies_are_the_probabilities() -> None:
    found = frequencies(1.0, 1.0)
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert found[token] == pytest.approx(probability, abs=4 * math.sqrt(probability / 4000))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    found = frequencies(1.0, 0.7)  # 0.5 + 0.3 reaches 0.7
    assert found.keys() == {0, 1}
    assert found[0] == pytest.approx(0.625, abs=0.035)


def test_log_probabilities_are_of_the_distribution_drawn_from() -> None:
    for seed in range(20):
        hot = draw(LOGITS, temperature=0.5, top_p=1.0, generator=generator(seed))
        squared = [p**2 for p in (0.5, 0.3, 0.15, 0.05)]
        assert hot.logprob == pytest.approx(math.log(squared[hot.token] / sum(squared)), abs=1e-6)
        cut = draw(LOGITS, temperature=1.0, top_p=0.7, generator=generator(seed))
        assert cut.logprob == pytest.approx(math.log((0.5, 0.3)[cut.token] / 0.8), abs=1e-6)


def test_greedy_takes_the_likeliest_with_its_own_probability() -> None:
    drawn = draw(LOGITS, temperature=0.0, top_p=0.1, generator=generator())
    assert drawn.token == 0
    assert drawn.logprob == pytest.approx(math.log(0.5))


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0])
    g = generator()
    assert {draw(logits, temperature=1.0, top_p=1.0, generator=g).token for _ in range(200)} == {1, 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error(bad: float) -> None:
    with pytest.raises(NonFiniteLogits):
        log_probabilities(torch.tensor([[0.0, 1.0], [bad, 0.0]]), 1.0)


def test_kept_sets() -> None:
    def kept(**values: float) -> tuple[int, ...] | None:
        return draw(LOGITS, temperature=1.0, generator=generator(), **{"top_p": 1.0, **values}).kept  # type: ignore[arg-type]

    assert kept() is None
    assert kept(top_p=0.7) == (0, 1)
    assert kept(top_k=3) == (0, 1, 2)
    assert kept(top_k=4) is kept(top_k=99) is None  # nothing is cut
    assert kept(top_k=2, top_p=0.6) == (0,)  # 0.5 of 0.8 is 0.625
    assert kept(top_k=2, top_p=0.7) == (0, 1)


def test_log_probability_under_top_k_is_that_among_the_kept() -> None:
    for seed in range(20):
        cut = draw(LOGITS, temperature=1.0, top_p=1.0, top_k=2, generator=generator(seed))
        assert cut.logprob == pytest.approx(math.log((0.5, 0.3)[cut.token] / 0.8), abs=1e-6)


def test_kept_set_that_is_too_large_is_not_told() -> None:
    drawn = draw(torch.zeros(MAX_KEPT + 10), temperature=1.0, top_p=0.9999, generator=generator())
    assert drawn.kept is None
    assert drawn.logprob == pytest.approx(-math.log(MAX_KEPT + 9), abs=1e-3)
    assert len(draw(torch.zeros(100), temperature=1.0, top_p=0.5, generator=generator()).kept or ()) == 50


def test_rows_are_drawn_together_as_each_would_be_alone() -> None:
    """Whatever stands beside a row: greedy ones, cut ones, other temperatures, one without a distribution."""
    logits = torch.randn(6, 500, generator=generator(1)) * 3
    logits[4, 7] = math.nan
    settings = [(1.0, 1.0, 0), (0.0, 1.0, 0), (0.5, 1.0, 0), (0.7, 0.9, 0), (1.0, 1.0, 0), (1.3, 1.0, 20)]

    def wish(row: int) -> Wish:
        temperature, top_p, top_k = settings[row]
        return Wish(temperature=temperature, top_p=top_p, top_k=top_k, generator=generator(row))

    together = draw_all(logits, [wish(row) for row in range(6)])
    assert together[4] is None
    for row in (0, 1, 2, 3, 5):
        (alone,) = draw_all(logits[row : row + 1], [wish(row)])
        assert alone is not None
        assert together[row] == alone


@pytest.mark.parametrize("temperature", [1e-300, 1e-38])
def test_what_is_colder_than_anything_that_samples_takes_the_likeliest(temperature: float) -> None:
    logits = torch.tensor([1.0, 30.0, 2.0])
    drawn = draw(logits, temperature=temperature, top_p=1.0, generator=torch.Generator().manual_seed(0))
    assert (drawn.token, drawn.logprob) == (1, 0.0)
    assert torch.isfinite(log_probabilities(logits, temperature)).all()


def test_below_where_answers_are_greedy_nothing_gets_colder() -> None:
    """Two that are nearly as likely: a half of that temperature would tell them apart twice as far."""
    logits = torch.tensor([0.0, GREEDY_BELOW])
    likelier = math.log(math.e / (1 + math.e))
    for temperature in (GREEDY_BELOW, GREEDY_BELOW / 2, 1e-300):
        assert log_probabilities(logits, temperature)[1].item() == pytest.approx(likelier, abs=1e-6)
        drawn = [draw(logits, temperature=temperature, top_p=1.0, generator=generator(seed)) for seed in range(40)]
        assert {one.token for one in drawn} == {0, 1}
        logprob = next(one.logprob for one in drawn if one.token == 1)
        assert logprob == pytest.approx(likelier, abs=1e-6)
