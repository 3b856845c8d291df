"""Which hint candidates may teach. A candidate is refused for one reason, which is counted:

    no_words         nothing that could be read as words
    too_long         more than three sentences, or more than 600 characters
    markers          a judge's own marks in it: it is no hint but something that went wrong
    empty_talk       "Do better.", "Read the question again.": nothing that says what to do
    repeats_task     only words of the task
    states_answer    gives the answer away (`leaks`), as do quotes_answer and copies_response

What is accepted stays, longest first: the first is the hint, the others wait beside it for a trainer that chooses by
overlap. Judges check the form; the leak check comes after them, so that `judge try` measures what a judge found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from openclaw_rl.judging.base import output_of, task_of
from openclaw_rl.judging.leaks import leak
from openclaw_rl.judging.text import content_words, is_cjk, sentences, tokens
from openclaw_rl.types import HUMAN, Judgement, Turn

MAX_SENTENCES = 3
MAX_CHARS = 600

REFUSED = "hints_refused"
"""The key in a judgement's details: reason to number of candidates."""

_MARKERS = re.compile(r"\\boxed|\[/?HINT(?:_START|_END)?\]|</?think>", re.IGNORECASE)
_EMPTY_LIST = """
accurate accurately actually address again ai aim always answer answering answers asked assistant attention avoid bad
best better careful carefully clearly correct correctly do does effort ensure error errors everything expectations
expected focus follow give giving good great harder help helpful high improve improved instructions intent job like
make mistake mistakes model more much need needed needs next pay poor proper properly provide quality question
questions read really reply request respond response right satisfy something sure task things think time try
understand user users useful very want wanted wants well what work wrong
"""
_EMPTY = frozenset(content_words(_EMPTY_LIST))
_EMPTY_CJK = re.compile(
    r"回答|答案|用户|问题|正确|更好|好好|认真|仔细|努力|准确|质量|提高|满足|需求|需要|应该|应当|注意|下次|重新|一点|一些|"
    r"[请要更好再试做的地得了吧更你我]"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """What is left of some candidates, longest first, and how many were refused for which reason."""

    accepted: tuple[str, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)


def sift(candidates: Iterable[str], refusal: Callable[[str], str | None]) -> Candidates:
    """Keep the candidates that `refusal` has no reason against; one that says the same as another goes uncounted."""
    kept: dict[tuple[str, ...], str] = {}
    refused: Counter[str] = Counter()
    for candidate in candidates:
        reason = refusal(candidate)
        if reason is None:
            kept.setdefault(tuple(tokens(candidate)) or (candidate,), candidate)
        else:
            refused[reason] += 1
    return Candidates(accepted=tuple(sorted(kept.values(), key=len, reverse=True)), refused=dict(refused))


def malformed(hint: str, *, task: str) -> str | None:
    """Why a candidate cannot teach whatever the answer was, as a word for the counters, or None."""
    if not any(character.isalnum() for character in hint):
        return "no_words"
    if len(hint) > MAX_CHARS or len(sentences(hint)) > MAX_SENTENCES:
        return "too_long"
    if _MARKERS.search(hint):
        return "markers"
    if _in_other_scripts(hint):  # no word lists for these
        return None
    telling = _words(_EMPTY_CJK.sub(" ", hint)) - _EMPTY
    if not telling:
        return "empty_talk"
    return "repeats_task" if telling <= _words(task) else None


def screened(judgement: Judgement, turn: Turn) -> Judgement:
    """The judgement with only those hints that may teach; its details say what was refused."""
    if not judgement.hints:
        return judgement
    task, response = task_of(turn), output_of(turn)
    liked = judgement.score is not None and judgement.score > 0

    def refusal(hint: str) -> str | None:
        accepted = (response,) if liked else ()
        return malformed(hint, task=task) or leak(hint, task=task, response=response, accepted=accepted)

    hints = judgement.hints if judgement.kind != HUMAN else tuple(map(shortened, judgement.hints))
    found = sift(hints, refusal)
    refused = Counter(judgement.details.get(REFUSED, {})) + Counter(found.refused)
    return replace(
        judgement,
        hint=next(iter(found.accepted), None),
        alternatives=found.accepted[1:],
        details={**judgement.details, REFUSED: dict(refused)} if refused else judgement.details,
    )


def shortened(comment: str) -> str:
    """The first sentences of what a person wrote, as many as a hint may have."""
    kept = ""
    for sentence in sentences(comment, at_colons=False)[:MAX_SENTENCES]:
        joined = f"{kept} {sentence}".strip()
        if len(joined) > MAX_CHARS:
            break
        kept = joined
    return kept or comment[:MAX_CHARS]


def _words(text: str) -> set[str]:
    """Content words, and Chinese characters one by one: pairs would span what was taken out between them."""
    return {word for word in content_words(text) if not is_cjk(word)} | set(filter(is_cjk, tokens(text)))


def _in_other_scripts(text: str) -> bool:
    """Whether most letters are of neither the Latin nor the Chinese script."""
    letters = [character for character in text if character.isalpha()]
    other = [letter for letter in letters if ord(letter) > 0x24F and not is_cjk(letter)]
    return 2 * len(other) > len(letters)
