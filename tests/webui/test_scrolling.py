"""The scroll position of the chat while an answer streams in, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import ask, note
from .stand_in import StandIn

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]

PACE = 0.02
LONG = "\n\n".join(f"{number}. *line* of a long answer with $x_{number}$ in it" for number in range(1, 160))
BOX = "document.querySelector('#lsv-chat .bubble-wrap')"
FAR = f"{BOX}.scrollHeight - {BOX}.clientHeight - {BOX}.scrollTop"
"""Pixels between what is shown and the end."""


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    running = StandIn({"words": ["text"]}, {"Talk": LONG, "Briefly": "Done."})
    yield running
    running.stop()


@pytest.fixture
def page(server: StandIn, pages: Any, visit: Any) -> Any:
    """A page whose answer is long enough to scroll, and goes on."""
    server.pace = PACE
    opened = visit(pages.url(server.url))
    ask(opened, "Talk")
    opened.wait_for_function(f"{BOX}.scrollHeight > {BOX}.clientHeight + 900")
    return opened


def wheel(page: Any) -> None:
    page.locator("#lsv-chat .bubble-wrap").hover()
    for _ in range(5):
        page.mouse.wheel(0, -100)


def press(page: Any) -> None:
    page.locator("#lsv-chat .bubble-wrap").click()
    for _ in range(2):
        page.keyboard.press("PageUp")


def drag(page: Any) -> None:
    page.evaluate(f"{BOX}.scrollTop -= 400")


@pytest.mark.parametrize("scroll", [wheel, press, drag])
def test_an_answer_does_not_pull_a_reader_to_its_end(page, scroll: Callable[[Any], None]) -> None:
    scroll(page)
    page.wait_for_timeout(400)  # a smooth scroll takes as long
    before, length = page.evaluate(f"{BOX}.scrollTop"), page.evaluate(f"{BOX}.scrollHeight")
    page.wait_for_function(f"{BOX}.scrollHeight > {length} + 300")
    assert abs(page.evaluate(f"{BOX}.scrollTop") - before) < 2
    assert page.evaluate(FAR) > 300


def test_the_chat_follows_an_answer_from_its_end(page, server) -> None:
    for _ in range(5):
        assert page.evaluate(FAR) < 60  # what came between two drawings
        page.wait_for_timeout(100)
    drag(page)
    page.wait_for_timeout(300)
    page.evaluate(f"{BOX}.scrollTop = {BOX}.scrollHeight")
    length = page.evaluate(f"{BOX}.scrollHeight")
    page.wait_for_function(f"{BOX}.scrollHeight > {length} + 300")
    assert page.evaluate(FAR) < 60
    server.pace = 0.0
    note(page)
    page.wait_for_function(f"{FAR} < 2")


def test_a_new_question_and_another_chat_are_shown(page, server) -> None:
    server.pace = 0.0
    note(page)
    drag(page)
    page.wait_for_function(f"{FAR} > 300")
    ask(page, "Briefly")
    page.get_by_text("Done.").wait_for()
    page.wait_for_function(f"{FAR} < 2")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    page.locator("#lsv-chats label", has_text="Talk").click()
    page.get_by_text("Done.").wait_for()
    page.wait_for_function(f"{FAR} < 2")
