"""The page as a visitor sees it, in Chromium."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("webui")

Open = Callable[..., Any]


@pytest.fixture
def visit(chromium) -> Iterator[Open]:
    """Open a page in a browser that was never here. What it asks for elsewhere, and its errors, fail the test."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_page(url: str, width: int = 1280, height: int = 800) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda asked: _judge(asked.url, url, faults))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#lsv-status .lsv-pill")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _judge(asked: str, own: str, faults: list[str]) -> None:
    if not asked.startswith((own, "data:", "blob:")):
        faults.append(f"the page asked for {asked}")


def ask(page: Any, text: str) -> None:
    page.fill("#lsv-box textarea", text)
    page.press("#lsv-box textarea", "Enter")


def last_answer(page: Any) -> Any:
    return page.locator("#lsv-chat .bot.message").last


def note(page: Any) -> str:
    """The figures under the answer, once it is there."""
    found = page.locator(".lsv-note").last
    found.wait_for()
    return str(found.inner_text())


def test_an_answer_streams_in(api, pages, visit) -> None:
    api.engine.pace = 0.01
    page = visit(pages.url(api.url))
    ask(page, "Why is the sky blue?")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('Blue')")
    assert "most" not in last_answer(page).inner_text()
    assert "tok/s" in note(page)
    assert last_answer(page).locator("strong").inner_text() == "scattered"
    assert page.locator("#lsv-chats label.selected").inner_text() == "Why is the sky blue?"


def test_the_dashboard_moves(api, pages, visit) -> None:
    page = visit(pages.url(api.url))
    page.get_by_role("tab", name="Dashboard").click()
    page.wait_for_selector("#lsv-board polyline", state="attached")
    api.engine.stats = api.engine.stats.__class__(running=5, waiting=2, kv_usage=0.5)
    page.wait_for_function("document.querySelector('#lsv-board').innerText.includes('50.0')")
    assert re.search(r"Running\s+5 requests\s+Waiting\s+2 requests", page.locator("#lsv-board").inner_text())
    api.engine.stats = api.engine.stats.__class__()


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


def test_a_wrong_key_is_told_and_can_be_mended(locked, pages, visit) -> None:
    page = visit(pages.url(locked.url, "wrong"))
    assert "asks for another API key" in page.locator("#lsv-status").inner_text()
    ask(page, "Hello")
    page.wait_for_selector(".lsv-error")
    assert "Enter yours under Settings" in page.locator(".lsv-error").inner_text()
    page.click("#lsv-settings .toggle-button")
    page.fill("#lsv-key input", "correct-key")
    page.wait_for_selector("#lsv-status .lsv-pill.ready")


def test_a_dead_server_is_told(pages, visit) -> None:
    page = visit(pages.url("http://127.0.0.1:9"))
    assert "No server answers at http://127.0.0.1:9" in page.locator("#lsv-status").inner_text()
    ask(page, "Hello")
    page.wait_for_selector(".lsv-error")
    assert "Start one with: lsv serve" in page.locator(".lsv-error").inner_text()


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
    assert page.locator("#lsv-chat .bot.message").count() == 1


@pytest.mark.slow
def test_several_conversations(api, pages, visit) -> None:
    page = visit(pages.url(api.url), width=390, height=844)
    ask(page, "First question")
    note(page)
    page.click("#lsv-side .toggle-button")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    page.get_by_text("Who are you?").click()
    note(page)
    page.click("#lsv-side .toggle-button")
    assert page.locator("#lsv-chats label").all_inner_texts() == ["Who are you?", "First question"]
    page.locator("#lsv-chats label").last.click()
    page.wait_for_function("document.querySelector('#lsv-chat .user.message')?.innerText == 'First question'")
    page.click("#lsv-side .toggle-button")
    page.click("#lsv-delete")
    page.wait_for_function("document.querySelectorAll('#lsv-chats label').length == 1")


@pytest.mark.slow
def test_leaving_an_answer_does_not_disturb_the_next(api, pages, visit) -> None:
    api.engine.pace, api.engine.answer = 0.02, "old " * 60
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


@pytest.mark.slow
def test_closing_the_window_aborts_the_answer(api, pages, visit) -> None:
    api.engine.pace, api.engine.answer, before = 0.05, "word " * 60, len(api.engine.aborted)
    page = visit(pages.url(api.url))
    ask(page, "Talk for long")
    page.wait_for_function("document.querySelector('#lsv-chat .bot.message')?.innerText.includes('word')")
    page.close()
    deadline = time.monotonic() + 10
    while len(api.engine.aborted) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_picture_the_model_can_not_take_is_refused_plainly(api, pages, visit, tmp_path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    page = visit(pages.url(api.url))
    page.set_input_files("#lsv-box input[type=file]", tmp_path / "red.png")
    page.wait_for_selector("#lsv-box .thumbnails img")
    ask(page, "What is this?")
    page.wait_for_selector(".lsv-error")
    assert page.locator("#lsv-chat .user.message img, #lsv-chat .user img").count() == 1


@pytest.mark.slow
def test_settings_are_sent_and_survive_a_reload_with_the_conversation(api, pages, visit) -> None:
    page = visit(pages.url(api.url))
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Longest answer").fill("4")
    ask(page, "Hello")
    assert "cut at the longest length" in note(page)
    _, prompt, params = api.engine.asked[-1]
    assert bytes(token for token in prompt if token < 256).startswith(b"<system>Be brief.")
    assert params.max_tokens == 4
    page.reload()
    page.wait_for_selector(".lsv-note")
    assert last_answer(page).inner_text().startswith("Blue")
    assert page.locator("#lsv-chats label.selected").inner_text() == "Hello"
    page.wait_for_function("Array.from(document.querySelectorAll('#lsv-sampling input')).some(i => i.value == '4')")
    page.get_by_label("Longest answer").fill("many")
    ask(page, "Hello again")
    page.wait_for_selector(".lsv-error")
    assert "must be a whole number" in page.locator(".lsv-error").inner_text()
