"""The page: the list of conversations, tabs and settings; and what happens when it opens."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import api as endpoint

from lsv_base.errors import LsvError, Unauthorized
from lsv_webui.api import Api
from lsv_webui.chat.controls import Controls
from lsv_webui.chat.tab import ChatTab
from lsv_webui.chat.view import QUIET, linked
from lsv_webui.dashboard.tab import Dashboard
from lsv_webui.endpoint import chat_endpoint
from lsv_webui.rerank import Rerank
from lsv_webui.theme import OPENED, TOGGLE_MODE
from lsv_webui.transcription import Transcription

STATUS_SECONDS = 10.0
"""Seconds between checks of the server's health."""

MODELS_SECONDS = 60.0
"""Seconds between requests for its models while its health stays the same. Adapters may come and go meanwhile."""

UPLOADS_KEPT = (3600, 7 * 86400)
"""Seconds between searches for old uploads, and the age at which they are deleted."""

BRAND = '<div class="lsv-brand"><b>lsv</b><span>your models, answering</span></div>'


class Seen(NamedTuple):
    """The state of the server that a page shows. ``asked`` identifies the last request for its models."""

    pill: str = ""
    asked: tuple[Any, ...] = ()
    found: tuple[Any, ...] = ()


def build(api: Api) -> gr.Blocks:
    """The page for a server, not yet listening."""
    return Page(api).build()


class Page:
    """One page for all visitors."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._chat = ChatTab(api)
        self._controls = Controls()

    def build(self) -> gr.Blocks:
        page: gr.Blocks
        with gr.Blocks(
            title="lsv", fill_height=True, fill_width=True, analytics_enabled=False, delete_cache=UPLOADS_KEPT
        ) as page:
            with gr.Sidebar(width=280, elem_id="lsv-side"):
                gr.HTML(BRAND)
                self._chat.render_list()
                with gr.Row(elem_id="lsv-foot"):
                    self._chat.render_delete()
                    mode = gr.Button("Light / dark", size="sm", elem_id="lsv-mode")
            with gr.Sidebar(position="right", width=320, open=False, elem_id="lsv-settings"):
                self._controls.render()
            self._seen = gr.State(Seen())
            with gr.Row(elem_id="lsv-top"):
                self._controls.render_model()
                self._status = gr.HTML(elem_id="lsv-status")
            with gr.Tabs(elem_id="lsv-tabs"):
                with gr.Tab("Chat", elem_id="lsv-chat-tab") as chatting:
                    self._chat.render()
                with gr.Tab("Dashboard") as watching:
                    clock = Dashboard(self._api).render(watching, self._controls.key)
                with gr.Tab("Rerank", visible=False) as self._reranking:
                    Rerank(self._api).render(self._controls.model, self._controls.key)
                with gr.Tab("Transcribe", visible=False) as self._transcribing:
                    Transcription(self._api).render(self._controls.model, self._controls.key)
            mode.click(None, js=TOGGLE_MODE, **QUIET)
            self._wire(page)
            for tab in (watching, chatting, self._reranking, self._transcribing):
                tab.select(_clock, gr.State(tab is watching), clock, **QUIET)
            endpoint(chat_endpoint(self._api), api_name="chat")
        return page

    def _wire(self, page: gr.Blocks) -> None:
        self._chat.wire(page, self._controls)
        page.load(None, js=OPENED, **QUIET)
        looked = {
            "fn": self.look,
            "inputs": [self._seen, self._controls.model, self._controls.chosen, self._controls.key],
            "outputs": [
                self._seen,
                self._status,
                self._controls.model,
                *self._controls.panels,
                self._reranking,
                self._transcribing,
                *self._chat.offering,
            ],
            **QUIET,
        }
        self._controls.restore(page).then(**looked)
        for trigger in (self._controls.key.change, self._controls.model.input, gr.Timer(STATUS_SECONDS).tick):
            trigger(**looked)

    async def look(self, seen: Seen, name: str | None, chosen: str, key: str) -> tuple[Any, ...]:
        """Check the server's health, models and abilities; only what has changed is redrawn.

        A newly opened page selects the model that was ``chosen`` last in this browser.
        Models and abilities are requested again only after a change or a minute, because every open page asks.
        """
        unchanged = [gr.skip()] * (3 + len(self._controls.panels) + len(self._chat.offering))
        asked: tuple[Any, ...] = ()
        try:
            health = await self._api.health(key)
            pill, served = _health_pill(health), [model.get("model") for model in health["models"]]
            asked = (pill, served, name, key, time.monotonic() // MODELS_SECONDS)
            if served and asked == seen.asked:
                return seen, gr.skip(), *unchanged
            models, abilities = await self._api.models(key), await self._api.abilities(key)
        except LsvError as error:
            pill = _pill("down", error.message)
            # A missing or wrong key needs another key; other errors may pass.
            asked = asked if isinstance(error, Unauthorized) else ()
            return Seen(pill, asked, seen.found), _changed(pill, seen.pill), *unchanged
        model = next((model for model in models if model.name == (name or chosen)), models[0])
        found = Seen(pill, asked, (model, models, abilities))
        if found.found == seen.found:
            return found, _changed(pill, seen.pill), *unchanged
        return (
            found,
            pill,
            gr.update(choices=[model.name for model in models], value=model.name, visible=True),
            *self._controls.show_abilities(abilities),
            gr.update(visible=model.reranks),
            gr.update(visible=abilities.transcribes and any(model.takes("audio") for model in models)),
            *self._chat.offer(model),
        )


def _changed(now: str, before: str) -> Any:
    """Skip an unchanged value: screen readers would only read it out again."""
    return gr.skip() if now == before else now


def _clock(active: bool) -> Any:
    return gr.Timer(active=active)


def _health_pill(health: dict[str, Any]) -> str:
    state = health["status"]
    if state == "loading":
        stages = [f"{model['stage']} {model['done']} of {model['total']}" for model in health["models"]]
        return _pill("loading", f"Loading: {', '.join(stages)}")
    words = {"ready": "Ready", "sleeping": "Asleep", "draining": "Stopping", "dead": "The engine has stopped"}
    return _pill("ready" if state == "ready" else "down", words.get(state, state))


def _pill(state: str, text: str) -> str:
    return f'<span class="lsv-pill {state}" role="status"><i></i><span>{linked(text)}</span></span>'
