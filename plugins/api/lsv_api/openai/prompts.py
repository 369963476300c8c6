"""From the prompt of a request to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec

from lsv.errors import BadRequest
from lsv.request.media import Media, Positions
from lsv.text.tokenizer import Tokenizer
from lsv_api.http.context import Served
from lsv_api.openai.sampling import check_ids
from lsv_api.records.requests import Prompt

MAX_PROMPTS = 1024
LONG_TEXT = 50_000
"""Characters from which tokenising is moved to a thread, so that it does not hold up other requests."""


class EncodedPrompt(msgspec.Struct, frozen=True):
    """Token ids of one prompt, its text when it was given as text, and the media that have their places in it."""

    ids: Sequence[int]
    text: str | None
    media: tuple[Media, ...] = ()
    positions: Positions | None = None

    def truncated(self, keep: int | None) -> EncodedPrompt:
        """The last ``keep`` tokens; None keeps all."""
        if keep is None:
            return self
        if keep < 1:
            raise BadRequest(f"truncate_prompt_tokens must be at least 1, got {keep}", param="truncate_prompt_tokens")
        if keep >= len(self.ids):
            return self
        if self.media:
            raise BadRequest(
                f"truncate_prompt_tokens={keep} would cut a prompt of {len(self.ids)} tokens with media",
                param="truncate_prompt_tokens",
            )
        return EncodedPrompt(self.ids[-keep:], None)


async def encode_prompts(
    prompt: Prompt, served: Served, *, special: bool, keep: int | None, param: str
) -> list[EncodedPrompt]:
    """Token ids of every prompt in a field that may hold one or many, as text or as ids.

    ``special`` adds the tokenizer's special tokens to texts; ``keep`` cuts to the last so many tokens.
    Raises ``BadRequest`` naming ``param``.
    """
    parts = split_prompts(prompt, param)
    return [(await _encode(part, served, special, param)).truncated(keep) for part in parts]


def split_prompts(prompt: Prompt, param: str) -> Sequence[str | list[int]]:
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


async def _encode(part: str | list[int], served: Served, special: bool, param: str) -> EncodedPrompt:
    if isinstance(part, str):
        ids, text = await encode_text(served.client.tokenizer, part, special=special), part
    else:
        check_ids(part, served.vocab_size, param)
        ids, text = part, None
    if not ids:
        raise BadRequest(f"{param} must hold at least one token, got an empty prompt", param=param)
    return EncodedPrompt(ids, text)
