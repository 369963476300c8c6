"""What the page shows of a server that can do more: transcription and structured output."""

from __future__ import annotations

import base64
import json
import threading
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]

ANSWERS = {
    "/health": {"status": "ready", "models": []},
    "/v1/models": {"data": [{"id": "ears"}]},
    "/openapi.json": {
        "paths": {"/v1/audio/transcriptions": {}},
        "components": {"schemas": {"ChatRequest": {"properties": {"response_format": {}}}}},
    },
}

STREAM = b"""\
data: {"choices": [{"index": 0, "delta": {"content": "I see and hear it."}}]}

data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}

data: [DONE]

"""


class Able(BaseHTTPRequestHandler):
    """A server that hears; it keeps what was sent to it."""

    heard: bytes = b""

    def do_GET(self) -> None:
        self._answer(ANSWERS[self.path])

    def do_POST(self) -> None:
        type(self).heard = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/audio/transcriptions":
            self._answer({"text": "three beeps"})
        else:
            self._send(STREAM, "text/event-stream")

    def _answer(self, body: object) -> None:
        self._send(json.dumps(body).encode(), "application/json")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def able() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Able)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    with wave.open(str(tmp_path / "beeps.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))
    return tmp_path / "beeps.wav"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    import av
    import numpy as np

    with av.open(str(tmp_path / "red.mp4"), "w") as file:
        stream = file.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        frame.pts = 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return tmp_path / "red.mp4"


def test_a_sound_is_transcribed(able, pages, chromium, sound) -> None:
    page = chromium.new_context().new_page()
    page.goto(pages.url(able))
    page.get_by_role("tab", name="Transcribe").click()
    page.set_input_files("#lsv-transcription input[type=file]", sound)
    page.wait_for_selector("#lsv-transcription #waveform")
    page.get_by_role("button", name="Transcribe").click()
    page.wait_for_function("document.querySelector('#lsv-transcription textarea').value == 'three beeps'")
    assert b'filename="beeps.wav"' in Able.heard
    assert b"ears" in Able.heard
    page.click("#lsv-settings .toggle-button")
    page.get_by_text("Structured output").click()
    page.get_by_label("JSON schema").wait_for()
    page.context.close()


def test_pictures_sounds_and_clips_are_sent(able, pages, chromium, sound, picture, clip) -> None:
    page = chromium.new_context().new_page()
    page.goto(pages.url(able))
    page.wait_for_selector("#lsv-status .ready")
    page.set_input_files("#lsv-box input[type=file]", [picture, sound, clip])
    page.wait_for_function("document.querySelectorAll('#lsv-box .thumbnail-item').length == 3")
    page.fill("#lsv-box textarea", "What is this?")
    page.press("#lsv-box textarea", "Enter")
    page.get_by_text("I see and hear it.").wait_for()
    *media, text = json.loads(Able.heard)["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    image, audio, video = sorted(media, key=lambda part: ("image_url", "input_audio", "video_url").index(part["type"]))
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert base64.b64decode(image["image_url"]["url"].partition(",")[2]) == picture.read_bytes()
    assert base64.b64decode(audio["input_audio"]["data"]) == sound.read_bytes()
    assert audio["input_audio"]["format"] == "wav"
    assert base64.b64decode(video["video_url"]["url"].partition(",")[2]) == clip.read_bytes()
    page.locator("#lsv-chat .user img").wait_for()
    page.context.close()


def test_what_a_server_can_not_do_is_not_shown(api, pages, chromium) -> None:
    page = chromium.new_context().new_page()
    page.goto(pages.url(api.url))
    page.wait_for_selector("#lsv-status .ready")
    assert page.get_by_role("tab").all_inner_texts() == ["Chat", "Dashboard"]
    page.click("#lsv-settings .toggle-button")
    assert page.get_by_text("Structured output").count() == 0
    page.context.close()
