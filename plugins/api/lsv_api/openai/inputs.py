"""Prompts of requests that pool: texts, ids, or a conversation, which may have media."""

from __future__ import annotations

from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.conversation import encode_chat
from lsv_api.openai.prompts import encode_prompts
from lsv_api.records.pooling import InputRequest
from lsv_base.errors import BadRequest


async def encode_inputs(
    body: InputRequest, served: Served, exchange: Exchange, before: str = "", *, fits: bool = True
) -> list[Prompt]:
    """Every prompt of a body, with ``before`` put before texts; a conversation is one prompt.

    Texts must fit the context if ``fits`` and the body truncates none. Raises ``BadRequest`` for a body with neither
    field or both, and for what the model can't take.
    """
    if (body.input is None) == (body.messages is None):
        raise BadRequest("give either input or messages", param="input")
    if body.messages is None:
        return await encode_prompts(body, served, exchange, before, fits=fits)
    return [await encode_chat(body, served, exchange)]
