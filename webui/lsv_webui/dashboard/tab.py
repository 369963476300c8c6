"""The dashboard's tab: it polls the server as long as somebody looks."""

from __future__ import annotations

import time

import gradio as gr

from lsv.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat.view import QUIET, banner
from lsv_webui.dashboard.board import SHOWN, draw
from lsv_webui.dashboard.metrics import Sample, read_metrics

POLL_SECONDS = 2.0
PAUSE_SECONDS = 5 * POLL_SECONDS
"""After so long without a sample, nobody having looked, the plots begin anew."""


class Dashboard:
    """The tab, and the clock that draws it anew while it is looked at."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def render(self, tab: gr.Tab, key: gr.Textbox) -> gr.Timer:
        """Lay the tab out; the clock stands until somebody starts it."""
        board = gr.HTML(draw(()), elem_id="lsv-board")
        samples = gr.State([])
        clock = gr.Timer(POLL_SECONDS, active=False)
        for trigger in (tab.select, clock.tick):
            trigger(self.poll, [samples, key], [board, samples], **QUIET)
        return clock

    async def poll(self, samples: list[Sample], key: str) -> tuple[str, list[Sample]]:
        """Read the metrics once more; a server that does not answer leaves what was there under its error."""
        try:
            now = read_metrics(await self._api.metrics(key), time.monotonic())
        except LsvError as error:
            return banner(error.message) + draw(samples), samples
        if samples and now.at - samples[-1].at > PAUSE_SECONDS:
            samples = []
        samples = [*samples, now][-SHOWN:]
        return draw(samples), samples
