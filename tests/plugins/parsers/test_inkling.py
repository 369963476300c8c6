"""Inkling's blocks: all kinds in any order, headers before calls, and prompts that begin one."""

from __future__ import annotations

import json

import pytest

from lsv.text.answer_parser import AnswerForm
from lsv_parsers.inkling import thinking, tools
from lsv_testing.answers.parsers import check_parser

MESSAGE, END, STOP = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
TEXT, THINK, CALL = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
FORM = AnswerForm(tools={"f": {}, "g": {}}, prompt_end=f"user<|end_message|>{MESSAGE}")


def read(answer: str, form: AnswerForm = FORM) -> tuple[str, str, list[tuple[str, object]]]:
    """Reads thoughts first, then calls in the rest, like a server. The parser of calls alone finds the same."""
    thoughts = check_parser(thinking, answer, form)
    rest = check_parser(tools, thoughts.text, form)
    alone = check_parser(tools, answer, form)
    calls = [(call.name, json.loads(call.arguments)) for call in rest.calls]
    assert [(call.name, json.loads(call.arguments)) for call in alone.calls] == calls
    assert (alone.text, alone.thoughts) == (rest.text, thoughts.thoughts)
    return thoughts.thoughts, rest.text, calls


def call(name: str, arguments: str = "{}") -> str:
    return f'{name}{CALL}{{"name": "{name}", "args": {arguments}}}{END}'


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"{TEXT}Hello.{END}", ("", "Hello.", [])),
        (f"Hello.{END}", ("", "Hello.", [])),
        ("Hello.", ("", "Hello.", [])),
        (f"{THINK}So.{END}{MESSAGE}{TEXT}Hi{STOP}", ("So.", "Hi", [])),
        (call("f", '{"a": [1, {"b": "}"}]}'), ("", "", [("f", {"a": [1, {"b": "}"}]})])),
        (f"{call('f')}{MESSAGE}{call('g')}", ("", "", [("f", {}), ("g", {})])),
        (f"{TEXT}Let me see.{END}{MESSAGE}{call('f')}", ("", "Let me see.", [("f", {})])),
        (f"{THINK}So.{END}{MESSAGE}{TEXT}See.{END}{MESSAGE}{call('f')}", ("So.", "See.", [("f", {})])),
        (f"{call('f')}{MESSAGE}{TEXT}Done.{END}", ("", "Done.", [("f", {})])),
        (f"<|content_tool_error|>It broke.{END}", ("", "It broke.", [])),
        (f'{CALL}{{"name": "f"}}{END}', ("", "", [("f", {})])),
        (f'{CALL}{{"args": {{"a": 1}}, "name": "f"}}{END}', ("", "", [("f", {"a": 1})])),
    ],
)
def test_blocks(answer: str, found: tuple[str, str, list[tuple[str, object]]]) -> None:
    assert read(answer) == found


def test_thoughts_that_the_prompt_has_begun() -> None:
    form = AnswerForm(tools=FORM.tools, prompt_end=f"{MESSAGE}{THINK}")
    found = check_parser(thinking, f"So.{END}{MESSAGE}{TEXT}Hi{END}", form)
    assert (found.thoughts, found.text) == ("So.", "Hi")
    assert check_parser(tools, found.text, form).text == "Hi"


def test_a_call_ends_thoughts_that_were_left_open() -> None:
    assert read(f"{THINK}So.{call('f').removeprefix('f')}") == ("So.", "", [("f", {})])


def test_a_form_begins_with_the_text() -> None:
    found = thinking.thoughts_after(FORM.prompt_end)
    assert found is not None
    assert (found.open, found.ends, found.close) == (True, (TEXT,), f"{END}{MESSAGE}{TEXT}")
    assert thinking.thoughts_after(f"{MESSAGE}{TEXT}") is None
