"""What happens while an answer is written, and what is shown, copied and remembered of it, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import ask, last_answer, note
from .stand_in import StandIn

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]

LONG = "word " * 40
MODELS = {"first": ["text"], "second": ["text"]}
THOUGHT = [{"reasoning_content": f"thought {number} "} for number in range(8)]


@pytest.fixture(scope="module")
def running() -> Iterator[StandIn]:
    server = StandIn(MODELS, {"Talk": LONG, "Think": [*THOUGHT, {"content": "Done **now**."}]})
    yield server
    server.stop()


@pytest.fixture
def server(running: StandIn) -> Iterator[StandIn]:
    yield running
    running.pace, running.cut, running.page = 0.0, None, None
    running.asked.clear()


def talk(page: Any, server: StandIn) -> None:
    """Have a long answer begin."""
    server.pace = 0.05
    ask(page, "Talk")
    page.wait_for_function("document.querySelector('#lsv-chat')?.innerText.includes('word word')")


def copied(page: Any) -> str:
    """What the button of the last answer puts on the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    last_answer(page).hover()
    page.locator("#lsv-chat button:is([aria-label*='opy message'], [title*='opy message']):visible").last.click()
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_text_entered_while_an_answer_is_written_stays_in_the_box(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    talk(page, server)
    ask(page, "And then?")
    page.wait_for_timeout(500)
    assert page.locator("#lsv-box textarea").input_value() == "And then?"
    assert page.locator("#lsv-chat .user.message").count() == 1
    server.pace = 0.0
    page.wait_for_selector("#lsv-box .submit-button")
    assert last_answer(page).inner_text().count("word") == 40
    page.press("#lsv-box textarea", "Enter")
    page.get_by_text("I see and hear it.").wait_for()
    assert server.asked == ["Talk", "And then?"]
    assert [message["role"] for message in server.body["messages"]] == ["user", "assistant", "user"]


def test_enter_in_an_empty_box_does_nothing(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    ask(page, "Hello")
    note(page)
    page.wait_for_selector("#lsv-box .submit-button")
    page.press("#lsv-box textarea", "Enter")
    page.wait_for_timeout(1000)
    assert last_answer(page).inner_text() == "I see and hear it."
    assert server.asked == ["Hello"]


def test_a_question_edited_while_it_is_answered_is_asked_instead(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    talk(page, server)
    page.locator("#lsv-chat .user.message").hover()
    page.locator("#lsv-chat button:is([title='Edit'], [aria-label='Edit'])").first.click()
    page.locator("#lsv-chat textarea").fill("Never mind")
    page.locator("#lsv-chat button:is([title='Submit'], [aria-label='Submit'])").click()
    page.get_by_text("I see and hear it.").wait_for()
    assert "tokens" in note(page)
    page.wait_for_selector("#lsv-box .submit-button")
    assert server.asked == ["Talk", "Never mind"]
    assert "word" not in page.locator("#lsv-chat").inner_text()


def test_thinking_is_folded_and_copied_nowhere(server, pages, visit) -> None:
    server.pace = 0.1
    page = visit(pages.url(server.url))
    ask(page, "Think")
    page.get_by_text("Thinking …").wait_for()
    note(page)
    assert page.locator("#lsv-chat").inner_text().count("thought 3") == 0
    title = page.get_by_role("button", name="Thought for")
    title.click()
    page.get_by_text("thought 3").wait_for()
    assert copied(page) == "Done **now**."
    page.reload()
    page.get_by_role("button", name="Thought for").wait_for()
    ask(page, "Go on")
    page.get_by_text("I see and hear it.").wait_for()
    assert server.body["messages"][1] == {"role": "assistant", "content": "Done **now**."}


def test_a_tool_call_is_shown(server, pages, visit) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "cat"}'}}
    server.answers = {**server.answers, "Look": [{"tool_calls": [call]}]}
    page = visit(pages.url(server.url))
    ask(page, "Look")
    note(page)
    assert "look_up" in last_answer(page).inner_text()
    assert '"word": "cat"' in last_answer(page).inner_text()


def test_a_cut_answer_a_proxy_and_a_dead_server_are_distinguished(pages, visit) -> None:
    server = StandIn(MODELS)
    page = visit(pages.url(server.url))
    server.cut = 2
    ask(page, "One")
    page.wait_for_selector(".lsv-error")
    assert last_answer(page).inner_text() == "I see"
    assert copied(page) == "I see"
    server.cut, server.page = None, (502, b"<html><h1>502 Bad Gateway</h1><b>nginx</b></html>")
    page.wait_for_selector("#lsv-box .submit-button")
    ask(page, "Two")
    page.get_by_text("The proxy before").wait_for()
    server.stop()
    page.wait_for_selector("#lsv-box .submit-button")
    ask(page, "Three")
    page.locator("#lsv-chat").get_by_text("No server answers").wait_for()
    assert page.locator("#lsv-chat .lsv-error").all_inner_texts() == [
        "The connection to the server broke off before the answer was complete. Ask again.",
        "The proxy before the server can't reach it (502 Bad Gateway). Is the server running?",
        f"No server answers at {server.url}. Start one with: lsv serve",
    ]
    assert "nginx" not in page.locator("#lsv-chat").inner_text()


def test_a_server_other_than_lsv_is_ready(pages, visit) -> None:
    server = StandIn({"other": None}, lsv=False)
    page = visit(pages.url(server.url))
    page.wait_for_selector("#lsv-status .lsv-pill.ready")
    assert page.locator("#lsv-model input").input_value() == "other"
    ask(page, "Hello")
    page.get_by_text("I see and hear it.").wait_for()
    server.stop()


def test_the_list_of_models_closes_at_tab(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    page.get_by_text("first takes text only").wait_for()
    page.focus("#lsv-model input")
    page.wait_for_selector("#lsv-model [role=listbox] [role=option], ul.options")
    page.keyboard.press("Tab")
    page.wait_for_function("!document.querySelector('ul.options')")
    assert page.locator("#lsv-model input").get_attribute("aria-expanded") == "false"
    page.get_by_role("tab", name="Dashboard").click()


def test_the_chosen_model_survives_a_reload(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    page.click("#lsv-model input")
    page.get_by_role("option", name="second").click()
    page.get_by_text("second takes text only").wait_for()
    page.reload()
    page.get_by_text("second takes text only").wait_for()
    assert page.locator("#lsv-model input").input_value() == "second"
    ask(page, "Hello")
    note(page)
    assert server.body["model"] == "second"
