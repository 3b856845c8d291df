"""Does a sentence state the value that a question asks for? "Canberra, not Sydney." does; "Shorter." does not.

By the form of question and sentence, in English and Chinese. No dictionary of facts is needed: what is stated is new
(the question does not hold it), and is neither a word of form or tone ("shorter", "in Spanish", "20 words"), nor what
is denied ("not Sydney"), nor an instruction.
"""

from __future__ import annotations

import re

from openclaw_rl.judging.text import is_cjk, sentences, tokens

# --- questions ---------------------------------------------------------------------------------------------

_LEAD = (
    r"^\W*(?:(?:so|and|now|please|next|also|tell me|say|just|(?:can|could|would) you (?:please )?tell me|do you know|"
    r"i want to know)[\s,:]+)*"
)
_ASKS = re.compile(
    _LEAD + r"(?:"
    r"(?:(?:in|on|at|by|to|from|of|for|with|until|since) )?(?:who|whom|whose|when|where|which)\b"
    r"|(?:in |on )?what (?:year|day|date|time|month|century|colou?r|number|name|word|age|size|country|city|"
    r"language|element)\b"
    r"|what(?:'s| is| was| are| were| would be) (?:the|its|his|her|their|\d)\b"
    r"|(?:for |by )?how (?:many|much|old|far|long|tall|big|high|heavy|often|fast|deep|hot|cold|wide|large|late|"
    r"soon)\b"
    r"|what do(?:es)? .{1,40} (?:mean|equal|call|cost|weigh)\b"
    r"|(?:compute|calculate|solve|convert|evaluate|translate|spell|name|count|add|multiply|divide)\b"
    r")|谁|哪|几|多少|何时|多[大高远长重快深久]|什么时候|什么颜色|叫什么|的.{0,8}是什么|计算|求|翻译|等于",
    re.IGNORECASE,
)


def asks_for_a_value(task: str) -> bool:
    """Whether a task asks for a value (a name, a number, a word) and not for a text, by the form of its sentences."""
    return any(_ASKS.search(part.replace("’", "'")) for part in sentences(task))


# --- words -------------------------------------------------------------------------------------------------

_FORM_LIST = """
answer answers answered reply response text sentence sentences word words line lines paragraph paragraphs bullet
bullets list lists table item items point points step steps example examples character characters syllable syllables
digit digits decimal decimals place places page pages heading headings bold markdown formatting format prose title
letter letters part parts version unit units number numbers figure figures name names date dates question topic task
request user instruction instructions
too so very more less much fewer longer shorter simpler warmer better nicer clearer easier plain long short brief
detailed detail formal informal polite friendly warm cold dry vague clear unclear wrong right incorrect correct false
true bad good complete incomplete missing enough rude boring confusing important necessary best helpful useful fine
okay same different first last next full exact rounded
english french spanish german italian portuguese chinese japanese korean russian arabic hindi latin dutch mandarin
celsius fahrenheit kelvin metric imperial si roman json csv html xml yaml latex python sql ascii unicode iso am pm utc
i ai ok no yes please only just what why how asked said wanted meant
"""
_FORM = frozenset(_FORM_LIST.split())
"""Words of form, tone and judgement: what is said with them is a requirement and no value."""
_FUNCTION_LIST = """
a an the of in on at to for and or but is are was were be been do does did it its this that these those me my you
your we our he she they them his her their with as by from into so if then than not can could would should will here
there about have has had up out over again still all any some such also well now quite rather almost nearly
"""
_FUNCTION = frozenset(_FUNCTION_LIST.split())
_NUMBER_WORD_LIST = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion
"""
_NUMBER_WORDS = frozenset(_NUMBER_WORD_LIST.split())
_FORM_UNITS = re.compile(
    r"^\W*(?:short |full |plain |complete |significant |decimal )*"
    r"(?:sentences?|words?|lines?|paragraphs?|bullets?|lists?|items?|points?|steps?|examples?|characters?|"
    r"syllables?|digits?|decimals?|places?|pages?|letters?|parts?|options?|versions?|names?|figures?|"
    r"or (?:less|fewer|more))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_][\w'’-]*|\d[\d.,:/]*\d|\d")
_POSSESSIVE = re.compile(r"['’]s$")
_SENTENCE_OPENERS = ".!?…:\"“「'‘(\n"

# --- sentences ---------------------------------------------------------------------------------------------

_NEGATED = re.compile(
    r"[,;]?\s*\b(?:and |but )?(?:not|n't|never|instead of|rather than)\b(?:(?!\bbut\b)[^,.;:!?])*"
    r"|(?:而|并)?不是[^，。；,]*",
    re.IGNORECASE,
)
_OF_THE_TASK = re.compile(
    r"^\W*(?:no[,. ]+)?(?:but )?i (?:meant|mean|asked|said|want|wanted|need|told)\b", re.IGNORECASE
)
"""The user says what was asked, not what is so."""
_SUBJECT = re.compile(
    r"^\W*(?:(?:no|nope|wrong|actually|well|sorry|but|in fact|remember that|note that|the user says that)[\s,.:!-]+)*"
    r"(?:it|that|this|he|she|they|those|these"
    r"|(?:the |your )?(?:\w+ ){0,2}?(?:answer|result|solution|value|total|translation|word)"
    r"|(?P<noun>(?:the|its|his|her|their|your) [^,.;:]{1,60}?))"
    r"(?:'s|’s| is| was| are| were| equals?|:"
    r"|(?P<wished> (?:should|must|ought to|has to|needs to|could|would) (?:be|have been)))\s+"
    r"(?:actually |really |in fact |of course |simply |just )*(?P<value>[^.;!?]+)",
    re.IGNORECASE,
)
_TURNED = re.compile(
    r"^\W*(?P<value>[^,.;:!?]{1,60}?) (?:is|was|are|were|wrote|painted|invented|discovered|did)\b(?P<rest>.*)$"
)
_FRAGMENT = re.compile(
    r"^\W*(?:(?:no|nope|wrong|actually|well|sorry)[\s,.:!-]+)*(?P<value>[^,.;:!?]{1,60})\W*(?:you mean|please)?\W*$",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"['\"“‘`*]\w|\d|\b[A-Z]\w")
_INSTRUCTION = re.compile(
    r"^\W*(?:add|answer|apply|ask|avoid|be|check|compare|convert|count|do|don't|double|drop|explain|first|focus|"
    r"give|keep|leave|list|look|make|mention|name|never|only|put|quote|read|recall|remember|reply|round|say|show|"
    r"sort|start|state|stick|take|tell|think|try|use|verify|work|write|in|as|with|without|for|from|under|by|i|you|"
    r"we|can|could|would|will|next|less|more|a bit|a little|half|still|again|always|also)\b",
    re.IGNORECASE,
)


def states_value(sentence: str, task: str) -> bool:
    """Whether one sentence states a value that `task`, which asks for one, does not hold."""
    kept = _NEGATED.sub(" ", sentence).strip()
    if is_cjk(kept):
        return _states_cjk_value(kept, task)
    known = set(tokens(task))
    if not _OF_THE_TASK.match(kept) and _has_new_fact(kept, known):
        return True
    stated = _SUBJECT.match(kept)
    if stated is not None:
        value, noun = stated["value"], stated["noun"] is not None
        if not noun and _is_bare_fact(value):
            return True
        wish = stated["wished"] is not None and _QUOTED.search(value) is None
        return not wish and _is_value(value, known, noun=noun)
    if _INSTRUCTION.match(kept):
        return False
    turned = _TURNED.match(kept)
    if turned is not None and len(known & set(tokens(turned["rest"]))) >= 2:
        return _is_value(turned["value"], known, noun=True)
    fragment = _FRAGMENT.match(kept)
    return fragment is not None and _is_value(fragment["value"], known, noun=True)


def _has_new_fact(text: str, known: set[str]) -> bool:
    """Whether there is a number, or a name inside a sentence, that the task does not hold."""
    for match in _WORD.finditer(text):
        word, before = match.group(), text[: match.start()].rstrip(" *_")
        said = set(tokens(_POSSESSIVE.sub("", word)))
        if word[0].isdigit():
            fact = not _FORM_UNITS.match(text[match.end() :])
        else:
            fact = word[0].isupper() and before != "" and before[-1] not in _SENTENCE_OPENERS
            said -= _FORM | _FUNCTION
        if fact and said - known:
            return True
    return False


def _is_bare_fact(value: str) -> bool:
    """Whether a value is one number or one name, which may well stand in the task ("9 or 4?" "It's 9.")."""
    words = _WORD.findall(value)
    if len(words) != 1 or words[0].lower() in _FORM:
        return False
    return words[0][0].isdigit() or words[0][0].isupper() or words[0].lower() in _NUMBER_WORDS


def _is_value(value: str, known: set[str], *, noun: bool) -> bool:
    """Whether what was said of a subject names a thing: new words, none of them of form or judgement.

    After "the median is ..." (`noun`) a definition may follow ("the middle one"): only a few bare words are a value.
    """
    words = [word for word in tokens(value) if word not in "?!"]
    if not words or len(words) > 6 or set(words) & _FORM or _INSTRUCTION.match(value):
        return False
    if noun and (words[0] in _FUNCTION or len(words) > 3):
        return False
    return any(word not in known and (word in _NUMBER_WORDS or word not in _FUNCTION) for word in words)


# --- the same in Chinese -----------------------------------------------------------------------------------

_CJK_FORM = re.compile(
    r"太|更|一[点些下句行段]|简[短单洁]|详细|正式|友好|客气|中文|英文|英语|法语|日语|德语|列表|格式|加粗|标题|错|不对|不行|"
    r"正确的?$|完整|清楚|什么|怎么|回答|答案$|直接|句子|[两三四五六七八九十\d]+[句字行段条步位]|小数|字数|单位|请|不要|别|先|再|"
    r"写|说|改|换|加|用|给|问"
)
_CJK_STATED = re.compile(
    r"^\W*(?:(?:不对|错了|不|其实|实际上|记住|注意)[，,。！!：: ]*)*"
    r"(?:.{0,12}?(?:应该|应|就|才)?(?:是|为|等于|叫))(?P<value>[^，。；,;!！?？]{1,20})"
)
_CJK_TURNED = re.compile(r"^\W*(?P<value>[^，。；,;是]{1,12}?)才?是(?P<rest>[^，。；]+)")
_CJK_FRAGMENT = re.compile(r"^\W*(?:(?:不对|错了|不|其实)[，,。！! ]*)*(?P<value>[^，。；,;!！]{1,8})\W*$")
_CJK_PARTICLES = "的了吧呢啊才就"
_MOSTLY = 0.6


def _states_cjk_value(sentence: str, task: str) -> bool:
    stated = _CJK_STATED.match(sentence)
    if stated is not None and _is_cjk_value(stated["value"], task):
        return True
    turned = _CJK_TURNED.match(sentence)
    if turned is not None and _is_cjk_value(turned["value"], task):
        rest = [token for token in tokens(turned["rest"]) if token not in _CJK_PARTICLES]
        if rest and sum(token in task for token in rest) >= _MOSTLY * len(rest):
            return True
    fragment = _CJK_FRAGMENT.match(sentence)
    return fragment is not None and _is_cjk_value(fragment["value"], task)


def _is_cjk_value(value: str, task: str) -> bool:
    new = set(tokens(value)) - set(tokens(task)) - set(_CJK_PARTICLES)
    return bool(new) and _CJK_FORM.search(value) is None
