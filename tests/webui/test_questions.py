"""Questions are shown, edited and copied as typed, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lsv_webui.chat.conversation import Chat, Message
from lsv_webui.chat.typed import as_typed, read_typed
from lsv_webui.chat.view import banner, entries

from .conftest import ask, note
from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")

QUESTION = """What does <div class='x'> do?

# set up
a_b_c = 2*3*4
    print(a_b_c)  # <b>24</b> &amp; $x$ \\(y\\) $$z$$ `c` ~~d~~

<img src=gone.png> </div> </pre> %%%LATEX_BLOCK_0%%%
1. one
- two | https://example.com"""

EDITED = "Is **2*3*4** <b>24</b>, or $5?"
SHOWN = "#lsv-chat .user.message .lsv-typed"
BUTTON = "#lsv-chat button:is([title={0!r}], [aria-label={0!r}])"


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    running = StandIn({"words": ["text"]})
    yield running
    running.stop()


@pytest.mark.parametrize("text", [QUESTION, EDITED, "plain", "über 中文 🙂 &#35; \ttab", "</div>\n\n<div class='a'>"])
def test_a_question_is_read_back_as_it_was_typed(text) -> None:
    assert read_typed(as_typed(text)) == text
    assert read_typed(text) == text


def test_markdown_in_questions_and_errors_is_escaped() -> None:
    chat = Chat(messages=[Message(role="user", text=QUESTION), Message(role="assistant", error=QUESTION)])
    asked, failed = entries(chat)
    for shown in (asked["content"][0]["text"], failed["content"], banner(QUESTION)):
        inside = shown.partition(">")[2].rpartition("</div>")[0]
        assert not set(inside) & set("<>*_`$\\[]()~|\n")


@pytest.mark.slow
def test_a_question_is_shown_as_it_was_typed(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    ask(page, QUESTION)
    note(page)
    assert page.locator(SHOWN).inner_text() == QUESTION
    assert page.locator(f"{SHOWN} *").count() == 0
    assert page.locator("#lsv-chat img").count() == 0
    assert server.body["messages"] == [{"role": "user", "content": QUESTION}]
    assert page.locator("#lsv-chat [data-testid=user]").get_attribute("aria-label") == f"You: {QUESTION}"
    page.reload()
    page.wait_for_selector(SHOWN)
    assert page.locator(SHOWN).inner_text() == QUESTION


@pytest.mark.slow
def test_a_question_is_copied_and_edited_as_it_was_typed(server, pages, visit) -> None:
    page = visit(pages.url(server.url))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, QUESTION)
    note(page)
    page.locator("#lsv-chat .user.message").hover()
    page.locator("#lsv-chat .user-row + .message-buttons button").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == QUESTION
    page.locator(BUTTON.format("Edit")).first.click()
    assert page.locator("#lsv-chat textarea").input_value() == QUESTION
    drawn = _watch_for_markup(page)
    page.locator("#lsv-chat textarea").fill(EDITED)
    page.locator(BUTTON.format("Submit")).click()
    page.wait_for_function("text => document.querySelector('#lsv-chat .lsv-typed')?.innerText == text", arg=EDITED)
    note(page)
    assert server.body["messages"] == [{"role": "user", "content": EDITED}]
    assert page.evaluate(drawn) == 0


def _watch_for_markup(page: Any) -> str:
    """Counts in the browser what is ever drawn within a question, other than its text; returns where."""
    page.evaluate("""() => {
      window.drawn = 0;
      new MutationObserver(() => {
        window.drawn += document.querySelectorAll('#lsv-chat .user.message :is(b, strong, em, .lsv-typed *)').length;
      }).observe(document.body, { childList: true, subtree: true });
    }""")
    return "window.drawn"
