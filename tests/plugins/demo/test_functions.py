"""Functions and thoughts in lsv-demo's template, and the course that teaches them: trained is what the server sends."""

from random import Random

import pytest
import transformers
from tokenizers import Tokenizer

from demo_training.functions.conversations import KINDS, RARE, cases, conversation, document, rendered
from demo_training.functions.evaluate import as_request, expected
from demo_training.functions.offered import CALCULATOR, OTHERS, WEATHER, Function
from demo_training.template import CHAT_TEMPLATE
from lsv_demo import CHECKPOINT
from lsv_webui.chat.tools import TOOLS

TOOLS_SHOWN = "Functions:\nget_weather(city): The weather of a city\nwait(seconds, why?)<|im_end|>\n"
OFFERED = [WEATHER.as_tool(), Function("wait", ("seconds",), "", "why").as_tool()]
CALL = WEATHER.called_with("Bern")
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


@pytest.fixture(scope="module")
def reference() -> transformers.AutoTokenizer:
    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


def test_the_shipped_template_is_the_one_that_was_trained(reference: transformers.AutoTokenizer) -> None:
    assert reference.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("first", "head"),
    [
        ([], "<|im_start|>system\n"),
        ([{"role": "system", "content": "Be brief."}], "<|im_start|>system\nBe brief.\n\n"),
        ([{"role": "system", "content": [{"type": "text", "text": "Hi."}]}], "<|im_start|>system\nHi.\n\n"),
    ],
)
def test_tools_stand_at_the_end_of_the_system_turn(reference, first, head) -> None:
    messages = [*first, {"role": "user", "content": "Hello"}]
    text = reference.apply_chat_template(messages, tools=OFFERED, tokenize=False)
    assert text == head + TOOLS_SHOWN + "<|im_start|>user\nHello<|im_end|>\n"
    assert rendered(messages, OFFERED) == text


@pytest.mark.parametrize("arguments", [{"city": "Bern"}, '{"city": "Bern"}'])
def test_calls_and_results_are_rendered(reference, arguments) -> None:
    call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
        {"role": "assistant", "content": "Well:", "tool_calls": [call]},
    ]
    assert reference.apply_chat_template(messages, tokenize=False) == (
        f"<|im_start|>assistant\n{WRITTEN}\n{WRITTEN}<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n"
        f"<|im_start|>assistant\nWell:\n{WRITTEN}<|im_end|>\n"
    )


@pytest.mark.parametrize(
    "function",
    [
        {"name": "now"},
        {"name": "now", "parameters": {}},
        {"name": "now", "parameters": {"type": "object", "properties": {}}},
    ],
)
def test_functions_need_no_parameters(reference, function) -> None:
    text = reference.apply_chat_template(
        [{"role": "user", "content": "?"}], tools=[{"type": "function", "function": function}], tokenize=False
    )
    assert text.startswith("<|im_start|>system\nFunctions:\nnow()<|im_end|>\n")


@pytest.mark.parametrize(
    ("options", "end"), [({}, ""), ({"enable_thinking": False}, ""), ({"enable_thinking": True}, "<think>\n")]
)
def test_thoughts_are_opened_where_they_are_asked_for(reference, options, end) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" + end


@pytest.mark.parametrize("thinking", [False, True])
def test_conversations_are_trained_as_they_are_rendered(thinking: bool) -> None:
    tokenizer, rng = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")), Random(3)
    for _ in range(60):
        made = conversation("train", rng)
        pieces = document(made, thinking, rng)
        text = "".join(piece for piece, _ in pieces)
        trained = [token for piece, _ in pieces for token in tokenizer.encode(piece).ids]
        assert trained == tokenizer.encode(text).ids
        if not thinking:
            assert text == rendered(made.messages, made.tools)
        else:
            assert text.count("<think>") == 1
            head = text.partition("<think>\n")[0]
            whole = rendered(made.messages, made.tools)
            assert whole.startswith(head)


def test_cases_are_of_every_kind_and_held_out() -> None:
    asked = cases(160, seed=0)
    assert {case.kind for case in asked} == {*KINDS, *RARE}
    assert cases(160, seed=0) == asked
    rng, trained = Random(5), set()
    for _ in range(300):
        trained |= {call["function"]["arguments"].popitem()[1] for message in conversation("train", rng).messages
                    for call in message.get("tool_calls", ())}  # fmt: skip
    wanted = {value for case in asked for _, arguments in expected(case)[1] for value in arguments.values()}
    assert wanted
    assert trained
    assert not wanted & trained


def test_what_a_case_should_write_follows_its_prompt() -> None:
    for case in cases(80, seed=2):
        assert case.prompt.endswith("<think>\n" if case.thought else "<|im_start|>assistant\n")
        assert "<|im_end|>" not in case.said
        assert all(isinstance(call["function"]["arguments"], str)
                   for message in as_request(case)["messages"] for call in message.get("tool_calls", ()))  # fmt: skip


def test_the_page_offers_what_the_model_knows_best() -> None:
    assert [tool.as_json() for tool in TOOLS] == [CALCULATOR.as_tool(), WEATHER.as_tool()]


def test_functions_that_never_fit_have_names_of_their_own() -> None:
    assert not {function.name for function in OTHERS} & {CALCULATOR.name, WEATHER.name}
