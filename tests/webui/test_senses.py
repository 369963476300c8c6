"""The page in front of real servers: lsv-demo is shown things and calls tools; tiny models see and listen."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv_webui.chat.tools import make_weather

from .conftest import WORDS_SO_FAR, Command, ask, attach, free_port, last_answer, note
from .media_files import draw_circle, move_square, play_beeps

FORMS = (("Text", "v.length > 0"), ("SRT", "v.includes(' --> ')"), ("WebVTT", "v.startsWith('WEBVTT')"))

CARD = {
    "type": "object",
    "properties": {"name": {"enum": ["Mira", "Tobin"]}, "town": {"enum": ["Lorn", "Pell"]}},
    "required": ["name", "town"],
    "additionalProperties": False,
}

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]


def serve(log: Path, *arguments: str) -> Iterator[str]:
    """A server's address."""
    port = free_port()
    server = Command(log, "serve", *arguments, "--port", str(port))
    try:
        server.wait_for("lsv is ready on", 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("demo") / "log")


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from lsv_testing.tiny_hearing import tiny_hearing

    checkpoint = tiny_hearing(tmp_path_factory.mktemp("hearing"))
    log = tmp_path_factory.mktemp("transcriber") / "log"
    yield from serve(log, str(checkpoint), "--served-model-name", "ears", "--dtype", "float32")


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from lsv_testing.tiny import tiny

    checkpoint = tiny("llava", tmp_path_factory.mktemp("eyes") / "model", tokenizer=True)
    log = tmp_path_factory.mktemp("server") / "log"
    yield from serve(log, str(checkpoint), "--served-model-name", "eyes", "--dtype", "float32")


def modalities(server: str) -> list[str]:
    with urllib.request.urlopen(f"{server}/v1/models", timeout=10) as response:
        found: list[str] = json.load(response)["data"][0].get("modalities", ["text"])
        return found


def look_at_the_dashboard(page: Any) -> None:
    """So that it knows how things were before."""
    page.get_by_role("tab", name="Dashboard").click()
    page.wait_for_selector("#lsv-dashboard polyline", state="attached")
    page.get_by_role("tab", name="Chat").click()


def see_the_dashboard_moved(page: Any) -> None:
    page.get_by_role("tab", name="Dashboard").click()
    page.wait_for_function("/written [1-9]/.test(document.querySelector('#lsv-dashboard').innerText)")


@pytest.mark.parametrize(
    ("modality", "make", "name", "question", "right"),
    [
        ("image", draw_circle, "circle.png", "What do you see?", r"red circle"),
        ("audio", play_beeps, "beeps.wav", "How many beeps do you hear?", r"\b(3|three)\b"),
        ("video", move_square, "square.mp4", "Which way does it move?", r"right"),
    ],
)
def test_the_demo_says_what_it_is_shown(
    demo: str, pages: Any, visit: Any, tmp_path: Path, modality: str, make: Any, name: str, question: str, right: str
) -> None:
    assert modality in modalities(demo)
    page = visit(pages.url(demo))
    look_at_the_dashboard(page)
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("Temperature").fill("0")
    attach(page, [make(tmp_path / name)])
    ask(page, question)
    assert "first token" in note(page)
    assert re.search(right, last_answer(page).inner_text(), re.IGNORECASE), last_answer(page).inner_text()
    see_the_dashboard_moved(page)


def test_the_demo_calls_the_tools_of_the_page_and_follows_a_schema(demo: str, pages: Any, visit: Any) -> None:
    page = visit(pages.url(demo))
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Think first").check()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("checkbox", name="Calculator").check()
    page.get_by_role("checkbox", name="Weather").check()
    ask(page, "What is 3847 * 29?")
    page.get_by_text("3847 * 29 = 111563.").wait_for()
    assert page.locator("#lsv-chat .thought-group").count() == 2
    page.wait_for_selector("#lsv-box .submit-button")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    ask(page, "What is the weather in Bern?")
    page.get_by_text("It is", exact=False).and_(page.get_by_text("in Bern,", exact=False)).last.wait_for()
    assert make_weather("Bern").partition(",")[0] in last_answer(page).inner_text()
    page.wait_for_selector("#lsv-box .submit-button")
    page.click("#lsv-new")
    page.wait_for_selector(".lsv-greeting")
    page.get_by_role("checkbox", name="Calculator").uncheck()
    page.get_by_role("checkbox", name="Weather").uncheck()
    page.get_by_text("Structured output").click()
    page.get_by_label("JSON schema").fill(json.dumps(CARD))
    ask(page, "Give Mira's card as JSON.")
    note(page)
    page.wait_for_selector("#lsv-box .submit-button")
    assert json.loads(last_answer(page).inner_text()) == {"name": "Mira", "town": "Lorn"}


def test_a_model_that_sees_is_shown_pictures_and_offered_nothing_else(
    eyes: str, pages: Any, visit: Any, tmp_path: Path
) -> None:
    page = visit(pages.url(eyes))
    page.get_by_text("eyes takes text and images, but no audio or videos").wait_for()
    assert page.locator("#lsv-box input[type=file]").get_attribute("accept") == "image/*"
    look_at_the_dashboard(page)
    page.click("#lsv-settings .toggle-button")
    page.get_by_label("Longest answer").fill("8")
    attach(page, [draw_circle(tmp_path / "circle.png")])
    ask(page, "What do you see?")
    assert "8 tokens · cut off at the length limit" in note(page)
    see_the_dashboard_moved(page)


def test_a_transcriber_writes_in_every_form(transcriber: str, pages: Any, visit: Any, tmp_path: Path) -> None:
    page = visit(pages.url(transcriber))
    page.get_by_role("tab", name="Transcribe").click()
    page.set_input_files("#lsv-transcription input[type=file]", play_beeps(tmp_path / "beeps.wav"))
    page.wait_for_selector("#lsv-transcription #waveform")
    for form, wanted in FORMS:
        page.get_by_label(form, exact=True).check()
        page.get_by_role("button", name="Transcribe", exact=True).click()
        page.wait_for_function(WORDS_SO_FAR.format(wanted))
    page.get_by_label("With timestamps").check()
    page.get_by_role("button", name="Transcribe", exact=True).click()
    page.wait_for_function(WORDS_SO_FAR.format(r"/^\d+:\d\d\.\d – /.test(v)"))
    assert page.locator("#lsv-transcription .lsv-error").count() == 0
