"""The page as a visitor sees it, in Chromium."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from typing import Any

import pytest

from .conftest import ANSWERS, KEY, ask, last_answer, note
from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")


def test_a_visit(locked, pages, visit) -> None:
    """One page for all, because opening one takes longest."""
    page = visit(pages.url(locked.url))
    _is_asked_for_a_key_and_enters_it(page)
    _sees_an_answer_stream_in(page, locked.engine)
    _sees_the_dashboard_move(page, locked.engine)
    locked.stop()
    _is_told_of_a_dead_server(page, locked.url)


def _is_asked_for_a_key_and_enters_it(page: Any) -> None:
    asked = "The server needs an API key. Enter yours under Settings."
    assert page.locator("#lsv-status").inner_text() == asked
    assert page.locator("#lsv-model").is_hidden()  # there is nothing to choose from
    ask(page, "Hello")
    page.wait_for_selector(".lsv-error")
    assert page.locator(".lsv-error").inner_text() == asked
    page.locator("#lsv-chat .lsv-error a").click()
    page.locator("#lsv-key input").wait_for()
    page.wait_for_function("document.activeElement == document.querySelector('#lsv-key input')")
    page.keyboard.type("wrong")
    page.get_by_text("The server does not accept this API key. Enter another one under Settings.").wait_for()
    page.fill("#lsv-key input", KEY)
    page.wait_for_selector("#lsv-status .lsv-pill.ready")
    page.locator("#lsv-model").wait_for()


def _sees_an_answer_stream_in(page: Any, engine: Any) -> None:
    engine.pace = 0.05
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    ask(page, "Why is the sky blue?")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('Blue')")
    assert "most" not in last_answer(page).inner_text()
    assert "tok/s" in note(page)
    assert last_answer(page).locator("strong").inner_text() == "scattered"
    assert page.locator("#lsv-chats label.selected").inner_text() == "Why is the sky blue?"


def _sees_the_dashboard_move(page: Any, engine: Any) -> None:
    page.get_by_role("tab", name="Dashboard").click()
    page.wait_for_selector("#lsv-dashboard polyline", state="attached")
    engine.stats = engine.stats.__class__(running=5, waiting=2, kv_usage=0.5)
    page.wait_for_function("document.querySelector('#lsv-dashboard').innerText.includes('50.0')")
    assert re.search(r"Running\s+5 requests\s+Waiting\s+2 requests", page.locator("#lsv-dashboard").inner_text())


def _is_told_of_a_dead_server(page: Any, url: str) -> None:
    told = f"No server answers at {url}. Start one with: lsv serve"
    page.wait_for_selector("#lsv-status .lsv-pill.down")
    assert page.locator("#lsv-status .lsv-pill").inner_text() == told
    page.get_by_role("tab", name="Chat").click()
    ask(page, "Hello again")
    page.wait_for_selector("#lsv-chat .lsv-error")
    assert page.locator("#lsv-chat .lsv-error").inner_text() == told


@pytest.mark.slow
def test_an_answer_makes_the_browser_load_nothing_from_elsewhere(api, pages, chromium) -> None:
    page = chromium.new_context().new_page()
    page.goto(pages.url(api.url))
    page.wait_for_selector("#lsv-status .lsv-pill")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(1.0)
        api.engine.answer = f"![x](http://127.0.0.1:{elsewhere.getsockname()[1]}/secret.png) done"
        ask(page, "Show me")
        note(page)
        assert page.locator("#lsv-chat .bot.message img").count() == 1
        with pytest.raises(TimeoutError):
            elsewhere.accept()
    page.context.close()


@pytest.mark.slow
def test_stopping_editing_and_asking_again(api, pages, visit) -> None:
    api.engine.pace, api.engine.answer = 0.02, "word " * 60
    page = visit(pages.url(api.url))
    ask(page, "Talk for long")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('word')")
    page.locator("#lsv-box .stop-button").click()
    assert note(page).endswith("stopped")
    api.engine.pace, api.engine.answer = 0.0, "Again."
    page.locator("#lsv-chat button[title='Retry'], #lsv-chat button[aria-label='Retry']").click()
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('Again.')")
    page.wait_for_selector("#lsv-box .submit-button")
    api.engine.answer = "Edited."
    page.locator("#lsv-chat button[title='Edit'], #lsv-chat button[aria-label='Edit']").first.click()
    page.locator("#lsv-chat textarea").fill("Talk briefly")
    page.locator("#lsv-chat button[title='Submit'], #lsv-chat button[aria-label='Submit']").click()
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('Edited.')")
    assert page.locator("#lsv-chat .user.message").inner_text() == "Talk briefly"
    assert page.locator(ANSWERS).count() == 1


@pytest.mark.slow
def test_an_open_page_only_requests_the_health(api, pages, visit) -> None:
    visit(pages.url(api.url)).wait_for_selector("#lsv-status .ready")
    time.sleep(1.5)  # until the looks that follow the opening are over
    before = _counts(api.url)
    time.sleep(3.0)
    more = {route: count - before[route] for route, count in _counts(api.url).items() if route in before}
    assert more["/health"] >= 2
    assert (more["/v1/models"], more["/openapi.json"]) == (0, 0)


def _counts(url: str) -> dict[str, float]:
    """How often each route was asked, by the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        route: float(count) for route, count in re.findall(r'requests_total.route="([^"]+)",status="200"} (\S+)', text)
    }


@pytest.mark.slow
def test_a_missing_key_is_shown_next_to_the_buttons_on_a_phone(locked, pages, visit) -> None:
    page = visit(pages.url(locked.url), width=390, height=844)
    told = page.locator("#lsv-status .lsv-pill").bounding_box()
    for button in ("#lsv-settings .toggle-button", "#lsv-side .toggle-button"):
        other = page.locator(button).bounding_box()
        assert told["y"] >= other["y"] + other["height"]


@pytest.mark.slow
def test_a_long_name_of_a_model_ends_before_the_arrow(pages, visit) -> None:
    server = StandIn({"a-model-whose-name-is-longer-than-its-box.Q4_1": ["text"]})
    page = visit(pages.url(server.url), width=390, height=844)
    page.wait_for_selector("#lsv-status .ready")
    field, arrow = (page.locator(f"#lsv-model {part}").bounding_box() for part in ("input", ".dropdown-arrow"))
    padding = page.locator("#lsv-model input").evaluate("box => parseFloat(getComputedStyle(box).paddingRight)")
    assert field["x"] + field["width"] - padding <= arrow["x"]
    server.stop()


@pytest.mark.slow
def test_several_conversations(api, pages, visit) -> None:
    page = visit(pages.url(api.url), width=390, height=844)
    ask(page, "First question")
    note(page)
    page.click("#lsv-side .toggle-button")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    page.get_by_text("Who are you?").click()
    page.locator("#lsv-chat .user.message", has_text="Who are you?").wait_for()
    note(page)
    page.click("#lsv-side .toggle-button")
    page.wait_for_function("document.querySelectorAll('#lsv-chats label').length == 2")
    assert page.locator("#lsv-chats label").all_inner_texts() == ["Who are you?", "First question"]
    page.locator("#lsv-chats label").last.click()
    page.wait_for_function("document.querySelector('#lsv-chat .user.message')?.innerText == 'First question'")
    page.click("#lsv-side .toggle-button")
    page.click("#lsv-delete")
    page.wait_for_function("document.querySelectorAll('#lsv-chats label').length == 1")


@pytest.mark.slow
def test_deleting_a_conversation_can_be_undone(api, pages, visit) -> None:
    page = visit(pages.url(api.url))
    for question in ("First question", "Second question"):
        page.click("#lsv-new")
        page.wait_for_selector(".lsv-greeting")
        ask(page, question)
        note(page)
    assert page.locator("#lsv-undo").is_hidden()
    page.click("#lsv-delete")
    page.get_by_role("button", name="Undo: delete “Second question”").click()
    page.wait_for_function("document.querySelector('#lsv-chat .user.message')?.innerText == 'Second question'")
    assert last_answer(page).inner_text().startswith("Blue")
    page.locator("#lsv-undo").wait_for(state="hidden")
    page.reload()
    page.wait_for_selector(".lsv-note")
    assert page.locator("#lsv-chats label").all_inner_texts() == ["Second question", "First question"]
    assert page.locator("#lsv-chats label.selected").inner_text() == "Second question"


@pytest.mark.slow
def test_leaving_an_answer_keeps_it_and_does_not_disturb_the_next(api, pages, visit) -> None:
    api.engine.pace, api.engine.answer = 0.05, "old " * 100
    page = visit(pages.url(api.url))
    ask(page, "Talk for long")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('old')")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    page.wait_for_timeout(500)
    assert page.locator("#lsv-chat .bot.message").count() == 0
    api.engine.pace, api.engine.answer = 0.0, "new"
    ask(page, "And now?")
    note(page)
    assert "old" not in page.locator("#lsv-chat").inner_text()
    page.locator("#lsv-chats label", has_text="Talk for long").click()
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('old')")
    assert note(page) == "stopped"


@pytest.mark.slow
def test_closing_the_window_aborts_the_answer_and_keeps_it(api, pages, visit) -> None:
    api.engine.pace, api.engine.answer, before = 0.05, "word " * 60, len(api.engine.aborted)
    page = visit(pages.url(api.url))
    ask(page, "Talk for long")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.length > 40")
    page.close()
    deadline = time.monotonic() + 10
    while len(api.engine.aborted) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again = visit(pages.url(api.url), beside=page)
    assert note(again) == "stopped"
    assert "word" in last_answer(again).inner_text()


@pytest.mark.slow
def test_settings_are_sent_and_survive_a_reload_with_the_conversation(api, pages, visit) -> None:
    page = visit(pages.url(api.url))
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Longest answer").fill("4")
    ask(page, "Hello")
    assert "cut off at the length limit" in note(page)
    request = api.engine.requests[-1]
    prompt, params = request.prompt.ids, request.sampling
    assert bytes(token for token in prompt if token < 256).startswith(b"<system>Be brief.")
    assert params.max_tokens == 4
    page.reload()
    page.wait_for_selector(".lsv-note")
    assert last_answer(page).inner_text().startswith("Blue")
    assert page.locator("#lsv-chats label.selected").inner_text() == "Hello"
    page.wait_for_function("Array.from(document.querySelectorAll('#lsv-sampling input')).some(i => i.value == '4')")
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("Longest answer").fill("many")
    ask(page, "Hello again")
    page.wait_for_selector(".lsv-error")
    assert "must be a whole number" in page.locator(".lsv-error").inner_text()
