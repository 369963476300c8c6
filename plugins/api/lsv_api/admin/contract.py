"""Routes that watch and steer the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.admin import adapters, information, profile, sleep, status
from lsv_api.admin import records as own
from lsv_api.contract import Contract, Route
from lsv_api.records import requests, responses

ROUTES = (
    Route(
        method="POST",
        path="/v1/load_lora_adapter",
        handler=adapters.load_adapter,
        summary="Serve an adapter by a name, where the operator allows that",
        request=requests.LoadAdapterRequest,
    ),
    Route(
        method="POST",
        path="/v1/unload_lora_adapter",
        handler=adapters.unload_adapter,
        summary="Serve an adapter no more; answers that have begun go on",
        request=requests.UnloadAdapterRequest,
    ),
    Route(
        method="POST",
        path="/sleep",
        handler=sleep.sleep,
        summary="Give the engines' memory back: level=1 keeps the weights on the host, level=2 forgets them",
        admin=True,
    ),
    Route(
        method="POST",
        path="/wake_up",
        handler=sleep.wake_up,
        summary="Take the engines' memory again, all or for tags=weights or tags=kv_cache",
        admin=True,
    ),
    Route(
        method="POST",
        path="/start_profile",
        handler=profile.start_profile,
        summary="Record a profile of the engines from now on",
        admin=True,
    ),
    Route(
        method="POST",
        path="/stop_profile",
        handler=profile.stop_profile,
        summary="Write the profile",
        admin=True,
    ),
    Route(
        method="GET",
        path="/is_sleeping",
        handler=sleep.show_sleeping,
        summary="Whether an engine has given memory back",
        response=responses.Sleeping,
        probe=True,
    ),
    Route(
        method="GET",
        path="/live",
        handler=status.live,
        summary="200 as long as the process answers",
        response=responses.Alive,
        open="always",
        probe=True,
    ),
    Route(
        method="GET",
        path="/ready",
        handler=status.health,
        summary="200 when every model is ready, 503 with the progress before",
        response=responses.Health,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/health",
        handler=status.health,
        summary="The same as /ready",
        response=responses.Health,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/ping",
        handler=status.health,
        summary="The same as /ready, where SageMaker asks",
        response=responses.Health,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/load",
        handler=information.show_load,
        summary="Requests that are being answered",
        response=own.ServerLoad,
        open="monitoring",
        probe=True,
    ),
    Route(
        method="GET",
        path="/server_info",
        handler=information.show_server,
        summary="How the models are served, without paths and keys",
        response=own.ServerInfo,
        probe=True,
    ),
    Route(
        method="GET",
        path="/tokenizer_info",
        handler=information.show_tokenizer,
        summary="Special tokens and the chat template of a model",
        response=own.TokenizerInfo,
        probe=True,
    ),
    Route(
        method="GET",
        path="/version",
        handler=status.show_version,
        summary="Version of the server, fingerprints of its engines",
        response=responses.Version,
        probe=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=status.metrics,
        summary="Metrics in Prometheus text format",
        open="monitoring",
        probe=True,
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
