"""The tab that writes down what is said in a sound, where the server can."""

from __future__ import annotations

import gradio as gr

from lsv.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.parts import upload
from lsv_webui.view import banner


class Transcription:
    """A sound in, its words out."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def render(self, model: gr.Dropdown, key: gr.Textbox) -> None:
        with gr.Column(elem_id="lsv-transcription"):
            sound = gr.Audio(type="filepath", sources=["upload", "microphone"], label="Sound")
            run = gr.Button("Transcribe", variant="primary")
            failure = gr.HTML()
            words = gr.Textbox(label="Words", lines=8, buttons=["copy"], interactive=False)
        run.click(self.transcribe, [sound, model, key], [words, failure], api_visibility="private")

    async def transcribe(self, sound: str | None, model: str | None, key: str) -> tuple[str, str]:
        """The words, or the reason why there are none."""
        if not sound:
            return "", banner("Choose or record a sound first.")
        try:
            return await self._api.transcribe(upload(sound), model, key or None), ""
        except LsvError as error:
            return "", banner(error.message)
