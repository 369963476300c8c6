"""From the prompt field of a request to prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from lsv.engine.admission import LETTERS
from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange, Served
from lsv_api.limits import Limits
from lsv_api.openai.sampling import check_answers
from lsv_api.records.pooling import InputRequest
from lsv_api.records.requests import CompletionRequest, PromptField
from lsv_base.errors import BadRequest

BATCH = 1 << 16
"""Characters of short prompts that are tokenised in one go."""


class TextRule(msgspec.Struct, frozen=True):
    """How a text is tokenised."""

    field: str
    """The frontend's name for it."""

    special: bool
    """Whether the tokenizer's special tokens are added."""

    fits: bool = True
    """Whether it must fit the context; otherwise it is to be truncated, or only counted."""


async def encode_prompts(
    body: CompletionRequest | InputRequest,
    served: Served,
    exchange: Exchange,
    before: str = "",
    *,
    fits: bool = True,
) -> list[Prompt]:
    """Every prompt of a body, which may hold one or many, as text or as ids; with ``before`` put before texts. Texts
    must fit the context if ``fits`` and the body truncates none.

    Raises ``BadRequest``: for more than may be asked for before anything is tokenised, for a prompt that is too long
    before those behind it are.
    """
    param = "prompt" if isinstance(body, CompletionRequest) else "input"
    parts = split_prompts(getattr(body, param), param, exchange.api.options.limits.prompts)
    if before:
        parts = [before + part if isinstance(part, str) else part for part in parts]
    if isinstance(body, CompletionRequest):
        check_answers(body, len(parts), served, exchange.api.options.limits)
    how = TextRule(param, body.add_special_tokens is not False, fits=fits and body.truncate_prompt_tokens is None)
    prompts: list[Prompt] = []
    for batch in _batches(parts):
        size = sum(map(len, batch))
        prompts += await exchange.prepare(size, _encode_all, batch, served, exchange.api.options.limits, how)
    if isinstance(body, CompletionRequest) and body.decoder_prompt is not None:
        return await _begin_answers(prompts, body.decoder_prompt, served, exchange)
    return prompts


def split_prompts(prompt: PromptField, param: str, most: int) -> Sequence[str | list[int]]:
    """One entry a prompt. Raises ``BadRequest`` for an empty, mixed or overlong list."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest(f"{param} must not be empty", param=param)
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise BadRequest(f"{param} must hold only texts, only token ids, or only lists of token ids", param=param)
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if len(prompt) > most:
        raise BadRequest(f"{param} takes at most {most} prompts (--api-max-prompts), got {len(prompt)}", param=param)
    return cast("list[str | list[int]]", prompt)


async def _begin_answers(
    prompts: Sequence[Prompt], decoder: str | list[int], served: Served, exchange: Exchange
) -> list[Prompt]:
    """Prompts to encode, each with the beginning of its answer."""
    encoded, param = served.client.config.encoded, "decoder_prompt"
    if encoded is None:
        raise BadRequest("decoder_prompt: this model encodes no text, so its prompt is what answers go on from",
                         param=param)  # fmt: skip
    text = decoder if isinstance(decoder, str) else None
    ids = decoder if text is None else await encode_text(text, served, exchange, TextRule(param, special=False))
    served.admission.check_ids(ids, param)
    return [encoded.place(prompt.ids, ids, texts=(prompt.text, text)) for prompt in prompts]


async def encode_text(text: str, served: Served, exchange: Exchange, how: TextRule) -> list[int]:
    """The ids of a text, found beside the event loop where it is long.

    Raises ``BadRequest`` for one that is too long, before the whole of it is tokenised.
    """
    return await exchange.prepare(len(text), _encode, text, served, exchange.api.options.limits, how)


def _encode_all(parts: Sequence[str | list[int]], served: Served, limits: Limits, how: TextRule) -> list[Prompt]:
    return [
        Prompt(ids=tuple(_encode(part, served, limits, how)), text=part)
        if isinstance(part, str)
        else Prompt(ids=tuple(part))
        for part in parts
    ]


def _encode(text: str, served: Served, limits: Limits, how: TextRule) -> list[int]:
    tokenizer = served.client.tokenizer
    if how.fits:
        return served.admission.encode(text, tokenizer, special=how.special, field=how.field)
    most = max(limits.uncut, served.admission.max_model_len * LETTERS)
    if len(text) > most:
        raise BadRequest(
            f"{how.field}: {len(text)} characters are too many to be tokenised: at most {most} are", param=how.field
        )
    return tokenizer.encode(text, add_special_tokens=how.special)


def _batches(parts: Sequence[str | list[int]]) -> Iterator[Sequence[str | list[int]]]:
    """Prompts that are tokenised in one go, in their order; requests take turns between two of them."""
    first, size = 0, 0
    for index, part in enumerate(parts):
        size += len(part)
        if size >= BATCH:
            yield parts[first : index + 1]
            first, size = index + 1, 0
    if first < len(parts):
        yield parts[first:]
