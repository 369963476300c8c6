"""Routes that say how the server is: models, health, version, metrics."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from msgspec import UNSET, structs
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sanic.response import HTTPResponse

from lsv.engine.client import Client, EngineStatus, Service
from lsv_api.accounts.account import ANYBODY
from lsv_api.admin.model_forms import asks_in_this_form, list_cards, write_card
from lsv_api.http.context import Exchange, describe
from lsv_api.http.reply import json_response
from lsv_api.records.responses import Alive, EngineState, Health, Index, ModelCard, ModelList, ReplicaState, Version
from lsv_base.version import __version__


async def list_models(exchange: Exchange) -> HTTPResponse:
    service = exchange.api.service
    names = (*service.names, *service.adapters(exchange.viewer))
    cards = [_card(name, exchange) for name in names]
    return json_response(list_cards(cards) if asks_in_this_form(exchange) else ModelList(data=cards))


async def show_model(exchange: Exchange) -> HTTPResponse:
    name = unquote(exchange.request.match_info["name"]).removesuffix("/")
    card = _card(name, exchange)
    return json_response(write_card(card) if asks_in_this_form(exchange) else card)


async def live(exchange: Exchange) -> HTTPResponse:
    """The process answers; nothing is said about its models."""
    return json_response(Alive())


async def health(exchange: Exchange) -> HTTPResponse:
    """Status 200 if every engine is ready and sends heartbeats and the server is not stopping, else 503 with the
    progress.

    Clients without a key do not see why an engine died.
    """
    api = exchange.api
    told = api.options.keyless or exchange.account is not ANYBODY
    found = describe_health(api.service, draining=api.traffic.draining, told=told)
    return json_response(found, status=200 if found.status == "ready" else 503)


async def show_index(exchange: Exchange) -> HTTPResponse:
    """The server's name, its models and its routes."""
    api = exchange.api
    names = list(api.service.names)
    return json_response(Index(name="lsv", version=__version__, models=names, routes=list(api.paths)))


async def show_version(exchange: Exchange) -> HTTPResponse:
    clients = exchange.api.service.clients
    prints = {name: client.config.fingerprint() for name, client in clients.items()}
    return json_response(Version(version=__version__, fingerprints=prints))


async def metrics(exchange: Exchange) -> HTTPResponse:
    return HTTPResponse(exchange.api.metrics.text(), content_type=CONTENT_TYPE_LATEST)


def describe_health(service: Service, *, draining: bool, told: bool = True) -> Health:
    """The state of all engines, and the worst of them as the server's; errors if they may be ``told``."""
    models = [_describe_engine(name, client, told=told) for name, client in service.clients.items()]
    states = {"silent" if model.silent else model.state for model in models} | ({"draining"} if draining else set())
    worst = next((state for state in ("dead", "draining", "sleeping", "loading", "silent") if state in states), "ready")
    return Health(status=worst, models=models)


def _describe_engine(name: str, client: Client, *, told: bool) -> EngineState:
    replicas = client.replicas
    each = [ReplicaState(**_describe_status(one.status, told=told)) for one in replicas] if len(replicas) > 1 else UNSET
    return EngineState(model=name, **_describe_status(client.status, told=told), replicas=each)


def _describe_status(status: EngineStatus, *, told: bool) -> dict[str, Any]:
    return structs.asdict(status if told else structs.replace(status, error=None))


def _card(asked: str, exchange: Exchange) -> ModelCard:
    """Only the operator sees folders of adapters. Raises ``ModelNotFound``."""
    found, client, adapter = exchange.api.route(asked, exchange.viewer)
    name = found or asked
    served, media = describe(client), client.media
    path = next((one.path for one in client.adapters if one.name == adapter), adapter)
    return ModelCard(
        id=name,
        created=exchange.api.started,
        root=(path if exchange.viewer.operator else name) if adapter else served.name,
        parent=served.name if adapter else None,
        max_model_len=served.admission.max_model_len,
        modalities=["text", *(media.allowed if media is not None else ())],
        tasks=list(served.admission.pooler.tasks),
    )
