"""What the classifier and its head see of a user's reaction: the reacting words, and plain measures of them.

A message such as "Cheers, that helps. What is a fuse?" reacts and then moves on; what it moves on to says nothing
of the answer before, so the reaction is separated from a question that follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from openclaw_rl.judging.head import digest
from openclaw_rl.judging.text import content_words, is_question, sentences, tokens

NUMBERS = (
    "bias",
    "asks_only",
    "asks_after",
    "task_in_words",
    "words_in_task",
    "repeats_question",
    "task_in_reaction",
    "output_in_reaction",
    "answer_asked",
    "answer_asked_and_statement",
    "negated_output_word",
    "short",
    "long",
    "shouts",
    "kind_sign",
    "cross_sign",
    "kind_words_zh",
    "cross_words_zh",
    "asks_for_zh",
)

_KIND_SIGNS = frozenset("👍👏❤💯🎉😀😁😂😃😄😊😍🙂🙏👌🤩🥰🥳✅🔥⭐✨💪🙌")
_CROSS_SIGNS = frozenset("👎😠😡🤬🙄😒😞😤🤦😑😕💩🚫❌🤮😩😫")
# Chinese is one character a token to the English embedding model, so the plainest words are named here.
_KIND_ZH = re.compile(
    "谢谢|感谢|多谢|很好|太好|真好|好极|不错|明白|懂了|清楚|棒|完美|赞|满意|喜欢|厉害|没问题|对的|正是|可以|好的|到位"
)
_CROSS_ZH = re.compile(
    "不对|不是|错|没有?回答|没用|不行|不好|差|听不懂|没看懂|不懂|离题|跑题|文不对题|"
    "没意思|胡说|乱|重来|没关系|不喜欢|确定吗"
)
_ASKS_ZH = re.compile(
    "请|不要|别|应该|改|换|加上|太[长短啰冷生硬复]|[长短多少]了|一点|一些|"
    "简[短单洁]|精简|缩短|我说|我要|我想|下次|字以内|说重点|再"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reaction:
    """The user's words (`whole`), those that react to the answer (`words`), and the first sentence of these."""

    whole: str
    words: str
    first: str


def reaction_of(text: str) -> Reaction:
    """Separate the reaction from questions that follow it; a message of questions only reacts with all of it."""
    parts = sentences(text)
    if not parts:
        return Reaction(whole=text, words=text, first=text)
    kept = [
        part for index, part in enumerate(parts) if not is_question(part) or (index == 0 and len(part.split()) < 3)
    ]
    if not kept:
        kept = parts
    if kept[-1].endswith(":") and len(kept) > 1:
        kept = kept[:-1]
    return Reaction(whole=text, words=" ".join(kept), first=parts[0])


def ngrams(words: str, first: str) -> set[str]:
    """Words, pairs of neighbours, and the first word marked as such."""
    found = tokens(words)
    pairs = {f"{a}_{b}" for a, b in pairwise(found)}
    opening = {f"^{token}" for token in tokens(first)[:1]}
    return set(found) | pairs | opening


def numbers(task: str, output: str, reaction: Reaction) -> list[float]:
    """The plain measures named in `NUMBERS`, each between 0 and 1."""
    asked, given = content_words(task), content_words(output)
    whole, words = content_words(reaction.whole), content_words(reaction.words)
    parts = sentences(reaction.whole)
    questions = [part for part in parts if is_question(part)]
    covered = _share(asked, whole)
    last = content_words(parts[-1]) if parts else set()
    repeats = float(bool(asked) and (_share(asked, last) >= 0.75 or _share(asked, whole) >= 0.75))
    asking = float(output.rstrip().endswith(("?", "？")))
    statement = float(not questions)
    letters = [char for char in reaction.whole if char.isalpha() and char.isascii()]
    return [
        1.0,
        float(bool(parts) and len(questions) == len(parts)),
        float(bool(questions) and len(questions) < len(parts)),
        covered,
        _share(whole, asked),
        repeats,
        _share(asked, words),
        _share(words, given),
        asking,
        asking * statement,
        _negated(reaction.words, given),
        float(len(tokens(reaction.words)) <= 2),
        float(len(tokens(reaction.words)) > 12),
        float("!!" in reaction.whole or "??" in reaction.whole or _shouted(letters)),
        float(bool(_KIND_SIGNS & set(reaction.whole))),
        float(bool(_CROSS_SIGNS & set(reaction.whole))),
        float(_KIND_ZH.search(reaction.words) is not None),
        float(_CROSS_ZH.search(reaction.words) is not None),
        float(_ASKS_ZH.search(reaction.words) is not None),
    ]


def _share(part: set[str], whole: set[str]) -> float:
    return len(part & whole) / len(part) if part else 0.0


def _negated(words: str, given: set[str]) -> float:
    found = tokens(words)
    after = {word for a, word in pairwise(found) if a in {"not", "no", "不"}}
    return float(bool(content_words(" ".join(after)) & given))


def _shouted(letters: list[str]) -> bool:
    return len(letters) >= 4 and sum(char.isupper() for char in letters) > 0.7 * len(letters)


def behaviour_digest(examples: Iterable[tuple[str, str, str]]) -> str:
    """A hash of what this module makes of examples, for a head to be checked against: same hash, same features."""
    seen = []
    for task, output, words in examples:
        reaction = reaction_of(words)
        rounded = [round(value, 6) for value in numbers(task, output, reaction)]
        seen.append([rounded, sorted(ngrams(reaction.words, reaction.first))])
    return digest(json.dumps(seen))
