"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from sanic.response import HTTPResponse

from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import json_response
from lsv_api.openai.conversation import encode_chat
from lsv_api.openai.prompts import TextRule, encode_text
from lsv_api.openai.tools import check_tools
from lsv_api.records.requests import DetokenizeRequest, TokenizeRequest
from lsv_api.records.responses import DetokenizeResponse, TokenizeResponse
from lsv_base.errors import BadRequest


async def tokenize(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(TokenizeRequest)
    served = exchange.served(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("give either prompt or messages", param="prompt")
    if body.prompt is None:
        check_tools(body.tools or (), exchange.api.options.limits.tools)
        ids = list((await encode_chat(body, served, exchange, body.tools)).ids)
    else:
        how = TextRule("prompt", body.add_special_tokens is not False, fits=False)
        ids = await encode_text(body.prompt, served, exchange, how)
    return await exchange.prepare(len(ids), _answer, ids, served, spelt=bool(body.return_token_strs))


def _answer(ids: list[int], served: Served, *, spelt: bool) -> HTTPResponse:
    spell = served.client.tokenizer.token_text
    return json_response(
        TokenizeResponse(
            count=len(ids),
            max_model_len=served.admission.max_model_len,
            tokens=ids,
            token_strs=[spell(token) for token in ids] if spelt else None,
        )
    )


async def detokenize(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(DetokenizeRequest)
    served = exchange.served(body.model)
    return await exchange.prepare(len(body.tokens), _detokenize, body.tokens, served)


def _detokenize(ids: list[int], served: Served) -> HTTPResponse:
    served.admission.check_text("tokens")
    served.admission.check_ids(ids, "tokens")
    return json_response(DetokenizeResponse(served.client.tokenizer.decode(ids, skip_special_tokens=False)))
