"""From a conversation to what the engine is asked: the part that all contracts for conversations share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.conversation import encode_chat, forbids_thinking, leaves_thinking_off
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.openai.generation import make_request
from lsv_api.openai.handover import Handover
from lsv_api.openai.prompts import encode_prompts
from lsv_api.openai.reading import AnswerReading
from lsv_api.openai.sampling import sampling_params
from lsv_api.openai.structured import form_origin
from lsv_api.openai.tools import Tools, force_calls, read_tools
from lsv_api.records.requests import ChatRequest, CompletionRequest
from lsv_base.errors import BadRequest

_HEAD = re.compile(r"\w+(?:\[\d+\])?")
"""A field, or an item of one that is a list."""
_CUT = "truncate_prompt_tokens"
_ADVICE = re.compile(rf",? (?:or )?set {_CUT},?")
"""Advice of errors about a prompt's length, which contracts without such a field can't take."""


class Asked(NamedTuple):
    """A conversation that the engine is to answer."""

    request: RequestSpec
    served: Served
    reading: AnswerReading
    """How its answers are read."""
    origin: FormOrigin
    """Where the form of its answers comes from."""


async def ask_chat(
    body: ChatRequest,
    served: Served,
    exchange: Exchange,
    id: str,
    handover: Handover = Handover(),  # noqa: B008 - a tuple
    *,
    before: Sequence[int] = (),
    strict: bool = True,
) -> Asked:
    """Check a conversation, render, tokenise and admit it; ``id`` names it in the engine's logs.

    ``before`` are token ids that the prompt goes on from. A length of the answer that does not fit the context is
    refused if ``strict``; otherwise the answer ends with the context. Raises ``BadRequest`` and its kinds, with the
    fields of ``ChatRequest`` as ``param``.
    """
    tools = await exchange.prepare(exchange.size, read_tools, body, served, exchange.api.options)
    prompt = await encode_chat(body, served, exchange, tools.shown)
    if before:
        prompt = _continue(before, prompt, served)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    reading = AnswerReading(body, served, tools, prompt.text or "")
    sampling = sampling_params(body, served, max_tokens, _logprobs(body, served))
    params, origin = force_calls(sampling, tools, form_origin(body))
    params = reading.show_marks(params)
    silent = await _is_silent(body, prompt, served, exchange, tools, reading, params)
    thinking = reading.guide_thoughts(params, formed=silent or exchange.api.options.enable_in_reasoning)
    request = make_request(body, [prompt], params, id, exchange, thinking, handover=handover)
    return Asked(served.admission.admit(request, field="messages", strict=strict), served, reading, origin)


async def ask_text(
    body: CompletionRequest,
    served: Served,
    exchange: Exchange,
    id: str,
    *,
    default_max_tokens: int | None = None,
    strict: bool = True,
) -> Asked:
    """Check, tokenise and admit one text, or its token ids, for the model to go on with. Its answer is read as text;
    one without ``max_tokens`` gets ``default_max_tokens``, None for all that is left of the context.

    Raises ``BadRequest`` and its kinds, with the fields of ``CompletionRequest`` as ``param``.
    """
    prompts = await encode_prompts(body, served, exchange)
    params = sampling_params(body, served, body.max_tokens, body.logprobs)
    request = make_request(body, prompts, params, id, exchange)
    admitted = served.admission.admit(request, default_max_tokens=default_max_tokens, strict=strict)
    return Asked(admitted, served, AnswerReading.plain(served), form_origin(body))


def _continue(before: Sequence[int], prompt: Prompt, served: Served) -> Prompt:
    """A prompt that goes on from other tokens, without the mark of a beginning in its middle. Its media would lose
    their places: there must be none.
    """
    assert not prompt.media
    ids = prompt.ids[1:] if prompt.ids[0] == served.client.tokenizer.frame.bos else prompt.ids
    return Prompt(ids=(*before, *ids), text=prompt.text)


@contextmanager
def naming_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that are raised inside name a contract's own fields: ``names`` has them by those of ``ChatRequest``, and
    where items of a list have places of their own also by these (``messages[2]``).
    """
    try:
        yield
    except BadRequest as error:
        error.message = error.message.replace(_CUT, names[_CUT]) if _CUT in names else _ADVICE.sub("", error.message)
        error.args = (error.message,)
        head = _known_head(error.param or "", names)
        if head is None:
            raise
        own = names[head]
        error.param = own + (error.param or "")[len(head) :]
        if error.message.startswith(head):
            error.message = own + error.message[len(head) :]
            error.args = (error.message,)
        raise


@contextmanager
def rewording(reword: Callable[[str], str]) -> Iterator[None]:
    """Errors that are raised inside have their message and the place of their field reworded."""
    try:
        yield
    except BadRequest as error:
        error.message, error.param = reword(error.message), reword(error.param or "") or None
        error.args = (error.message,)
        raise


def _known_head(param: str, names: Mapping[str, str]) -> str | None:
    """The longest beginning of ``param`` that has another name."""
    found = _HEAD.match(param)
    heads = () if found is None else (found[0], found[0].partition("[")[0])
    return next((head for head in heads if head in names), None)


async def _is_silent(
    body: ChatRequest,
    prompt: Prompt,
    served: Served,
    exchange: Exchange,
    tools: Tools,
    reading: AnswerReading,
    params: SamplingParams,
) -> bool:
    """Whether an answer with a form must not begin with thoughts.

    If the form forbids the model's usual first words, the model may begin to think, even if the request has turned
    thinking off or has not turned it on.
    """
    begins = reading.may_begin_thoughts(params)
    if begins == "never":
        return False
    if forbids_thinking(body, exchange.api.options):
        return True
    return begins == "by itself" and await leaves_thinking_off(body, prompt, served, exchange, tools.shown)


def _logprobs(body: ChatRequest, served: Served) -> int | None:
    """``logprobs`` switches them on, ``top_logprobs`` says how many candidates a position shows."""
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.top_logprobs is not None and body.top_logprobs < -1:
        raise BadRequest(f"top_logprobs must be at least -1, got {body.top_logprobs}", param="top_logprobs")
    return served.admission.candidates_shown(body.top_logprobs or 0, "top_logprobs") if body.logprobs else None
