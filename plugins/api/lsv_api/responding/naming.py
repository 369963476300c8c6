"""Errors about the chat that a body becomes, said of the body's own fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lsv_api.openai.asking import naming_fields
from lsv_base.errors import BadRequest

_FIELDS = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}
"""Fields of ``ChatRequest`` that the body has under another name."""


@contextmanager
def naming_own_fields(origins: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Errors that are raised inside name fields of the body; ``origins`` has the place of each message in it."""
    try:
        with naming_fields({**_FIELDS, **origins}):
            yield
    except BadRequest as error:
        if (error.param or "").startswith("tools["):  # where chat completions have an object more
            error.message = error.message.replace("].function.", "].")
            error.param = (error.param or "").replace("].function.", "].").removesuffix(".function")
            error.args = (error.message,)
        raise
