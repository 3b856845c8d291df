"""The leak check: does a hint say how to answer, or does it say the answer?

The teacher reads the hint and then scores the very tokens of the answer. A hint that gives the answer away makes the
teacher an oracle for this one question, and a hint that repeats the answer's own words makes it copy them whatever
they are worth; neither teaches anything that holds for the next question. What counts as the answer:

- **a stated value** (`states_answer`), where the task asks for a value: a name, a number or another new word that the
  hint states as what is so (`stated_values`);
- **a passage** (`quotes_answer`): quoted or fenced text of the length of an answer, whoever wrote it;
- **the response** (`copies_response`): a run of its words that the task does not hold; and, where an answer was
  accepted or is known from elsewhere, all of it, however short.

Where the task asks for a text ("write", "explain"), a word or a number in a hint is a requirement and no answer. All
of it is by rule, takes microseconds, and errs on the side of refusing: a lost hint costs little, an oracle teaches
what is not so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from openclaw_rl.judging.stated_values import asks_for_a_value, states_value
from openclaw_rl.judging.text import is_cjk, sentences, tokens

STATES_ANSWER = "states_answer"
QUOTES_ANSWER = "quotes_answer"
COPIES_RESPONSE = "copies_response"

MAX_RUN = 8
"""Words in a row that make a run; a Chinese character counts as half a word."""
MAX_QUOTE = 12
"""Words from which on a quotation is an answer and no longer a phrase to use."""

_PASSAGE = re.compile(r"```(?:\w*\n)?(.*?)```|\"([^\"]+)\"|“([^”]+)”|「([^」]+)」|『([^』]+)』|`([^`]+)`", re.DOTALL)


def leak(hint: str, *, task: str, response: str, accepted: Sequence[str] = ()) -> str | None:
    """How `hint` gives the answer away, as a word for the counters, or None.

    Args:
        hint: one candidate.
        task: what the turn was asked.
        response: what it answered, accepted or not.
        accepted: answers that are known to be right: a response that the user took, an environment's solution.
    """
    if any(_contains(hint, answer, task) for answer in accepted) or _shares_run(hint, response, task):
        return COPIES_RESPONSE
    if any(sum(map(_weight, tokens(passage))) >= MAX_QUOTE for passage in _passages(hint)):
        return QUOTES_ANSWER
    if asks_for_a_value(task) and any(states_value(part, task) for part in sentences(hint, at_colons=False)):
        return STATES_ANSWER
    return None


def _passages(text: str) -> Iterator[str]:
    for match in _PASSAGE.finditer(text):
        yield next(group for group in match.groups() if group is not None)


def _weight(token: str) -> float:
    return 0.5 if is_cjk(token) else 1.0


def _shares_run(hint: str, answer: str, task: str) -> bool:
    """Whether a run of the answer's words stands in the hint; what the task holds anyway is no answer."""
    said, whole, asked = tokens(hint), _joined(tokens(answer)), _joined(tokens(task))
    for start in range(len(said)):
        end, weight = start, 0.0
        while end < len(said) and weight < MAX_RUN:
            weight += _weight(said[end])
            end += 1
        run = _joined(said[start:end])
        if weight >= MAX_RUN and run in whole and run not in asked:
            return True
    return False


def _contains(hint: str, answer: str, task: str) -> bool:
    """Whether the hint holds a known answer: all of a short one, or a run of a long one."""
    words = tokens(answer)
    if not set(words) - {"?", "!"}:
        return False
    whole = _joined(words)
    return (whole in _joined(tokens(hint)) and whole not in _joined(tokens(task))) or _shares_run(hint, answer, task)


def _joined(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "
