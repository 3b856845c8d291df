from __future__ import annotations

import pytest

from openclaw_rl.judging.leaks import COPIES_RESPONSE, QUOTES_ANSWER, STATES_ANSWER, leak
from openclaw_rl.judging.stated_values import asks_for_a_value

CAPITAL, SYDNEY = "What is the capital of Australia?", "The capital of Australia is Sydney."
HAUPTSTADT, SYDNEY_ZH = "澳大利亚的首都是哪里？", "澳大利亚的首都是悉尼。"


@pytest.mark.parametrize(
    ("task", "response", "hint"),
    [
        (CAPITAL, SYDNEY, "No, it's Canberra."),
        (CAPITAL, SYDNEY, "It's canberra"),
        (CAPITAL, SYDNEY, "The capital is Canberra."),
        (CAPITAL, SYDNEY, "Canberra, not Sydney."),
        (CAPITAL, SYDNEY, "Canberra is the capital of Australia."),
        (CAPITAL, SYDNEY, "Remember that the capital of Australia is Canberra, not Sydney."),
        (CAPITAL, SYDNEY, "Answer with Canberra."),
        (CAPITAL, SYDNEY, "Mention that the seat of government moved there in 1927."),
        (CAPITAL, SYDNEY, "Keep it short. It is Canberra."),
        ("Who wrote Hamlet?", "Marlowe.", "Shakespeare, not Marlowe."),
        ("Who painted it?", "Vermeer.", "It was Rembrandt."),
        ("Compute the median of 3, 9, 4.", "The median is 9.", "It's 4."),
        ("How many legs does a spider have?", "Six.", "It has 8 legs."),
        ("How many legs does a spider have?", "Six.", "It's eight."),
        ("How many legs does a spider have?", "Six.", "Eight, not six."),
        ("What colour is chlorophyll?", "Blue.", "Green, not blue."),
        ("Translate 'see you tomorrow' into Spanish.", "Hasta luego.", "It should be 'hasta mañana'."),
        ("When did the war end?", "In 1944.", "In 1945."),
        ("Which is right, A or B?", "A.", "The correct answer is B."),
        (HAUPTSTADT, SYDNEY_ZH, "不对，是堪培拉。"),
        (HAUPTSTADT, SYDNEY_ZH, "应该是堪培拉。"),
        (HAUPTSTADT, SYDNEY_ZH, "答案是堪培拉"),
        (HAUPTSTADT, SYDNEY_ZH, "堪培拉，不是悉尼。"),
        (HAUPTSTADT, SYDNEY_ZH, "堪培拉才是澳大利亚的首都。"),
        ("一加二等于几？", "四。", "等于三。"),
        ("谁写了红楼梦？", "罗贯中。", "曹雪芹。"),
    ],
)
def test_a_stated_value_is_the_answer(task: str, response: str, hint: str) -> None:
    assert leak(hint, task=task, response=response) == STATES_ANSWER


@pytest.mark.parametrize(
    ("task", "response", "hint"),
    [
        (CAPITAL, SYDNEY, "Do not confuse a country's largest city with its capital."),
        (CAPITAL, SYDNEY, "Check which city is the seat of government before you answer."),
        (CAPITAL, SYDNEY, "Not Sydney."),
        (CAPITAL, SYDNEY, "Answer in Spanish."),
        (CAPITAL, SYDNEY, "It is too long."),
        (CAPITAL, SYDNEY, "It should be shorter."),
        (CAPITAL, SYDNEY, "Shorter, please: just one sentence."),
        (CAPITAL, SYDNEY, "Please answer in one sentence of fewer than 20 words."),
        (CAPITAL, SYDNEY, "I meant the seat of the Queensland parliament."),
        ("Compute the median of 3, 9, 4.", "9.", "Sort the numbers before you take the middle one."),
        ("Compute the median of 3, 9, 4.", "9.", "The median is the middle one of the sorted numbers."),
        ("Convert 5 miles to km.", "8.05 km.", "Round it to a whole number next time."),
        ("How far away is the moon?", "384,000 km.", "In miles, please."),
        ("Who discovered penicillin?", "Fleming.", "Tell me the month too."),
        ("Which museum is open on Mondays?", "The old one.", "It should be free of charge."),
        ("Write a walk guide.", "Go north.", "East, not north."),
        ("Draft an email about the leak.", "Dear Sir,", "Be more polite and mention that it began on Monday."),
        (HAUPTSTADT, SYDNEY_ZH, "太长了，请缩短。"),
        (HAUPTSTADT, SYDNEY_ZH, "请用英文回答。"),
        (HAUPTSTADT, SYDNEY_ZH, "回答应该是一句话。"),
        (HAUPTSTADT, SYDNEY_ZH, "不要把最大的城市当成首都。"),
        ("介绍一下长城", "长城很长。", "再详细一点，讲讲它的历史。"),
        ("Explain tides.", "Tides come and go.", 'Start with "Good day!" and be kind.'),
        ("", "", "Be short."),
    ],
)
def test_how_to_answer_is_no_answer(task: str, response: str, hint: str) -> None:
    assert leak(hint, task=task, response=response) is None


TEXT = "A tide is the rise and fall of the sea that the pull of the moon brings about."
TEXT_ZH = "潮汐是海水在月球引力的作用下发生的周期性涨落现象。"


def test_a_run_of_the_response_is_copied_whatever_it_is_worth() -> None:
    eight = "Say that the rise and fall of the sea that matters."
    assert leak(eight, task="Explain tides.", response=TEXT) == COPIES_RESPONSE
    seven = "Say that the rise and fall of the sea matters."
    assert leak(seven, task="Explain tides.", response=TEXT) is None
    assert leak(eight, task="Explain the rise and fall of the sea that we see.", response=TEXT) is None
    assert leak("说明海水在月球引力的作用下发生的周期性涨落。", task="解释潮汐", response=TEXT_ZH) == COPIES_RESPONSE
    assert leak("提到月球引力。", task="解释潮汐", response=TEXT_ZH) is None


def test_an_accepted_answer_is_known_however_short() -> None:
    task, hint = "Suggest a name for my bakery.", "A name like Golden Crumb fits."
    assert leak(hint, task=task, response="Golden Crumb.", accepted=["Golden Crumb."]) == COPIES_RESPONSE
    assert leak(hint, task=task, response="Golden Crumb.") is None
    assert leak("Golden it is.", task=task, response="Golden Crumb.", accepted=["Golden Crumb."]) is None
    assert leak(hint, task="Is Golden Crumb a good name?", response="Yes.", accepted=["Golden Crumb."]) is None
    assert leak("Be kind.", task=task, response="?", accepted=["?", ""]) is None


@pytest.mark.parametrize("marks", ['"{}"', "“{}”", "```\n{}\n```", "「{}」", "`{}`"])
def test_a_long_quotation_is_an_answer_and_a_phrase_is_none(marks: str) -> None:
    letter = "Dear John, I am so very sorry that I missed your party on Friday."
    task = "Write to John."
    assert leak("Write " + marks.format(letter), task=task, response="Hi.") == QUOTES_ANSWER
    assert leak("Begin with " + marks.format("Dear John, I am so sorry"), task=task, response="Hi.") is None


@pytest.mark.parametrize(
    ("task", "asks"),
    [
        ("Who wrote Hamlet?", True),
        ("Hi! Can you tell me what the capital is? What is the capital of Peru?", True),
        ("How many moons has Mars?", True),
        ("Calculate 3 * 4.", True),
        ("In which year did it end?", True),
        ("谁写了这本书？", True),
        ("How does a kettle know when to switch off?", False),
        ("What is a tide?", False),
        ("Write a poem about the man who sailed.", False),
        ("解释一下潮汐", False),
        ("", False),
    ],
)
def test_what_asks_for_a_value(task: str, asks: bool) -> None:
    assert asks_for_a_value(task) is asks
