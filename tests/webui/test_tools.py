"""The page's own tools: what they answer, how their results are sent back, and the panels in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lsv_base.errors import BadRequest
from lsv_webui.chat.arithmetic import calculate
from lsv_webui.chat.conversation import Chat, Message, ToolCall, read_record
from lsv_webui.chat.parts import request_messages
from lsv_webui.chat.tools import TOOLS, make_weather, offered, run
from lsv_webui.chat.view import entries

from .conftest import ask, last_answer
from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")

NAMES = [tool.name for tool in TOOLS]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3847 * 29", "111563"),
        ("(12 + 7) * 3", "57"),
        ("7 / 2", "3.5"),
        ("-5 + +2", "-3"),
        ("10 % 4 // 2", "1"),
        ("1 / 3", "0.333333"),
    ],
)
def test_sums(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1 / 0", "9 ** 9", "2 if 1 else 3", "a + 1", "f(1)", "True + 1", "'a' * 3", "1e300 * 1e300", "9" * 150,
     "1+" * 150 + "1", "(" * 90 + "1" + ")" * 90, "1j", "[1]", "1 +", "\0"],
)  # fmt: skip
def test_nothing_else_is_evaluated(expression: str) -> None:
    if expression.startswith("(("):
        assert calculate(expression) == "1"
        return
    with pytest.raises(BadRequest):
        calculate(expression)


def test_the_weather_of_a_city_stays() -> None:
    assert make_weather("Bern") == make_weather(" bern ")
    assert make_weather("Bern").endswith(" degrees")


def test_offered_tools_are_as_requests_have_them() -> None:
    (tool,) = offered(["get_weather"])
    assert tool["function"]["parameters"]["required"] == ["city"]
    assert offered([]) == []


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", '{"expression": "2 + 3"}', "5"),
        ("calculate", '{"expression": "2 +"}', "error: not an arithmetic expression"),
        ("calculate", '{"expr": "2"}', "error: the argument expression is missing"),
        ("calculate", '{"expression": ', "error: the argument expression is missing"),
        ("calculate", "[]", "error: the argument expression is missing"),
        ("delete_all", "{}", "error: no tool is called delete_all"),
        ("get_weather", '{"city": " "}', "error: unknown city"),
    ],
)
def test_what_goes_wrong_is_the_result(name: str, arguments: str, result: str) -> None:
    call = ToolCall(name=name, arguments=arguments)
    run([call], NAMES)
    assert (call.id, call.result) == ("call_0", result)


def test_a_tool_that_was_not_offered_does_not_run() -> None:
    call = ToolCall(name="calculate", arguments='{"expression": "1"}')
    run([call], ["get_weather"])
    assert call.result == "error: no tool is called calculate"


def test_results_are_sent_back_and_kept() -> None:
    calls = [
        ToolCall(id="a", name="calculate", arguments='{"expression": "2 + 3"}'),
        ToolCall(name="go", arguments="{"),
    ]
    run(calls, NAMES)
    asked, called = Message(role="user", text="2 + 3?"), Message(role="assistant", calls=calls)
    chat = Chat(id="a", messages=[asked, called])
    _, said, *results = request_messages(chat)
    assert said["tool_calls"][0]["function"] == {"name": "calculate", "arguments": '{"expression": "2 + 3"}'}
    assert said["tool_calls"][1]["function"]["arguments"] == "{}"
    assert results == [
        {"role": "tool", "tool_call_id": "a", "content": "5"},
        {"role": "tool", "tool_call_id": "call_1", "content": "error: no tool is called go"},
    ]
    assert read_record(chat.record()) is not None
    assert "Result\n\n```text\n5\n```" in json.dumps(entries(chat)).replace("\\n", "\n")


def called(name: str, arguments: str) -> list[dict[str, Any]]:
    """The deltas of an answer that thinks and calls."""
    function = {"name": name, "arguments": arguments}
    return [
        {"reasoning_content": "I need a tool."},
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": function}]},
    ]


@pytest.fixture
def server() -> Iterator[StandIn]:
    again = called("calculate", '{"expression": "1 + 1"}')
    running = StandIn(
        {"m": ["text"]},
        {
            "What is 3847 * 29?": called("calculate", '{"expression": "3847 * 29"}'),
            "111563": "3847 * 29 = 111563.",
            "Again": again,
            "2": again,
        },
    )
    yield running
    running.stop()


def open_settings(page: Any) -> None:
    page.click("#lsv-settings .toggle-button")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Calculator").wait_for()


@pytest.mark.slow
def test_the_tool_panel_runs_the_loop(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    open_settings(page)
    page.get_by_label("Calculator").check()
    page.get_by_label("Think first").check()
    ask(page, "What is 3847 * 29?")
    page.get_by_text("3847 * 29 = 111563.").wait_for()
    assert last_answer(page).inner_text() == "3847 * 29 = 111563."
    shown = page.locator("#lsv-chat").inner_text()
    assert "Calls calculate" in shown
    assert "Result" in shown
    assert page.locator("#lsv-chat .thought-group").count() == 1
    assert not page.get_by_text("I need a tool.").is_visible()
    assert [tool["function"]["name"] for tool in server.body["tools"]] == ["calculate"]
    assert server.body["chat_template_kwargs"] == {"enable_thinking": True}
    assert [message["role"] for message in server.body["messages"]] == ["user", "assistant", "tool"]
    page.reload()
    page.get_by_text("3847 * 29 = 111563.").wait_for()
    page.click("#lsv-settings .toggle-button")
    assert page.get_by_label("Think first").is_checked()
    page.get_by_role("button", name="Reset to defaults").click()
    page.wait_for_function("!document.querySelector('#lsv-tools input:checked')")
    ask(page, "Plainly")
    page.get_by_text("I see and hear it.").wait_for()
    assert "tools" not in server.body
    assert "chat_template_kwargs" not in server.body


@pytest.mark.slow
def test_endless_tool_calls_are_stopped(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    open_settings(page)
    page.get_by_label("Calculator").check()
    ask(page, "Again")
    page.wait_for_selector("#lsv-box .submit-button")
    page.wait_for_function("document.querySelectorAll('#lsv-chat .lsv-note').length == 4")
    page.wait_for_timeout(500)
    assert len(server.asked) == 4


@pytest.mark.slow
def test_the_schema_panel(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    page.click("#lsv-settings .toggle-button")
    page.get_by_text("Structured output").click()
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    ask(page, "Anything")
    page.get_by_text("I see and hear it.").wait_for()
    assert server.body["response_format"]["json_schema"]["schema"] == {"type": "object"}
