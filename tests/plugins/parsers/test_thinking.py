"""Every parser of thoughts, on answers that were opened by the template, by the model, and not at all."""

from __future__ import annotations

import pytest

from lsv.offers import load_object
from lsv.testing.answers.parsers import Found, check_parser
from lsv.text.answer_parser import AnswerForm, KnowsThoughts, Text
from lsv_parsers.plugin import lsv_reasoning_parsers, lsv_tool_parsers

OFFERS = {offer.name: offer for offer in lsv_reasoning_parsers()}
MARKS = {
    "granite": ("Here is my thought process:", "Here is my response:"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
}
ALWAYS = {"deepseek_r1", "minimax", "step3"}

pytestmark = pytest.mark.row("F-132")


@pytest.fixture(params=OFFERS)
def name(request):
    return request.param


@pytest.fixture
def make(name):
    return load_object(OFFERS[name].load)


@pytest.fixture
def marks(name):
    return MARKS.get(name, ("<think>", "</think>"))


THOUGHTS = [
    "One, two.",
    "a\n\nb\n",
    "",
    "5 < 6 and <thin </thin [/TH <| ok",
    "Zürich 🌧 \\n",
    "x" * 300,
    "<tool_call>{}",
]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("answer", ["Three.", "a\n\n  b </p> ", ""])
def test_thoughts_and_an_answer(make, marks, thought, answer):
    found = check_parser(make, f"{marks[0]}\n{thought}\n{marks[1]}\n\n{answer}", AnswerForm())
    assert (found.thoughts, found.text) == (thought.strip(), answer)


def test_no_thoughts(name, make):
    found = check_parser(make, " Just < an answer\n", AnswerForm())
    assert found == (Found(thoughts="Just < an answer") if name in ALWAYS else Found(text=" Just < an answer\n"))


def test_thoughts_that_the_template_opened(name, make, marks):
    if name == "openai_gptoss":
        pytest.skip("its prompts end before the channel")
    found = check_parser(make, f"One.\n{marks[1]}\nTwo.", AnswerForm(prompt_end=f"…{marks[0]}\n"))
    assert (found.thoughts, found.text) == ("One.", "Two.")
    found = check_parser(make, "Two.", AnswerForm(prompt_end=f"…{marks[0]}\n\n{marks[1]}\n\n"))
    assert (found.thoughts, found.text) == ("", "Two.")


def test_thoughts_that_are_cut_off(make, marks):
    found = check_parser(make, f"{marks[0]}One, tw", AnswerForm())
    assert (found.thoughts, found.text) == ("One, tw", "")


def test_marks_within_the_answer_are_text(name, make, marks):
    if name == "openai_gptoss":
        pytest.skip("its marks are special tokens, which no text has")
    answer = f"{marks[0]}One{marks[1]}It says {marks[0]} and {marks[1]}."
    found = check_parser(make, answer, AnswerForm())
    assert (found.thoughts, found.text) == ("One", f"It says {marks[0]} and {marks[1]}.")


def test_special_tokens_are_hidden(make, marks):
    found = check_parser(make, f"{marks[0]}O<|x|>ne{marks[1]}Tw<|x|>o<|x|>", AnswerForm(hidden=("<|x|>",)))
    assert (found.thoughts, found.text) == ("One", "Two")


def test_hunyuan_wraps_its_answer():
    make = load_object(OFFERS["hunyuan_a13b"].load)
    found = check_parser(make, "<think>\na\n</think>\n<answer>\nb\n</answer>", AnswerForm())
    assert (found.thoughts, found.text.strip()) == ("a", "b")


def test_thinking_is_told_while_it_lasts(make, marks):
    parser = make(AnswerForm())
    seen = [parser.thinking]
    for piece in (marks[0], "a", "b"):
        parser.push(piece)
        seen.append(parser.thinking)
    parser.push(marks[1])
    parser.push("c")
    assert seen[0] is False
    assert seen[2:] == [True, True]
    assert parser.thinking is False


def test_harmony_in_two_steps():
    answer = (
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary<|message|>Calling."
        '<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    )
    form = AnswerForm(tools={"f": {}})
    first = check_parser(load_object(OFFERS["openai_gptoss"].load), answer, form)
    assert first.thoughts == "Need it."
    (tools,) = [offer for offer in lsv_tool_parsers() if offer.name == "openai"]
    second = check_parser(load_object(tools.load), first.text, form)
    assert (second.text, [call.arguments for call in second.calls]) == ("Calling.", ['{"a": 1}'])
    alone = check_parser(load_object(tools.load), answer, form)
    assert (alone.text, alone.thoughts, len(alone.calls)) == ("Calling.", "Need it.", 1)


def test_a_comparison_sees_a_parser_that_looks_at_pieces():
    class Careless:
        thinking = False

        def push(self, text):
            return [Text(text.replace("<x>", ""))]

        def end(self):
            return []

    with pytest.raises(AssertionError, match="cut at"):
        check_parser(lambda form: Careless(), "a<x>b", AnswerForm())


def test_where_thoughts_end_is_known_to_those_who_hold_forms(name, make, marks):
    """What follows the mark is the answer, for readers and for grammars alike."""
    assert isinstance(make, KnowsThoughts)
    found = make.thoughts_after("<|user|>Hello<|assistant|>\n")
    assert found.open is (name in ALWAYS | {"openai_gptoss"})
    opened = make.thoughts_after(f"<|assistant|>{marks[0]}\n")
    assert opened.open
    for end in (opened.close or opened.ends[0], marks[1]):
        assert end.endswith(opened.ends)
        assert check_parser(make, f"{marks[0]}\nOne.\n{end}Three.", AnswerForm()) == Found(
            thoughts="One.", text="Three."
        )
    closed = make.thoughts_after(f"<|assistant|>{marks[0]}\n\n{opened.ends[0]}\n\n")
    assert closed is None
