"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

import asyncio

from sanic.response import HTTPResponse

from lsv.errors import BadRequest
from lsv_api.http.context import Exchange
from lsv_api.http.reply import json_response
from lsv_api.openai.conversation import encode_chat
from lsv_api.openai.prompts import LONG_TEXT, encode_text
from lsv_api.records.requests import DetokenizeRequest, TokenizeRequest
from lsv_api.records.responses import DetokenizeResponse, TokenizeResponse


async def tokenize(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(TokenizeRequest)
    served = exchange.served(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("give either prompt or messages", param="prompt")
    tokenizer = served.client.tokenizer
    if body.prompt is None:
        ids = list((await encode_chat(body, served, exchange.api)).ids)
    else:
        ids = await encode_text(tokenizer, body.prompt, special=body.add_special_tokens is not False)
    return json_response(
        TokenizeResponse(
            count=len(ids),
            max_model_len=served.admission.max_model_len,
            tokens=ids,
            token_strs=[tokenizer.token_text(token) for token in ids] if body.return_token_strs else None,
        )
    )


async def detokenize(exchange: Exchange) -> HTTPResponse:
    body = await exchange.body(DetokenizeRequest)
    served = exchange.served(body.model)
    served.admission.check_ids(body.tokens, "tokens")
    decode = served.client.tokenizer.decode
    if len(body.tokens) > LONG_TEXT:
        text = await asyncio.to_thread(decode, body.tokens, skip_special_tokens=False)
    else:
        text = decode(body.tokens, skip_special_tokens=False)
    return json_response(DetokenizeResponse(text))
