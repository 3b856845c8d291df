"""Hints: where they are put for the teacher, and how a user's own correction becomes one.

A hint is what would have helped *before* the answer. Where no judge can write one, the user's words that correct or
instruct are the hint; thanks, the next question, a repeated question and bare displeasure teach nothing and are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from openclaw_rl.judging.text import content_text, content_words, is_question, sentences
from openclaw_rl.types import Message

HINT_BLOCK = "\n\n[hint] {hint} [/hint]"
"""How a hint is marked in the teacher's prompt; the wording lives here and nowhere else."""
_SYSTEM = frozenset({"system", "developer"})
MAX_HINT_SENTENCES = 3
MAX_HINT_CHARS = 400


Placement = Literal["user", "system"]


def insert_hint(messages: Sequence[Message], hint: str, placement: Placement = "user") -> tuple[Message, ...]:
    """Put a hint into the context of a turn, for the teacher to read; the messages given are left as they are.

    `user`: it follows the content of the last user message, also where tool calls and results come after that
    message: no template refuses a longer user message, while some refuse a note after a tool result. Without a user
    message it follows the leading system message, and without that it becomes a user message at the end.

    `system`: it follows the content of the leading system message, or becomes one at the beginning: many templates
    refuse a system message in any other place. (A template that has a system text of its own leaves that text out
    where there is a system message.)
    """
    block = HINT_BLOCK.format(hint=hint.strip())
    roles = [message.get("role") for message in messages]
    leading = bool(roles) and roles[0] in _SYSTEM
    if placement == "user" and "user" in roles:
        place = len(roles) - 1 - roles[::-1].index("user")
    elif leading:
        place = 0
    elif placement == "system":
        return ({"role": "system", "content": block.strip()}, *messages)
    else:
        return (*messages, {"role": "user", "content": block.strip()})
    changed = {**messages[place], "content": _with_block(messages[place].get("content"), block)}
    return (*messages[:place], changed, *messages[place + 1 :])


def _with_block(content: Any, block: str) -> Any:
    if isinstance(content, str) and content:
        return content + block
    if isinstance(content, Sequence) and content:
        return [*content, {"type": "text", "text": block}]
    return block.strip()


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# The first sentence accepts the answer: what follows is the next task.
_ACCEPTS = _any_of(
    r"^\W*(?:(?:ok(?:ay)?|oh|ah|yes|yep|well|that'?s|that is|this is|it'?s|very|so|really|all|"
    r"just)[\s,.!]+)*(?:many |much )?(?:thanks?|thank you|thx|cheers|great|good|perfect|lovely|nice(?:ly)?|"
    r"excellent|wonderful|awesome|super|brilliant|fantastic|amazing|cool|works?|right|exactly|correct|fine|"
    r"got it|i see|understood|makes sense|clear|helpful|beautiful|splendid|neat|i (?:like|love)|love it|"
    r"better)\b(?!.*\b(?:but|however|except|though|for nothing)\b)",
    r"^\W*(?:谢谢|感谢|多谢|很好|太好|不错|非常好|好的|明白|懂了|清楚|完美|对的|赞|可以)",
)
# Displeasure, doubt or an objection that says nothing of what the answer should have been.
_BARE = _any_of(
    r"^\W*(?:(?:no|nope|nah|hm+|huh|what|ugh|meh|sorry|well|please|still|just|really|seriously|again)\W*)+$",
    r"^\W*(?:no[,.! ]+)?(?:(?:that|this|it|you|which)(?:'s| is| was| are|'re)? )?(?:still |just |so |all |"
    r"simply |completely )*(?:wrong|incorrect|false|bad|awful|terrible|useless|nonsense|pointless|irrelevant|"
    r"boring|confusing|off[- ]topic|not (?:right|correct|true|good|helpful|useful|it|quite|again|an answer|"
    r"really|the same|what|about|my question|the question))\b[^:]*$",
    r"^\W*wrong (?:subject|topic|question|answer)\b[^:]*$",
    r"\boff (?:the |my )?(?:topic|subject|point)\b",
    r"\b(?:does|did|do|has|have|are|is|was)(?:n't| not) (?:really |even |actually )?(?:answer(?:ed|ing)?|"
    r"address(?:ed)?|tell|told|say|said|explain(?:ed)?|help(?:ed)?|what i (?:asked|meant|wanted|said)|"
    r"listen)\b",
    r"\byou (?:\w+ )?(?:missed|dodged|ignored|avoid(?:ed)?|misunderstood|misread|are avoiding|evaded)\b",
    r"\b(?:tells?|told|says?|said|learned|learnt|explains?|know|found) (?:me )?(?:nothing|no more|absolutely "
    r"nothing)\b",
    r"\b(?:has|have|had) nothing to do with\b",
    r"\bnothing (?:in|of|about) (?:there|that|this|it|what)\b",
    r"\bmisse[sd] (?:the|my) (?:point|question)\b",
    r"\b(?:about|answered) (?:something|anything) (?:else|different)\b",
    r"\bsomething else entirely\b",
    r"\bbeside the (?:point|question)\b",
    r"\b(?:stick to|stay on|keep to|answer|read|back to) (?:me|it|again|(?:the|my|this) (?:question|subject|"
    r"topic|point)|what i\b)",
    r"\b(?:don't|do not|didn't|did not|can't|cannot) (?:understand|know|think|do|open|send|see|get|follow|"
    r"like|believe|think so|find an answer)\b",
    r"\b(?:my|the) question (?:was|is)\b",
    r"\bi (?:want(?:ed)?|would like|need(?:ed)?) to (?:know|hear about)\b",
    r"\bi asked (?:how|what|why|who|when|where|about)\b",
    r"\b(?:are you sure|(?:check|try|think|look|read) (?:it |that )?again|double[- ]check|verify)\b",
    r"^\W*(?:as if|stop (?:it|that))\b",
    r"\b(?:never mind|forget it|waste of)\b",
    r"^\W*(?:不对|错了|不行|没用|不好|答非所问|跑题了?|离题了?|重来|还是不对|太差了|不喜欢|真?没用|听不懂|没看懂)\W*$",
    r"没有?回答",
    r"我问的不?是",
    r"没关系",
    r"不是这个意思",
    r"不是我要的",
)
_VERB_LIST = """
add address adjust answer apologi[sz]e apply avoid be begin bring call change choose compress condense
continue convert correct cut delete describe drop elaborate end exclude expand explain finish fix focus
follow format get give go greet highlight include insert keep leave let limit list loosen lower make mark
mention move name offer omit only open pick prefer put quote reduce reformat remove rename reorder repeat
rephrase replace reply respond restore revert rewrite round run say send separate set shorten show sign
simplify skip sound speak spell split start state stick stop structure sum summari[sz]e swap switch take
tell translate trim try turn update use wrap write
"""
_VERBS = "|".join(_VERB_LIST.split())
# A sentence that says what should be, or what is wrong in a way that says what should be.
_INSTRUCTS = _any_of(
    r"^\W*(?:(?:no|please|just|and|then|so|but|again|next time|from now on|also|always|ok(?:ay)?|"
    rf"stop)[\s,:!]+)*(?:{_VERBS})\b",
    r"\bplease\b",
    r"\bi (?:meant|mean|said|asked for|wanted|want|need|needed|prefer|only|told|can't|cannot)\b",
    r"\bi'd (?:like|prefer|love|rather)\b",
    r"\bi would (?:like|prefer|rather)\b",
    r"\bi have no\b",
    r"\b(?:should|must|needs? to|has to|ought to|rather)\b",
    r"\bdon't\b",
    r"\bdo not\b",
    r"\bnever\b",
    r"\bwithout\b",
    r"\binstead\b",
    r"\byou mean\b",
    r"\bwould be (?:nice|nicer|better|easier|good|enough)\b",
    r"\b(?:didn't|did not) ask for\b",
    r", no \w+",
    r"\bplenty\b",
    r"\bnext time\b",
    r"\bfrom now on\b",
    r"\benough\b",
    r"\bat (?:most|least)\b",
    r"\b(?:fewer|less|more) (?:than )?\w+",
    r"\btoo \w+",
    r"\bway too\b",
    r"^\W*(?:no,? )?(?:not? |only |just |without |in |as )\w+",
    r"\bnot (?:a|an|one|the|so|as|in|by|on|from|to|per)\b",
    r"\w, not \w",
    r"^\W*(?:no[,.! ]+)?(?:it|that|he|she|they)(?:'s| is| was| should|'re| were)\b(?! (?:not|n't|so|still|"
    r"just|really)\b)",
    r"^\W*(?:a single|a|one|two|three|four|five|six|\d+)\b[^.]{0,60}\W*$",
    r"^\W*\w+er\b[^.]{0,40}\W*$",
    r"\b(?:could|would) you\b",
    r"\b(?:can|could) (?:you|i|we)\b",
    r"\byou (?:forgot|left|skipped|stopped|broke|mixed|changed|moved|sound|seem|come|write|wrote|used?|gave|"
    r"still|did it)\b",
    r"\b(?:sounds?|reads? like|looks like|feels|lacks?|is missing|breaks off|has no|is unfinished|was cut off|"
    r"a lot)\b",
    r"\blittle\b",
    r"请",
    r"不要",
    r"别",
    r"应该",
    r"改",
    r"换",
    r"加",
    r"要",
    r"太.{1,6}",
    r"再",
    r"短",
    r"我说的?是",
    r"写",
    r"下次",
    r"说明",
    r"用",
    r"控制",
    r"补",
    r"是.{1,8}，?不是",
    r"反了",
    r"一点",
    r"一些",
    r"先",
)
# A question that is a request.
_REQUEST = _any_of(
    r"^\W*(?:please |and |but |so )?(?:can|could|would|will|may|might) (?:you|i|we)\b",
    r"\bwould you\b",
    r"\bcould you\b",
    r"能不能",
    r"可以.{0,8}吗",
    r"能否",
)
# Words that lead over to the next question, or that quote the last one.
_BRIDGE = _any_of(
    r"^\W*(?:\w+\W+){0,3}?(?:next|another|now|also|then|again|more|else|question|anyway|onwards?|on|asked|"
    r"about|know|hear|tell me|this)\b[^:]{0,24}:\s+",
    r"^\W*(?:那么|下一个|下一题|接着)",
)


def corrective_part(next_state: Sequence[Message], *, task: str = "") -> str | None:
    """The user's own words that correct or instruct, as a hint; None where nothing in them does.

    Only user messages are read. With `task`, sentences that repeat the question asked are left out too.
    """
    text = "\n".join(content_text(message) for message in next_state if message.get("role") == "user")
    parts = sentences(text, at_colons=False)
    if not parts or _ACCEPTS.search(parts[0]):
        return None
    kept = [part for part in map(_instruction, parts) if part is not None and not _repeats(part, task)]
    hint = ""
    for part in kept[:MAX_HINT_SENTENCES]:
        joined = f"{hint} {part}".strip()
        if len(joined) > MAX_HINT_CHARS:
            break
        hint = joined
    return hint or None


def _instruction(sentence: str) -> str | None:
    """The part of a sentence that corrects or instructs, or None."""
    if is_question(sentence):
        return sentence if _REQUEST.search(sentence) and not _BRIDGE.search(sentence) else None
    lead, colon, rest = sentence.partition(":")
    if colon and (_BARE.search(lead) or _BRIDGE.search(sentence)):
        return rest.strip() if not _BRIDGE.search(sentence) and _INSTRUCTS.search(rest) else None
    if _BARE.search(sentence) or not _INSTRUCTS.search(sentence):
        return None
    return sentence


def _repeats(sentence: str, task: str) -> bool:
    asked = content_words(task)
    return len(asked) >= 2 and len(asked & content_words(sentence)) >= 0.75 * len(asked)
