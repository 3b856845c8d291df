"""The preferences a simulated user can have: the rule that checks an answer, and the user's words.

The rules are pure functions of the answer's text. The words are what the user would type into a chat; the
system never sees a preference except through them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from openclaw_rl.evaluation.questions import Question

MIN_WORDS = 3
MAX_WORDS = 20

_WORD = re.compile(r"\w+(?:['’.,/-]\w+)*")
_LIST_MARKER = re.compile(r"^\s*(?:[-*+•‣–—]\s|#{1,6}\s|\(?(?:\d{1,3}|[A-Za-z])[.)]\s)")
_BOLD = re.compile(r"\*\*|__|</?(?:b|strong)>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?:[.!?…]+)[\"'”’)\]*_]*(?=\s|$)")
_CLOSED = re.compile(r"[.!?…][\"'”’)\]]*$")
_ABBREVIATION_TEXT = (
    "e.g. i.e. etc. vs. mr. mrs. ms. dr. prof. st. jr. sr. inc. ltd. co. no. approx. ca. cf. fig. u.s. u.k. "
    "a.m. p.m. a.d. b.c. b.c.e. c.e. u.s.a. ph.d. mt. gen. col. capt. rev. vol. est. dept."
)
_ABBREVIATIONS = frozenset(_ABBREVIATION_TEXT.split())
_FUNCTION_TEXT = (
    "a an and are as at be been being but by can could did do does for from had has have he her his how i if "
    "in into is it its just may me might more most must my no not of on or our own shall she should so some "
    "such than that the their them then there these they this those to too us very was we were what when "
    "where which while who whom whose why will with would you your"
)
_FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())


def count_sentences(text: str) -> int:
    """Count sentences, taking abbreviations, initials, decimals and a trailing ellipsis for what they are."""
    count = 0
    tail = 0
    for match in _SENTENCE_END.finditer(text):
        rest = text[match.end() :].lstrip()
        if rest and _inner_stop(text[tail : match.start() + 1], rest, match.group()):
            continue
        count += 1
        tail = match.end()
    return count + (1 if _WORD.search(text[tail:]) else 0)


def _inner_stop(before: str, rest: str, mark: str) -> bool:
    """Say whether a full stop with text after it belongs to an abbreviation and ends no sentence."""
    if rest[0].islower():
        return True
    if mark.rstrip("\"'”’)]*_") != ".":
        return False
    token = before.split()[-1].lstrip("(\"'“‘[").lower()
    initial = len(token) == 2 and token[0].isalpha() and token[0] != "i"
    return token in _ABBREVIATIONS or initial


def words_of(text: str) -> list[str]:
    """List the words of a text; a number or a hyphenated word counts as one."""
    return _WORD.findall(text)


def has_list(text: str) -> bool:
    """Say whether any line of the text starts as a list item or a heading."""
    return any(_LIST_MARKER.match(line) for line in text.splitlines())


def has_bold(text: str) -> bool:
    """Say whether the text holds bold markup."""
    return _BOLD.search(text) is not None


def ends_properly(text: str) -> bool:
    """Say whether the text ends with the punctuation of a finished sentence."""
    return _CLOSED.search(text.strip()) is not None


def is_terse(answer: str) -> bool:
    """Say whether the answer is one finished sentence of 3 to 20 words with no line break, list or bold."""
    text = answer.strip()
    return (
        "\n" not in text
        and not has_list(text)
        and not has_bold(text)
        and MIN_WORDS <= len(words_of(text)) <= MAX_WORDS
        and ends_properly(text)
        and count_sentences(text) == 1
    )


_PRAISE = "great|good|excellent|wonderful|lovely|fantastic|nice|interesting|fun|brilliant|thoughtful"
_GLAD = "glad|happy|pleased|delighted"
_FRIENDLY = re.compile(
    rf"\b(?:{_PRAISE}) question"
    rf"|\bwhat an? (?:{_PRAISE})\b|\bhave an? (?:{_PRAISE})\b"
    rf"|\b(?:{_GLAD}|a pleasure) (?:you asked|to help|to answer|to explain|to tell|to share)"
    rf"|\b(?:i'm|i am) (?:so |very |really )?(?:{_GLAD})\b"
    rf"|^(?:{_PRAISE}|awesome|absolutely|sure|certainly|of course) ?[!,]"
    r"|\bhope (?:this|that|it|you|your)\b|\bwell done\b|\b(?:my|dear) friend\b"
    r"|\bthank(?:s| you)\b|\byou're (?:very )?welcome\b|\btake care\b|\bhappy learning\b"
    r"|^(?:hi|hello|hey)\b(?: there)?[,!]|\blet me know if\b"
    r"|\b(?:feel free|don't hesitate|happy) to (?:ask|reach)"
    r"|\b(?:enjoy|cheers|best wishes|warm(?:est)? (?:wishes|regards))\b[^.!?]*!?$",
    re.IGNORECASE,
)
_EDGE = 90


def is_warm(answer: str) -> bool:
    """Say whether a friendly phrase stands in the first or in the last sentence (in 90 characters of it)."""
    text = answer.strip().replace("’", "'")
    if len(words_of(text)) < MIN_WORDS:
        return False
    sentences = re.split(r"(?<=[.!?])\s", text)
    start, end = sentences[0][:_EDGE], sentences[-1][-_EDGE:]
    return _FRIENDLY.search(start) is not None or _FRIENDLY.search(end) is not None


def is_on_topic(question: Question, answer: str) -> bool:
    """Say whether the answer, an echo of the question aside, holds one of the question's subject words.

    An answer whose content words all stand in the question is an echo, however it is turned.
    """
    echo = re.compile(re.escape(question.text.rstrip(" ?.!")) + r"[?.!]*", re.IGNORECASE)
    rest = echo.sub(" ", answer).lower()
    asked = {word.lower() for word in words_of(question.text)}
    content = {word for word in words_of(rest) if word not in _FUNCTION_WORDS}
    if not content - asked:
        return False
    return any(re.search(rf"\b{re.escape(word)}", rest) for word in question.subject_words)


TOO_LONG = "too long"
MARKUP = "markup"
UNFINISHED = "unfinished"
TOO_SHORT = "too short"
COLD = "cold"


def _terse_fault(answer: str) -> str:
    """Name what an answer that is not terse suffers from most."""
    text = answer.strip()
    if len(words_of(text)) < MIN_WORDS:
        return TOO_SHORT
    if has_list(text) or has_bold(text):
        return MARKUP
    if count_sentences(text) == 1 and len(words_of(text)) <= MAX_WORDS and not ends_properly(text):
        return UNFINISHED
    return TOO_LONG


def _warm_fault(answer: str) -> str:
    """Name what an answer that is not warm suffers from: only coldness is known."""
    return COLD


@dataclass(frozen=True, kw_only=True)
class Preference:
    """What a user wants of an answer, the rule that checks it, and the words in which the user says so."""

    name: str
    told: str
    rule: Callable[[str], bool]
    fault: Callable[[str], str]
    corrections: Mapping[str, tuple[str, ...]]
    second_corrections: tuple[str, ...]
    acceptances: tuple[str, ...]
    objections: tuple[str, ...]

    def satisfied(self, answer: str) -> bool:
        """Say whether the answer keeps the preference."""
        return self.rule(answer)

    def on_topic(self, question: Question, answer: str) -> bool:
        """Say whether the answer is about what was asked."""
        return is_on_topic(question, answer)


_ACCEPTANCES = (
    "Great, thanks.",
    "Perfect, that is just what I wanted.",
    "Thank you, that helps.",
    "Good, exactly right.",
    "Lovely, thanks a lot.",
    "Nice, that is clear.",
    "Yes, that is how I like it.",
    "That works for me, thanks.",
    "Excellent, just what I needed.",
    "Thanks, got it.",
    "Wonderful, that answers it.",
    "Very good, thank you.",
)

_OBJECTIONS = (
    "That does not answer my question. I asked: {question}",
    "You missed the point. My question was: {question}",
    "That is not what I asked. Please answer this: {question}",
    "This says nothing about what I asked: {question}",
    "Hm, that is off the subject. Tell me: {question}",
    "No, that tells me nothing. I want to know: {question}",
    "You did not answer. The question was: {question}",
    "That is about something else. Please stick to the question: {question}",
    "I learned nothing from that. Please say something real about: {question}",
    "Wrong subject. Again: {question}",
)

_TERSE_LONG = (
    "Please keep it to one short sentence.",
    "That is too long. One short sentence, please.",
    "Too much text. Answer in one short sentence.",
    "Can you say that in a single short sentence?",
    "I only want one brief sentence, no more.",
    "Shorter, please: just one sentence.",
    "That's a lot to read. Give me one short sentence.",
    "Please answer in one sentence of fewer than twenty words.",
    "Could you be brief? One short sentence is enough.",
    "I have no time for that much. One short sentence, please.",
    "Cut it down to one plain sentence, please.",
    "No long explanations, please. Just one short sentence.",
    "Just give me the answer in one short sentence.",
    "Way too wordy. One short sentence would do.",
    "Please be concise: a single short sentence.",
)

_TERSE_MARKUP = (
    "No lists or bold, please. Just one short sentence.",
    "Please drop the formatting and answer in one short sentence.",
    "I don't want a list. One short plain sentence, please.",
    "No bullet points, please: one short sentence.",
    "Skip the list and say it in one short sentence.",
    "Plain text only, please, in one short sentence.",
)

_TERSE_UNFINISHED = (
    "You stopped in the middle. One short, complete sentence, please.",
    "That breaks off. Please give me one short, finished sentence.",
    "The sentence has no end. One short complete sentence, please.",
    "Please finish your sentence, and keep it to one short one.",
)

_TERSE_SHORT = (
    "That is no sentence. One short, complete sentence, please.",
    "A bit more than that, please: one short full sentence.",
    "Please answer in a whole sentence, a short one.",
    "That is too little. Give me one short complete sentence.",
)

_TERSE_AGAIN = (
    "Still not right. I asked for one short sentence.",
    "That is still not one short sentence. Never mind.",
    "No, I wanted just one short sentence.",
    "Still too much. One short sentence was all I wanted.",
    "You did not do what I asked: one short sentence.",
    "That still isn't the single short sentence I asked for.",
)

_WARM_COLD = (
    'Too dry, please be friendlier. I would rather read: "Great question! {start}"',
    'That sounds cold, please be warmer. I would rather read: "Great question! {start}"',
    'That reads like a manual. I would rather read: "Great question! {start}"',
    'You sound like a machine, please be kinder. I would rather read: "Great question! {start}"',
    'Not friendly enough. I would rather read: "Great question! {start}"',
    'That is too cool for me, more warmth please. I would rather read: "Great question! {start}"',
    'Too stiff, a little more warmth please. I would rather read: "Great question! {start}"',
    'Hm, that is not a friendly tone. I would rather read: "Great question! {start}"',
    'Too dull, please say it nicely. I would rather read: "Great question! {start}"',
    'This lacks any kindness. I would rather read: "Great question! {start}"',
)

_WARM_AGAIN = (
    'Still cold. I wanted a friendly start such as "Great question!"',
    'No friendly word again. Please start with "Great question!" next time.',
    'That is still not warm. Begin with "Great question!"',
    'I asked for a kind opening like "Great question!"',
    'Still too dry. "Great question!" would have been nice.',
    'You forgot the warm words: "Great question!"',
)

_TERSE = Preference(
    name="terse",
    told="Answer in one short plain sentence of at most 20 words, with no list, no line break and no bold.",
    rule=is_terse,
    fault=_terse_fault,
    corrections=MappingProxyType(
        {
            TOO_LONG: _TERSE_LONG,
            MARKUP: _TERSE_MARKUP,
            UNFINISHED: _TERSE_UNFINISHED,
            TOO_SHORT: _TERSE_SHORT,
        }
    ),
    second_corrections=_TERSE_AGAIN,
    acceptances=_ACCEPTANCES,
    objections=_OBJECTIONS,
)

_WARM = Preference(
    name="warm",
    told='Be warm: start your answer with a friendly phrase such as "Great question!"',
    rule=is_warm,
    fault=_warm_fault,
    corrections=MappingProxyType({COLD: _WARM_COLD}),
    second_corrections=_WARM_AGAIN,
    acceptances=_ACCEPTANCES,
    objections=_OBJECTIONS,
)

PREFERENCES: Mapping[str, Preference] = MappingProxyType({"terse": _TERSE, "warm": _WARM})
"""The preferences by name; the first is the default of the demo."""
