"""The log of prompts, which an operator switches on to find out what clients send."""

from __future__ import annotations

import logging

import msgspec

from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec

log = logging.getLogger("lsv.api")

MAX_PARAMS = 4096
"""Characters of a request's parameters that a line shows: schemas and lists of token ids may be long."""


class PromptLog(msgspec.Struct, frozen=True):
    """What the log shows of prompts. ``most`` is how many characters and token ids of each; None for all."""

    most: int | None = None

    def write(self, request: RequestSpec, request_id: str) -> None:
        """Log each prompt of an admitted request in a line of its own; ``request_id`` is the client's id for it."""
        shared = f"adapter={request.adapter!r} params={_describe(request.sampling or request.pooling)}"
        for number, prompt in enumerate(request.prompts):
            id = request.request_id if len(request.prompts) == 1 else f"{request.request_id}-{number}"
            log.info("prompt %s", f"req={request_id} id={id} {self._show(prompt)} {shared}")

    def _show(self, prompt: Prompt) -> str:
        """A prompt on one line: ``repr`` escapes control characters, and so keeps texts from forging lines."""
        text = "None" if prompt.text is None else repr(prompt.text[: self.most])
        return f"prompt_tokens={len(prompt.ids)} prompt={text} prompt_token_ids={list(prompt.ids[: self.most])}"


def size_of(request: RequestSpec) -> int:
    """About how many characters the lines of a request take."""
    return sum(8 * len(prompt.ids) + len(prompt.text or "") for prompt in request.prompts)


def _describe(params: SamplingParams | PoolingParams | None) -> str:
    """The parameters that differ from the defaults."""
    if params is None:
        return "None"
    usual = type(params)()
    given = {name: getattr(params, name) for name in params.__struct_fields__}
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != getattr(usual, name))
    return f"{type(params).__name__}({shown if len(shown) <= MAX_PARAMS else shown[:MAX_PARAMS] + '…'})"
