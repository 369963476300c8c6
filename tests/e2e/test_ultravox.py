"""``lsv serve`` on a tiny Ultravox in three checkpoints: sounds of one message, through every process."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lsv_testing.tiny_hearing import tiny_ultravox
from suite.server import Server
from suite.sounds import beep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("ultravox")
    model = tiny_ultravox(folder, seconds=30)
    running = Server(
        folder / "log", str(model), "--served-model-name", "m", "--max-model-len", "448",
        "--limit-mm-per-prompt", '{"audio": 2}', "--no-enable-chunked-prefill",
    )  # fmt: skip
    try:
        running.wait_until_ready()
        yield running.client()
    finally:
        running.stop()


def sent(hertz: int, seconds: float = 1.0) -> dict[str, Any]:
    data = base64.b64encode(beep(hertz, seconds)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def ask(client: openai.OpenAI, *parts: Any) -> Any:
    content: Any = [*parts, {"type": "text", "text": "What do you hear?"}]
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=8)


@pytest.mark.row("F-653")
def test_answers_depend_on_what_is_heard(client: openai.OpenAI) -> None:
    answers = [ask(client, sent(hertz)) for hertz in (440, 440, 1760)]
    first, again, other = (answer.choices[0].message.content for answer in answers)
    assert first == again != other
    # of a second: 100 frames, an embedding for every sixteen; half a minute has 188, and then it begins anew
    silent = ask(client).usage.prompt_tokens
    mark = len("\n")
    assert answers[0].usage.prompt_tokens == silent + mark + 7
    assert ask(client, sent(440, 31.0)).usage.prompt_tokens == silent + mark + 188 + 7


@pytest.mark.row("F-706")
def test_two_sounds_of_a_prompt_are_heard_and_a_third_is_refused(client: openai.OpenAI) -> None:
    both, swapped = (ask(client, sent(one), sent(other)) for one, other in ((440, 880), (880, 440)))
    assert both.choices[0].message.content != swapped.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="a prompt may hold 2 items of kind audio, got 3"):
        ask(client, sent(440), sent(440), sent(440))
