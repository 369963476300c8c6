"""Every parser of thoughts, on answers that were opened by the template, by the model, and not at all."""

from __future__ import annotations

import json

import pytest

from lsv.offers import ReasoningParserOffer, load_object
from lsv.text.answer_parser import AnswerForm, KnowsThoughts, Text
from lsv_api.parsers.finding import choose_parser
from lsv_parsers.plugin import lsv_reasoning_parsers, lsv_tool_parsers
from lsv_testing.answers.parsers import Found, check_parser

from .samples import FAMILIES, TOOLS, written

OFFERS = {offer.name: offer for offer in lsv_reasoning_parsers() if not offer.derives}
MARKS = {
    "inkling": ("<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
}
ALWAYS = {"deepseek_r1", "minimax", "step3"}
ADDRESSED = {"openai_gptoss", "muse_glimmer", "inkling"}
"""Their answers are messages with headers for their kind."""

pytestmark = pytest.mark.row("F-132")


@pytest.fixture(params=sorted(OFFERS.keys() - {"muse_glimmer"}))
def name(request):
    return request.param


@pytest.fixture
def make(name):
    return load_object(OFFERS[name].load)


@pytest.fixture
def marks(name, make):
    return MARKS[name] if name in MARKS else (make.begins[0], make.ends[0])


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
    if name in ADDRESSED:
        pytest.skip("its prompts end before the channel")
    found = check_parser(make, f"One.\n{marks[1]}\nTwo.", AnswerForm(prompt_end=f"…{marks[0]}\n"))
    assert (found.thoughts, found.text) == ("One.", "Two.")
    found = check_parser(make, "Two.", AnswerForm(prompt_end=f"…{marks[0]}\n\n{marks[1]}\n\n"))
    assert (found.thoughts, found.text) == ("", "Two.")


def test_thoughts_that_are_cut_off(make, marks):
    found = check_parser(make, f"{marks[0]}One, tw", AnswerForm())
    assert (found.thoughts, found.text) == ("One, tw", "")


def test_marks_within_the_answer_are_text(name, make, marks):
    if name in ADDRESSED:
        pytest.skip("its marks are special tokens, which no text has")
    answer = f"{marks[0]}One{marks[1]}It says {marks[0]} and {marks[1]}."
    found = check_parser(make, answer, AnswerForm())
    assert (found.thoughts, found.text) == ("One", f"It says {marks[0]} and {marks[1]}.")


def test_special_tokens_are_hidden(make, marks):
    found = check_parser(make, f"{marks[0]}O<|x|>ne{marks[1]}Tw<|x|>o<|x|>", AnswerForm(hidden=("<|x|>",)))
    assert (found.thoughts, found.text) == ("One", "Two")


@pytest.mark.parametrize(("name", "word"), [("hunyuan_a13b", "answer"), ("granite_response", "response")])
def test_marks_around_an_answer_are_left_out(name, word):
    make = load_object(OFFERS[name].load)
    for thoughts in ("<think>\na\n</think>\n", ""):
        found = check_parser(make, f"{thoughts}<{word}>\nb\n c\n</{word}>", AnswerForm())
        assert (found.thoughts, found.text) == ("a" if thoughts else "", "b\n c")


def test_granite_3_3_is_known_by_its_template():
    """It writes ``<think>`` like others, and its own marks around the answer."""
    from lsv import plugins

    template = "Write your thoughts between <think></think> and your answer between <response></response>."
    catalog = plugins.load().catalog
    found, _ = choose_parser(catalog, ReasoningParserOffer, named=None, template=template, architecture="X")
    assert found.name == "granite_response"


def test_thoughts_that_end_twice(name, make, marks):
    """Also if the prompt has ended them."""
    if name in ADDRESSED:
        pytest.skip("its messages end with the mark of the next one")
    begin, end = marks
    found = check_parser(make, f"{begin}One.\n{end}\n{end}\n\nTwo {end} three.", AnswerForm())
    assert (found.thoughts, found.text) == ("One.", f"Two {end} three.")
    found = check_parser(make, f"{end}\n\nTwo.", AnswerForm(prompt_end=f"{begin}\n\n{end}\n\n"))
    assert (found.thoughts, found.text) == ("", "Two.")


def test_thoughts_that_a_budget_ended_may_end_again(name, make, marks):
    if name in ADDRESSED:
        pytest.skip("a budget ends its thoughts with the header of the answer")
    begin, end = marks
    found = check_parser(make, f"{begin}One.{end}I add.\n{end}\n\nTwo {end}.", AnswerForm(bounded=True))
    assert (found.thoughts, found.text) == ("One.", f"I add.\nTwo {end}.")


FORM = AnswerForm(tools=TOOLS, hidden=("<|eot|>",))
MARKED = [
    name for name, family in FAMILIES.items()
    if family.mark[0] in "<[" and family.text_before and not name.startswith(("openai", "inkling", "llama3_json"))
]  # fmt: skip


def read_both(make, tools, answer):
    """The thoughts of an answer, and the result of the parser of calls for the rest."""
    first = check_parser(make, answer, FORM)
    (offer,) = [offer for offer in lsv_tool_parsers() if offer.name == tools.split()[0]]
    rest = check_parser(load_object(offer.load), first.text, FORM, trials=0)
    return first.thoughts, rest.text, [(call.name, json.loads(call.arguments)) for call in rest.calls]


@pytest.mark.parametrize("tools", MARKED)
def test_a_call_in_thoughts_that_never_end_is_a_call(tools):
    make, call = load_object(OFFERS["qwen3"].load), ("get_weather", {"city": "Bern"})
    answer = f"<think>I look it up.\n{written(FAMILIES[tools], call)}<|eot|>"
    assert read_both(make, tools, answer) == ("I look it up.", "", [call])


@pytest.mark.parametrize("tools", MARKED)
def test_a_call_in_thoughts_that_end_later_is_a_draft(tools):
    make, draft = load_object(OFFERS["qwen3"].load), written(FAMILIES[tools], ("get_weather", {"city": "Bern"}))
    answer = f"<think>Perhaps {draft}, or<|eot|> not.</think>No."
    assert read_both(make, tools, answer) == (f"Perhaps {draft}, or not.", "No.", [])


@pytest.mark.parametrize(
    "rest", ["<tool_call> is a mark", '<tool_call>{"name": "unknown", "arguments": {}}', "[TOOL_CALLS]"]
)
def test_a_mark_in_thoughts_that_are_cut_off_stays_a_thought(name, make, marks, rest):
    if name in ADDRESSED:
        pytest.skip("its calls are messages")
    found = check_parser(make, f"{marks[0]}It says {rest}", FORM)
    assert (found.thoughts, found.text) == (f"It says {rest}", "")


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


@pytest.mark.parametrize("constrained", ["json", "<|constrain|>json"])
def test_harmony_names_the_recipient_before_the_channel(constrained):
    """Right after the prompt, as its template writes calls."""
    answer = f' to=functions.f<|channel|>commentary {constrained}<|message|>{{"a": 1}}<|call|>'
    form = AnswerForm(tools={"f": {}}, prompt_end="<|end|><|start|>assistant")
    first = check_parser(load_object(OFFERS["openai_gptoss"].load), answer, form)
    assert (first.thoughts, first.text) == ("", answer)
    (tools,) = [offer for offer in lsv_tool_parsers() if offer.name == "openai"]
    for text in (answer, first.text):
        found = check_parser(load_object(tools.load), text, form)
        assert (found.text, [(call.name, call.arguments) for call in found.calls]) == ("", [("f", '{"a": 1}')])
    for text in (" to=functions.f is text", "Hello to=you.", " to"):
        assert check_parser(load_object(tools.load), text, form).text == text


MUSE = AnswerForm(tools={"f": {}}, prompt_end="…<|eot|><|start|>assistant")


def test_muse_addresses_thoughts_calls_and_answers():
    """A header before each message; the prompt has begun the first one."""
    make = load_object(OFFERS["muse_glimmer"].load)
    call = '<atem:function_calls>\n<atem:invoke name="f">\n</atem:invoke>\n</atem:function_calls>'
    thought, follows = " to=self<|message|>Hm.\nYes.<|eom|>", "<|start|>assistant to="
    found = check_parser(make, f"{thought}{follows}user<|message|>No.<|eot|>", MUSE)
    assert (found.thoughts, found.text) == ("Hm.\nYes.", "No.")
    assert check_parser(make, " to=user<|message|>No.<|eot|>", MUSE).text == "No."
    found = check_parser(make, f"{thought}{follows}f<|message|>{call}<|eom|>{follows}f<|message|>{call}<|eot|>", MUSE)
    assert found.thoughts == "Hm.\nYes."
    (tools,) = [offer for offer in lsv_tool_parsers() if offer.name == "muse_glimmer"]
    second = check_parser(load_object(tools.load), found.text, MUSE)
    assert (second.text, [call.name for call in second.calls]) == ("", ["f", "f"])
    thinking = make.thoughts_after(MUSE.prompt_end)
    assert check_parser(make, f"{thinking.begins[0]}Hm.{thinking.close}No.", MUSE) == Found(thoughts="Hm.", text="No.")
    assert make.thoughts_after(f"{MUSE.prompt_end} to=user<|message|>") is None
    assert check_parser(make, "No header.", MUSE).text == "No header."


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
    assert found.open is (name in ALWAYS | ADDRESSED)
    opened = make.thoughts_after(f"<|assistant|>{marks[0]}\n")
    assert opened.open
    for end in (opened.close or opened.ends[0], marks[1]):
        assert end.endswith(opened.ends)
        assert check_parser(make, f"{marks[0]}\nOne.\n{end}Three.", AnswerForm()) == Found(
            thoughts="One.", text="Three."
        )
    closed = make.thoughts_after(f"<|assistant|>{marks[0]}\n\n{opened.ends[0]}\n\n")
    assert closed is None
