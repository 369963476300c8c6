"""Routes that load and unload adapters while the server runs."""

from __future__ import annotations

from sanic.response import HTTPResponse, text

from lsv.engine.client import Client
from lsv_api.http.context import Exchange, check_ready
from lsv_api.http.failures import NotAllowed
from lsv_api.records.requests import LoadAdapterRequest, UnloadAdapterRequest


async def load_adapter(exchange: Exchange) -> HTTPResponse:
    _check_allowed(exchange)
    body = await exchange.body(LoadAdapterRequest)
    client = exchange.api.service.find(body.base_model_name)
    check_ready(client)
    await client.load_adapter(body.lora_name, body.lora_path, replace=bool(body.load_inplace))
    return text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(exchange: Exchange) -> HTTPResponse:
    _check_allowed(exchange)
    body = await exchange.body(UnloadAdapterRequest)
    client = _serving(exchange, body.lora_name)
    check_ready(client)
    await client.unload_adapter(body.lora_name)
    return text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _serving(exchange: Exchange, name: str) -> Client:
    """The model that has the adapter; if none has, the first, which says so."""
    service = exchange.api.service
    return service.adapters[name][0] if name in service.adapters else service.find(None)


def _check_allowed(exchange: Exchange) -> None:
    """Raises ``NotAllowed`` unless the operator lets clients change adapters: they name folders of this machine."""
    if not exchange.api.options.runtime_adapters:
        raise NotAllowed(
            "adapters can't be changed at run time: start with --allow-runtime-lora-updating "
            "(VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
        )
