"""What the page offers of what a server and its models can do."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import WORDS_SO_FAR, ask, attach, note
from .media_files import draw_circle, move_square, play_beeps
from .stand_in import WORDS, StandIn

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]

MODELS = {"senses": ["text", "image", "audio", "video"], "eyes": ["text", "image"], "words": ["text"], "silent": None}


@pytest.fixture(scope="module")
def running() -> Iterator[StandIn]:
    server = StandIn(MODELS)
    yield server
    server.stop()


@pytest.fixture
def able(running: StandIn) -> Iterator[StandIn]:
    yield running
    running.pace, running.body, running.form = 0.0, {}, {}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A picture, a sound, a clip."""
    return [draw_circle(tmp_path / "a.png"), play_beeps(tmp_path / "b.wav"), move_square(tmp_path / "c.mp4")]


def choose(page, model: str) -> None:
    page.click("#lsv-model input")
    page.get_by_role("option", name=model).click()


def test_pictures_sounds_and_clips_are_sent(able, pages, visit, files) -> None:
    page = visit(pages.url(able.url))
    attach(page, files)
    ask(page, "What is this?")
    page.get_by_text("I see and hear it.").wait_for()
    *media, text = able.body["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    image, audio, video = sorted(media, key=lambda part: ("image_url", "input_audio", "video_url").index(part["type"]))
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert base64.b64decode(image["image_url"]["url"].partition(",")[2]) == files[0].read_bytes()
    assert base64.b64decode(audio["input_audio"]["data"]) == files[1].read_bytes()
    assert audio["input_audio"]["format"] == "wav"
    assert base64.b64decode(video["video_url"]["url"].partition(",")[2]) == files[2].read_bytes()
    page.locator("#lsv-chat .user img").wait_for()


def test_inputs_match_the_model(able, pages, visit) -> None:
    page = visit(pages.url(able.url))
    file, microphone = page.locator("#lsv-box input[type=file]"), page.locator("#lsv-box .microphone-button")
    page.get_by_text("senses takes text, images, audio and videos").wait_for()
    assert file.get_attribute("accept") == "image/*, audio/*, video/*"
    assert microphone.count() == 1
    choose(page, "eyes")
    page.get_by_text("eyes takes text and images, but no audio or videos").wait_for()
    assert file.get_attribute("accept") == "image/*"
    assert microphone.count() == 0
    assert "attach an image." in page.locator(".lsv-greeting").inner_text()
    choose(page, "words")
    page.get_by_text("words takes text only").wait_for()
    assert file.count() == microphone.count() == 0
    assert "attach" not in page.locator(".lsv-greeting").inner_text()
    choose(page, "silent")
    microphone.wait_for()
    assert page.locator("#lsv-hint .prose").inner_text() == ""


def test_unsupported_media_are_refused_before_sending(able, pages, visit, files) -> None:
    page = visit(pages.url(able.url))
    attach(page, files[:2])
    choose(page, "eyes")
    page.locator("#lsv-hint", has_text="eyes").wait_for()
    ask(page, "What is this?")
    page.wait_for_selector(".lsv-error")
    assert "eyes takes text and images, but no audio" in page.locator(".lsv-error").inner_text()
    assert "Choose a model that takes audio" in page.locator(".lsv-error").inner_text()
    assert able.body == {}
    assert page.locator("#lsv-chats label.selected").inner_text() == "What is this?"
    ask(page, "Never mind")
    assert note(page)
    assert able.body["messages"] == [{"role": "user", "content": "Never mind"}]


def test_a_sound_is_transcribed(able, pages, visit, files) -> None:
    able.pace = 0.3
    page = visit(pages.url(able.url))
    page.get_by_role("tab", name="Transcribe").click()
    page.get_by_role("button", name="Transcribe").click()
    page.get_by_text("Choose or record audio first.").wait_for()
    page.set_input_files("#lsv-transcription input[type=file]", files[1])
    page.wait_for_selector("#lsv-transcription #waveform")
    page.get_by_label("Language").fill("en")
    page.get_by_role("button", name="Transcribe").click()
    page.wait_for_function(WORDS_SO_FAR.format("v.startsWith('Three') && !v.includes('voice')"))  # it streams
    page.wait_for_function(WORDS_SO_FAR.format(f"v == '{WORDS}'"))
    name, content = able.form.pop("file")
    assert (Path(name).suffix, content[:4]) == (".wav", b"RIFF")
    assert able.form == {"response_format": "json", "language": "en", "model": "senses", "stream": "true"}
    page.get_by_label("With timestamps").check()
    page.get_by_role("button", name="Transcribe").click()
    page.wait_for_function(WORDS_SO_FAR.format("v.includes('0:01.5 – 0:02.8  then')"))
    page.get_by_label("SRT").check()
    page.get_by_role("button", name="Transcribe").click()
    page.wait_for_function(WORDS_SO_FAR.format("v.startsWith('(srt)')"))
    assert "stream" not in able.form


def test_a_reranker_sorts_texts(pages, visit) -> None:
    server = StandIn({"finder": ["text"], "silent": None}, tasks=("embed", "score"))
    page = visit(pages.url(server.url))
    page.get_by_role("tab", name="Rerank").click()
    page.get_by_role("button", name="Rerank").click()
    page.get_by_text("Enter a question").wait_for()
    page.get_by_label("Question").fill("Where do llamas live?")
    page.get_by_label("Texts, one a line").fill("Bread rises.\n\n  <b>In the Andes.</b> \n")
    page.get_by_role("button", name="Rerank").click()
    page.wait_for_selector("#lsv-found li")
    assert page.locator("#lsv-found li").all_inner_texts() == ["0.750\n<b>In the Andes.</b>", "0.250\nBread rises."]
    assert server.body == {
        "query": "Where do llamas live?", "documents": ["Bread rises.", "<b>In the Andes.</b>"], "model": "finder"
    }  # fmt: skip
    choose(page, "silent")
    page.get_by_role("tab", name="Rerank").wait_for(state="hidden")
    server.stop()


def test_a_model_that_chats_has_no_tab_to_rerank(pages, visit) -> None:
    server = StandIn({"writer": ["text"]}, tasks=("generate", "embed", "score"))
    page = visit(pages.url(server.url))
    page.get_by_text("writer takes text only").wait_for()
    assert page.get_by_role("tab").all_inner_texts() == ["Chat", "Dashboard"]
    server.stop()


def test_structured_output_is_used_if_the_server_has_it(able, pages, visit) -> None:
    page = visit(pages.url(able.url))
    page.click("#lsv-settings .toggle-button")
    page.get_by_text("Structured output").click()
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    ask(page, "Hello")
    note(page)
    assert able.body["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.fixture
def other() -> Iterator[StandIn]:
    """A server that is not lsv, and does not tell what it can do."""
    server = StandIn({"words": ["text"]}, lsv=False)
    yield server
    server.stop()


def test_what_a_server_can_not_do_is_not_shown(other, pages, visit) -> None:
    page = visit(pages.url(other.url))
    page.wait_for_selector("#lsv-status .ready")
    page.get_by_text("words takes text only").wait_for()
    assert page.get_by_role("tab").all_inner_texts() == ["Chat", "Dashboard"]
    assert page.locator("#lsv-box :is(input[type=file], .microphone-button)").count() == 0
    page.click("#lsv-settings .toggle-button")
    page.get_by_text("System prompt").wait_for()
    for panel in ("Structured output", "Tools", "Think first"):
        assert page.get_by_text(panel, exact=True).count() == 0


def test_keys_reach_what_is_there_and_nothing_else(able, pages, visit) -> None:
    page = visit(pages.url(able.url))
    assert page.evaluate("document.activeElement.ariaLabel") == "Message"
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText.trim()"))
    assert reached[:2] == ["Record audio", "Submit"]
    assert {"Conversations", "New chat", "Light / dark", "Settings", "Model", "Chat"} <= set(reached)
    assert page.locator("#lsv-settings textarea").first.is_hidden()


def test_nothing_jumps_while_an_answer_is_written(able, pages, visit) -> None:
    """By the measure of browsers, where 0.1 is good: https://web.dev/articles/cls."""
    able.pace = 0.05
    page = visit(pages.url(able.url))
    ask(page, "Why?")
    page.wait_for_selector(".lsv-note")
    page.evaluate(
        "() => { window.moved = 0; const add = seen => seen.getEntries().forEach(entry => window.moved += entry.value);"
        "new PerformanceObserver(add).observe({type: 'layout-shift'}); }"
    )
    note(page)
    page.wait_for_timeout(300)
    assert page.evaluate("window.moved") < 0.01
