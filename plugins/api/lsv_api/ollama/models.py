"""GET /api/tags, POST /api/show, GET /api/ps and GET /api/version: what is served."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from lsv.engine.client import Client
from lsv_api.http.context import Exchange
from lsv_api.ollama.naming import find_client, tagged
from lsv_api.ollama.records import (
    OllamaDetails,
    OllamaModel,
    OllamaProcesses,
    OllamaRunning,
    OllamaShown,
    OllamaShowRequest,
    OllamaTags,
    OllamaVersion,
)
from lsv_api.parsing import PLAIN
from lsv_base.version import __version__

API_VERSION = "0.13.0"
"""The release of Ollama whose API this contract follows. Clients refuse servers that are older than what they need."""

FOREVER = datetime(2300, 1, 1, tzinfo=UTC)
"""When a model leaves memory that stays there. Clients compute with it, so it is a date that they all can hold."""

_TASKS = {"generate": "completion", "embed": "embedding"}
_SENSES = {"image": "vision", "audio": "audio"}
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}
"""Sampling parameters that Ollama calls differently."""


async def list_tags(exchange: Exchange) -> OllamaTags:
    return OllamaTags([_model(name, client, exchange) for name, client in _served(exchange).items()])


async def list_processes(exchange: Exchange) -> OllamaProcesses:
    """Models whose weights are in memory now."""
    loaded = {name: one for name, one in _served(exchange).items() if one.status.state in ("ready", "draining")}
    return OllamaProcesses([_running(name, client) for name, client in loaded.items()])


async def show(exchange: Exchange) -> OllamaShown:
    body = await exchange.body(OllamaShowRequest)
    name, client = find_client(exchange, body.model or body.name)
    tokenizer, details = client.tokenizer, _details(client)
    defaults = {**tokenizer.sampling_defaults}
    return OllamaShown(
        modelfile=f"FROM {name}\n",
        parameters="\n".join(f"{_PARAMETERS.get(key, key):<30} {value}" for key, value in defaults.items()),
        template=tokenizer.template_source(exchange.api.options.chat_template) if tokenizer.has_chat_template else "",
        details=details,
        model_info={
            "general.architecture": details.family,
            f"{details.family}.context_length": client.admission.max_model_len,
        },
        capabilities=_capabilities(client, exchange),
        modified_at=_started(exchange),
    )


async def show_version(exchange: Exchange) -> OllamaVersion:
    return OllamaVersion(version=API_VERSION, lsv=__version__)


def _served(exchange: Exchange) -> Mapping[str, Client]:
    """Every model and every adapter that the client may use, by name."""
    service = exchange.api.service
    adapters = {name: client for name, (client, _) in service.adapters(exchange.viewer).items()}
    return {**service.clients, **adapters}


def _model(name: str, client: Client, exchange: Exchange) -> OllamaModel:
    return OllamaModel(
        name=tagged(name),
        model=tagged(name),
        modified_at=_started(exchange),
        size=_size(client),
        digest=_digest(name, client),
        details=_details(client),
    )


def _running(name: str, client: Client) -> OllamaRunning:
    """Weights of the CPU are in no device's memory, and Ollama's clients show a share of that."""
    return OllamaRunning(
        name=tagged(name),
        model=tagged(name),
        size=_size(client),
        digest=_digest(name, client),
        details=_details(client),
        expires_at=FOREVER,
        size_vram=0 if client.config.platform == "cpu" else _size(client),
        context_length=client.admission.max_model_len,
    )


def _details(client: Client) -> OllamaDetails:
    config = client.config
    family = config.model_offer
    return OllamaDetails(
        format="gguf" if config.quantization == "gguf" else "safetensors",
        family=family,
        families=[family],
        quantization_level=config.quantization or _DTYPES.get(config.dtype, config.dtype),
    )


def _capabilities(client: Client, exchange: Exchange) -> list[str]:
    """What the model can do, in Ollama's words."""
    parsing = exchange.api.parsing.get(client.config.served_names[0], PLAIN)
    tasks = client.admission.pooler.tasks
    found = [word for task, word in _TASKS.items() if task in tasks]
    if "generate" in tasks:
        found += [word for word, parser in (("tools", parsing.tools), ("thinking", parsing.thoughts)) if parser]
    senses = () if client.media is None else client.media.allowed
    return found + [word for sense, word in _SENSES.items() if sense in senses]


def _size(client: Client) -> int:
    return 0 if client.fit is None else client.fit.weight_bytes


def _digest(name: str, client: Client) -> str:
    """64 hex digits that name a model and its configuration."""
    return hashlib.sha256(f"{name}\0{client.config.fingerprint()}".encode()).hexdigest()


def _started(exchange: Exchange) -> datetime:
    return datetime.fromtimestamp(exchange.api.started, UTC)
