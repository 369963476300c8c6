"""``lsv serve`` on a tiny model that sees: from a data URL to streamed text, through every process."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from lsv_testing.tiny import tiny

from .conftest import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a red picture."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "red.png").write_bytes(solid(255, 0, 0))
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, media: Path) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("llava")
    tiny("llava", folder / "model", tokenizer=True)
    running = Server(
        folder / "log", str(folder / "model"), "--allowed-local-media-path", str(media),
        "--served-model-name", "m", "--limit-mm-per-prompt", "image=2",
    )  # fmt: skip
    try:
        running.wait_until_ready()
        yield running.client()
    finally:
        running.stop()


def solid(*colour: int, size: tuple[int, int] = (64, 64)) -> bytes:
    return encode(Image.new("RGB", size, colour))


def encode(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def ask(client: openai.OpenAI, *parts: Any, **options: Any) -> Any:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=8, **options)


RED, BLUE = (picture(solid(*colour)) for colour in ((255, 0, 0), (0, 0, 255)))


def test_answers_depend_on_pictures_and_their_order(client: openai.OpenAI) -> None:
    def text(*parts: Any) -> str:
        return str(ask(client, *parts).choices[0].message.content)

    one = text(RED, BLUE, "?")
    assert one != text(BLUE, RED, "?")
    assert one == text(RED, BLUE, "?")
    noise = np.random.default_rng(0).integers(0, 255, (100, 300, 3), np.uint8)
    assert text(picture(encode(Image.fromarray(noise), "JPEG")), "?") != text(RED, "?")


def test_the_second_turn_finds_the_first_in_the_cache(client: openai.OpenAI) -> None:
    begun = "x" * 100
    first, second = (ask(client, begun, RED, "and?" * 10).usage for _ in range(2))
    # 4 x 4 patches
    assert first.prompt_tokens == second.prompt_tokens == len(f"user: {begun}{'and?' * 10}assistant: ") + 16
    assert first.prompt_tokens_details.cached_tokens == 0
    # full blocks of 32 tokens, or of the 64 that some platforms have
    assert second.prompt_tokens_details.cached_tokens in (160, 128)


def test_streams_and_files(client: openai.OpenAI, media: Path) -> None:
    whole = ask(client, RED, "?").choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, RED, "?", stream=True)) == whole
    for url in (f"file:{media}/red.png", f"file://{media}/red.png"):
        file = {"type": "image_url", "image_url": {"url": url}}
        assert ask(client, file, "?").choices[0].message.content == whole


def test_what_is_refused(client: openai.OpenAI) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    for parts, message in (
        ([sound], "this model takes text, image, but no audio"),
        ([RED, RED, RED], "may hold 2 items of kind image"),
        ([picture(solid(1, 1, 1, size=(1, 1000)))], "too thin"),
        (["<image>", RED], "where there is nothing"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            ask(client, *parts)
