"""The dashboard's tab: polls the server while somebody is looking."""

from __future__ import annotations

import time

import gradio as gr

from lsv_base.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat.view import QUIET, banner
from lsv_webui.dashboard.cards import SHOWN, draw
from lsv_webui.dashboard.metrics import Sample, read_metrics

POLL_SECONDS = 2.0
PAUSE_SECONDS = 5 * POLL_SECONDS
"""After this long without a sample, because nobody was looking, the plots start afresh."""


class Dashboard:
    """The tab, and the timer that redraws it while somebody is looking."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def render(self, tab: gr.Tab, key: gr.Textbox) -> gr.Timer:
        """Lay out the tab; the timer is off until somebody starts it."""
        shown = gr.HTML(draw(()), elem_id="lsv-dashboard")
        samples = gr.State([])
        clock = gr.Timer(POLL_SECONDS, active=False)
        for trigger in (tab.select, clock.tick):
            trigger(self.poll, [samples, key], [shown, samples], **QUIET)
        return clock

    async def poll(self, samples: list[Sample], key: str) -> tuple[str, list[Sample]]:
        """Read the metrics again; if the server does not answer, show the error above the last samples."""
        try:
            now = read_metrics(await self._api.metrics(key), time.monotonic())
        except LsvError as error:
            return banner(error.message) + draw(samples), samples
        if samples and now.at - samples[-1].at > PAUSE_SECONDS:
            samples = []
        samples = [*samples, now][-SHOWN:]
        return draw(samples), samples
