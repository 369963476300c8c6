"""From the prompt field of a request to prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from lsv.errors import BadRequest
from lsv.request.prompt import Prompt
from lsv_api.http.context import Api, Served
from lsv_api.openai.sampling import check_answers
from lsv_api.records.requests import CompletionRequest, EmbeddingRequest, PromptField

BATCH = 1 << 16
"""Characters of short prompts that are tokenised in one go."""


async def encode_prompts(body: CompletionRequest | EmbeddingRequest, served: Served, api: Api) -> list[Prompt]:
    """Every prompt of a body, which may hold one or many, as text or as ids.

    Raises ``BadRequest``: for more than may be asked for before anything is tokenised, for a prompt that is too long
    before those behind it are.
    """
    param = "prompt" if isinstance(body, CompletionRequest) else "input"
    parts = split_prompts(getattr(body, param), param, api.options.limits.prompts)
    if isinstance(body, CompletionRequest):
        check_answers(body, len(parts), served, api.options.limits)
    special = body.add_special_tokens is not False
    fits = param if body.truncate_prompt_tokens is None else None
    prompts: list[Prompt] = []
    for batch in _batches(parts):
        prompts += await api.pool.run(sum(map(len, batch)), _encode_all, batch, served, special, fits)
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


async def encode_text(text: str, served: Served, api: Api, *, special: bool, fits: str | None) -> list[int]:
    """The ids of a text, found beside the event loop where it is long.

    ``special`` adds the tokenizer's special tokens. ``fits`` is the frontend's name for a text that must fit the
    context: one that is too long is not tokenised as a whole, and ``ContextTooLong`` is raised. None takes any text.
    """
    return await api.pool.run(len(text), _encode, text, served, special, fits)


def _encode_all(parts: Sequence[str | list[int]], served: Served, special: bool, fits: str | None) -> list[Prompt]:
    return [
        Prompt(ids=tuple(_encode(part, served, special, fits)), text=part)
        if isinstance(part, str)
        else Prompt(ids=tuple(part))
        for part in parts
    ]


def _encode(text: str, served: Served, special: bool, fits: str | None) -> list[int]:
    tokenizer = served.client.tokenizer
    if fits is not None:
        return served.admission.encode(text, tokenizer, special=special, field=fits)
    return tokenizer.encode(text, add_special_tokens=special)


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
