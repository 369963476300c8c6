"""``lsv serve`` on tiny models that see and hear: pictures and sounds of one message, through every process."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from lsv_testing.tiny import tiny
from suite.server import Server
from suite.sounds import beep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("omni")
    tiny(request.param, folder / "model", tokenizer=True)
    running = Server(folder / "log", str(folder / "model"), "--served-model-name", "m", "--max-model-len", "448")
    try:
        running.wait_until_ready()
        yield running.client()
    finally:
        running.stop()


def url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(*colour: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), colour).save(file, "PNG")
    return {"type": "image_url", "image_url": {"url": url(file.getvalue(), "image/png")}}


def linked(hertz: int) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": url(beep(hertz), "audio/wav")}}


def sent(hertz: int) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(beep(hertz)).decode(), "format": "wav"}}


def ask(client: openai.OpenAI, *parts: Any, **options: Any) -> Any:
    content = [*parts, {"type": "text", "text": "What do you see and hear?"}]
    messages: Any = [{"role": "system", "content": "You are Qwen."}, {"role": "user", "content": content}]
    return client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=8, **options)


@pytest.mark.row("F-709")
def test_answers_depend_on_what_is_seen_and_heard(client: openai.OpenAI) -> None:
    def text(*parts: Any) -> str:
        return str(ask(client, *parts).choices[0].message.content)

    one = text(picture(255, 0, 0), linked(440))
    assert one == text(picture(255, 0, 0), sent(440)), "the same sound, however it came"
    assert len({one, text(picture(0, 0, 255), linked(440)), text(picture(255, 0, 0), linked(1760))}) == 3
    first, second = (ask(client, sent(300), sent(900)).usage for _ in range(2))
    assert first.prompt_tokens == second.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens > 0 == first.prompt_tokens_details.cached_tokens


def test_it_does_not_speak(client: openai.OpenAI) -> None:
    voice: Any = {"voice": "Chelsie", "format": "wav"}
    for asked in ({"modalities": ["text", "audio"]}, {"audio": voice}):
        with pytest.raises(openai.BadRequestError, match="is not available on this server"):
            ask(client, picture(255, 0, 0), **asked)
