"""The transcription tab, shown where the server can transcribe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import gradio as gr

from lsv_base.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat.parts import upload
from lsv_webui.chat.view import QUIET, banner

FORMATS = [("Text", "json"), ("With timestamps", "verbose_json"), ("SRT", "srt"), ("WebVTT", "vtt")]
"""Labels and the ``response_format`` of each. Plain text is streamed."""


class Transcription:
    """Audio in, its transcript out."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def render(self, model: gr.Dropdown, key: gr.Textbox) -> None:
        with gr.Column(elem_id="lsv-transcription"):
            sound = gr.Audio(type="filepath", sources=["upload", "microphone"], label="Audio", elem_id="lsv-sound")
            form = gr.Radio(FORMATS, value="json", label="Format", elem_id="lsv-format")
            with gr.Row(elem_id="lsv-spoken"):
                language = gr.Textbox(label="Language", placeholder="en, de, fr …", max_lines=1)
                prompt = gr.Textbox(label="Words to expect", placeholder="names, terms", max_lines=1)
            with gr.Row(elem_id="lsv-transcribe"):
                run = gr.Button("Transcribe", variant="primary", scale=4)
                stop = gr.Button("Stop", scale=1, interactive=False)
            failure = gr.HTML()
            words = gr.Textbox(
                label="Transcript",
                lines=6,
                max_lines=24,
                buttons=["copy"],
                interactive=False,
                placeholder="The transcript appears here.",
                elem_id="lsv-words",
            )
        inputs = [sound, form, language, prompt, model, key]
        began = run.click(_working, None, [run, stop], **QUIET)
        running = began.then(self.transcribe, inputs, [words, failure], **QUIET)
        running.then(_at_rest, None, [run, stop], **QUIET)
        stop.click(_at_rest, None, [run, stop], cancels=running, **QUIET)

    async def transcribe(
        self, sound: str | None, form: str, language: str, prompt: str, model: str | None, key: str
    ) -> AsyncIterator[tuple[Any, str]]:
        """The transcript as it streams in, or an error."""
        if not sound:
            yield "", banner("Choose or record audio first.")
            return
        yield "", ""
        asked = {"response_format": form, "language": language.strip(), "prompt": prompt.strip(), "model": model or ""}
        asked["stream"] = "true" if form == "json" else ""
        words = ""
        try:
            given = {name: value for name, value in asked.items() if value}
            async with aclosing(self._api.transcribe(upload(sound), given, key or None)) as events:
                async for event in events:
                    words = heard(words, event)
                    yield words, ""
        except LsvError as error:
            yield words, banner(error.message)


def heard(words: str, event: Mapping[str, Any]) -> str:
    """The transcript after one more event of a stream; a complete answer replaces what came before."""
    if event.get("type") == "transcript.text.delta":
        return words + str(event["delta"])
    if segments := event.get("segments"):
        lines = (f"{_time(part['start'])} – {_time(part['end'])}  {part['text'].strip()}" for part in segments)
        return "\n".join(lines)
    return str(event.get("text", words))


def _working() -> tuple[Any, Any]:
    return gr.update(interactive=False), gr.update(interactive=True)


def _at_rest() -> tuple[Any, Any]:
    return gr.update(interactive=True), gr.update(interactive=False)


def _time(seconds: float) -> str:
    return f"{int(seconds // 60)}:{seconds % 60:04.1f}"
