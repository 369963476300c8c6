"""The tab for reranking: sorts texts by how well they answer a question."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import gradio as gr

from lsv_base.errors import LsvError
from lsv_webui.api import Api, Ranked
from lsv_webui.chat.view import QUIET, banner


class Rerank:
    """Texts, ordered by how well they answer a question."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def render(self, model: gr.Dropdown, key: gr.Textbox) -> None:
        with gr.Column(elem_id="lsv-rerank"):
            question = gr.Textbox(label="Question", placeholder="What should the texts answer?", max_lines=3)
            texts = gr.Textbox(
                label="Texts, one a line",
                lines=8,
                max_lines=16,
                placeholder="Notes, facts, answers to frequent questions …",
            )
            run = gr.Button("Rerank", variant="primary")
            found = gr.HTML(elem_id="lsv-found")
        asked = {"fn": self.rerank, "inputs": [question, texts, model, key], "outputs": found, **QUIET}
        run.click(**asked)
        question.submit(**asked)

    async def rerank(self, question: str, texts: str, model: str | None, key: str) -> str:
        """The texts as a list, best first, or what is wrong."""
        documents = [line.strip() for line in texts.splitlines() if line.strip()]
        if not question.strip() or not documents:
            return banner("Enter a question and at least one text.")
        try:
            return show(await self._api.rerank(question.strip(), documents, model, key or None))
        except LsvError as error:
            return banner(error.message)


def show(found: Sequence[Ranked]) -> str:
    """A list whose bars are as long as the scores are high, the best one's being whole."""
    most = max((one.score for one in found), default=0.0)
    return f"<ol>{''.join(_entry(one, most) for one in found)}</ol>"


def _entry(one: Ranked, most: float) -> str:
    share = max(0.0, one.score / most) if most > 0 else 0.0
    return (
        f'<li><span class="lsv-score">{one.score:.3f}</span><span class="lsv-text">{escape(one.text)}</span>'
        f'<i style="width: {share:.1%}"></i></li>'
    )
