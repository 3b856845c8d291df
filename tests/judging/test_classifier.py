from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from openclaw_rl.judging.base import JudgeMisconfigured
from openclaw_rl.judging.cases import shipped_cases
from openclaw_rl.judging.classifier import ClassifierScorer, FeatureMaker, load_head
from openclaw_rl.judging.embedding import WIDTH, Embedder
from openclaw_rl.judging.evaluate import evaluate
from openclaw_rl.judging.features import NUMBERS, numbers, reaction_of
from openclaw_rl.judging.head import CLASSES, fit_weights, head_from_json
from openclaw_rl.judging.reaction_judge import ReactionJudge
from openclaw_rl.types import TurnState
from tests.builders import make_turn, tool, user


@pytest.fixture(scope="module")
def scorer() -> Iterator[ClassifierScorer]:
    threads = torch.get_num_threads()
    yield ClassifierScorer()
    torch.set_num_threads(threads)


def test_reaction_and_next_question_are_told_apart() -> None:
    reaction = reaction_of("Cheers, it helps. So: What is a fuse?")
    assert (reaction.words, reaction.first) == ("Cheers, it helps.", "Cheers, it helps.")
    assert reaction_of("What is a fuse?").words == "What is a fuse?"
    assert reaction_of("").words == ""


def test_numbers_by_hand() -> None:
    def measured(task: str, output: str, words: str) -> dict[str, float]:
        return dict(zip(NUMBERS, numbers(task, output, reaction_of(words)), strict=True))

    again = measured("Where do storks sleep?", "In Spain.", "Where do storks sleep??")
    assert (again["asks_only"], again["repeats_question"], again["task_in_words"], again["shouts"]) == (1, 1, 1, 1)
    denied = measured("Name a fruit.", "An onion.", "Fruit, not onion.")
    assert (denied["negated_output_word"], denied["asks_only"]) == (1, 0)
    told = measured("Order tea.", "Which sort?", "Green, thanks.")
    assert (told["answer_asked"], told["answer_asked_and_statement"]) == (1, 1)
    assert measured("a", "b", "")["bias"] == 1


def test_a_fit_finds_what_separates() -> None:
    features = torch.eye(3).repeat(5, 1)
    classes = torch.tensor([0, 1, 2]).repeat(5)
    weights = fit_weights(features, classes, l2=1e-3)
    assert (features.double() @ weights).argmax(1).tolist() == classes.tolist()
    assert torch.equal(weights, fit_weights(features, classes, l2=1e-3))


def test_the_head_survives_its_file() -> None:
    head = load_head()
    assert head_from_json(head.to_json()) == head
    assert len(head.weights) == 2 * WIDTH + len(NUMBERS) + len(head.vocabulary)
    assert {len(row) for row in head.weights} == {len(CLASSES)}


def test_embeddings_have_length_one_and_do_not_depend_on_their_batch() -> None:
    embedder = Embedder()
    both = embedder.embed(["Good.", "A much longer text about the weather in the north."])
    assert both.shape == (2, WIDTH)
    assert torch.allclose(both.norm(dim=1), torch.ones(2), atol=1e-5)
    assert torch.allclose(both[0], embedder.embed(["Good."])[0], atol=1e-5)
    assert FeatureMaker(embedder).sparse([("t", "o", "Good. Good.")], ["good", "bad"]).tolist() == [[1.0, 0.0]]


def test_a_head_for_another_encoder_is_refused() -> None:
    head = load_head()
    stale = replace(head, against={**head.against, "embedding_model": "000000000000"})
    with pytest.raises(JudgeMisconfigured, match="embedding_model"):
        ClassifierScorer(head=stale)


def test_the_judge_on_turns(scorer: ClassifierScorer) -> None:
    judge = ReactionJudge(scorer)

    def judged(*next_state: dict[str, str]) -> tuple[float | None, str | None]:
        turn = make_turn(state=TurnState.JUDGING, next_state=next_state)
        judgement = asyncio.run(judge.judge(turn))
        return judgement.score, judgement.hint

    assert judged(dict(user("Far too long, use fewer words please."))) == (
        -1.0,
        "Far too long, use fewer words please.",
    )
    assert judged(dict(user("Thanks a million, that was a lovely answer!"))) == (1.0, None)
    assert judged(dict(tool("exit code 1"))) == (-1.0, None)
    assert judged(dict(tool("exit code 1")), dict(user("Thanks, a lovely answer!")))[0] == 1.0
    assert judged() == (0.0, None)


def test_floors_on_cases_it_was_not_fitted_on(scorer: ClassifierScorer) -> None:
    feedback = asyncio.run(evaluate(ReactionJudge(scorer), shipped_cases("feedback")))
    assert (feedback.by_language["en"].accuracy_signed or 0) >= 0.85
    held = asyncio.run(evaluate(ReactionJudge(scorer), shipped_cases("held_aside")))
    assert (held.overall.accuracy_signed or 0) >= 0.85
    for report in (feedback, held):
        assert (report.hint_precision or 0) >= 0.8
        assert (report.hint_recall or 0) >= 0.8
