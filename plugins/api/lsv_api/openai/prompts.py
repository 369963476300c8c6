"""From the prompt field of a request to prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from lsv.errors import BadRequest
from lsv.request.prompt import Prompt
from lsv.text.tokenizer import Tokenizer
from lsv_api.http.context import Served
from lsv_api.records.requests import PromptField

MAX_PROMPTS = 1024
LONG_TEXT = 50_000
"""Characters from which tokenising is moved to a thread, so that it does not hold up other requests."""


async def encode_prompts(prompt: PromptField, served: Served, *, special: bool, param: str) -> list[Prompt]:
    """Every prompt in a field that may hold one or many, as text or as ids.

    ``special`` adds the tokenizer's special tokens to texts. Raises ``BadRequest`` naming ``param``.
    """
    return [await _encode(part, served, special) for part in split_prompts(prompt, param)]


def split_prompts(prompt: PromptField, param: str) -> Sequence[str | list[int]]:
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
    if len(prompt) > MAX_PROMPTS:
        raise BadRequest(f"{param} takes at most {MAX_PROMPTS} prompts, got {len(prompt)}", param=param)
    return cast("list[str | list[int]]", prompt)


async def encode_text(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    if len(text) > LONG_TEXT:
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=special)
    return tokenizer.encode(text, add_special_tokens=special)


async def _encode(part: str | list[int], served: Served, special: bool) -> Prompt:
    if isinstance(part, str):
        return Prompt(ids=tuple(await encode_text(served.client.tokenizer, part, special=special)), text=part)
    return Prompt(ids=tuple(part))
