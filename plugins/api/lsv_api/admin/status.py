"""Routes that say how the server is: models, health, version, metrics."""

from __future__ import annotations

from urllib.parse import unquote

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sanic.response import HTTPResponse

from lsv.engine.client import Service
from lsv.version import __version__
from lsv_api.accounts.account import ANYBODY
from lsv_api.http.context import Api, Exchange, describe
from lsv_api.http.reply import json_response
from lsv_api.records.responses import Alive, EngineState, Health, ModelCard, ModelList, Version


async def list_models(exchange: Exchange) -> HTTPResponse:
    api = exchange.api
    return json_response(ModelList(data=[_card(name, api) for name in api.service.names]))


async def show_model(exchange: Exchange) -> HTTPResponse:
    name = unquote(exchange.request.match_info["name"])
    exchange.api.service.find(name)
    return json_response(_card(name, exchange.api))


async def live(exchange: Exchange) -> HTTPResponse:
    """The process answers; nothing is said about its models."""
    return json_response(Alive())


async def health(exchange: Exchange) -> HTTPResponse:
    """200 when every engine is ready and the server is not stopping, 503 with the progress otherwise.

    What an engine died of is not for strangers.
    """
    api = exchange.api
    told = api.options.keyless or exchange.account is not ANYBODY
    found = describe_health(api.service, draining=api.traffic.draining, told=told)
    return json_response(found, status=200 if found.status == "ready" else 503)


async def show_version(exchange: Exchange) -> HTTPResponse:
    clients = exchange.api.service.clients
    prints = {name: client.config.fingerprint() for name, client in clients.items()}
    return json_response(Version(version=__version__, fingerprints=prints))


async def metrics(exchange: Exchange) -> HTTPResponse:
    return HTTPResponse(exchange.api.metrics.text(), content_type=CONTENT_TYPE_LATEST)


def describe_health(service: Service, *, draining: bool, told: bool = True) -> Health:
    """The state of all engines, and the worst of them as the server's; errors if they may be ``told``."""
    models = [
        EngineState(
            model=name,
            state=status.state,
            stage=status.stage,
            done=status.done,
            total=status.total,
            error=status.error if told else None,
        )
        for name, client in service.clients.items()
        for status in (client.status,)
    ]
    states = {model.state for model in models} | ({"draining"} if draining else set())
    worst = next((state for state in ("dead", "draining", "loading") if state in states), "ready")
    return Health(status=worst, models=models)


def _card(name: str, api: Api) -> ModelCard:
    served = describe(api.service.find(name))
    media = served.client.media
    return ModelCard(
        id=name,
        created=api.started,
        root=served.name,
        max_model_len=served.admission.max_model_len,
        modalities=["text", *(media.allowed if media is not None else ())],
        tasks=list(served.admission.pooler.tasks),
    )
