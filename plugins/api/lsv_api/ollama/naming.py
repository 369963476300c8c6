"""Names in Ollama's API: of models, which have tags, and of fields, in errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from lsv.engine.client import Client, Service
from lsv.request.adapter import Viewer
from lsv_api.http.context import Exchange, Served
from lsv_api.ollama.records import OllamaError
from lsv_api.openai.asking import naming_fields, rewording
from lsv_api.records.responses import ErrorBody
from lsv_base.errors import BadRequest, ModelNotFound

_TAG = ":latest"

_SAME = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
_FIELDS: Mapping[str, str] = {
    **{name: f"options.{name}" for name in _SAME},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
}
"""Fields of this API by the names that chat completions have for them."""

_PART = re.compile(r"messages\[(?P<message>\d+)\]\.content\[(?P<part>\d+)\]")


def write_error(status: int, body: ErrorBody) -> tuple[int, OllamaError]:
    """An error as Ollama writes it: its message alone."""
    return status, OllamaError(body.message)


def tagged(name: str) -> str:
    """A model's name as Ollama lists it: with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def spellings(name: str) -> tuple[str, ...]:
    """What a model may be called that is asked for by ``name``: ``name`` and ``name:latest`` are one."""
    if name.endswith(_TAG):
        return name, name.removesuffix(_TAG)
    return (name, name + _TAG) if tagged(name) != name else (name,)


def find_name(name: str | None, service: Service, viewer: Viewer) -> str:
    """The spelling of ``name`` that is served. Raises ``BadRequest`` without one, ``ModelNotFound`` in Ollama's words,
    by which its clients know that they should offer to pull the model.
    """
    if not name:
        raise BadRequest("model is required", param="model")
    for spelling in spellings(name):
        try:
            service.route(spelling, viewer)
        except ModelNotFound:
            continue
        return spelling
    known = ", ".join((*service.names, *service.adapters(viewer)))
    raise ModelNotFound(f"model '{name[:256]}' not found: this server has {known}", param="model")


def find_model(exchange: Exchange, name: str | None) -> Served:
    """The model of a request, ready to answer. Raises as ``find_name`` and ``Exchange.served`` do."""
    return exchange.served(find_name(name, exchange.api.service, exchange.viewer))


def find_client(exchange: Exchange, name: str | None) -> tuple[str, Client]:
    """The served name and the client of a model that need not be ready."""
    found = find_name(name, exchange.api.service, exchange.viewer)
    return found, exchange.api.service.route(found, exchange.viewer)[0]


@contextmanager
def naming_chat_fields() -> Iterator[None]:
    """Errors raised inside name the fields of /api/chat."""
    with naming_fields(_FIELDS), _naming_images(r"messages[\g<message>].images[\g<part>]"):
        yield


@contextmanager
def naming_generate_fields() -> Iterator[None]:
    """Errors raised inside name the fields of /api/generate."""
    with naming_fields({**_FIELDS, "messages": "prompt"}), _naming_images(r"images[\g<part>]"):
        yield


@contextmanager
def naming_embed_fields() -> Iterator[None]:
    """Errors raised inside name the fields of /api/embed."""
    with naming_fields({"truncate_prompt_tokens": "truncate"}):
        yield


@contextmanager
def naming_embeddings_fields() -> Iterator[None]:
    """Errors raised inside name the fields of /api/embeddings."""
    with naming_fields({"input": "prompt"}):
        yield


@contextmanager
def _naming_images(template: str) -> Iterator[None]:
    """Errors about a part of a message name the image that it was made of."""
    with rewording(partial(_PART.sub, template)):
        yield
