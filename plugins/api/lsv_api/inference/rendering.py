"""POST /v1/chat/completions/render and POST /apply-template: what the model is shown, without an answer."""

from __future__ import annotations

from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange
from lsv_api.inference.records import AppliedTemplate, RenderedChat
from lsv_api.openai.asking import ask_chat
from lsv_api.records.requests import ChatRequest


async def render_chat(exchange: Exchange) -> RenderedChat:
    name, prompt = await _render(exchange)
    return RenderedChat(request_id=exchange.key, model=name, prompt=prompt.text or "", token_ids=list(prompt.ids))


async def apply_template(exchange: Exchange) -> AppliedTemplate:
    _, prompt = await _render(exchange)
    return AppliedTemplate(prompt=prompt.text or "", token_ids=list(prompt.ids))


async def _render(exchange: Exchange) -> tuple[str, Prompt]:
    """The model's name and the prompt. The request is checked as if it were to be answered."""
    body = await exchange.body(ChatRequest)
    served = exchange.served(body.model)
    asked = await ask_chat(body, served, exchange, f"render-{exchange.key}")
    return served.name, asked.request.prompt
