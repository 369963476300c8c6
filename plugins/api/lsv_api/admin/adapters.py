"""Routes that load and unload adapters while the server runs.

All accounts may use adapters that the operator loads. Only the account that loaded another adapter sees, uses,
replaces and unloads it.
"""

from __future__ import annotations

from sanic.response import HTTPResponse, text

from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.request.adapter import owned_name, owner_of
from lsv_api.http.context import Exchange, check_ready
from lsv_api.http.failures import NotAllowed
from lsv_api.records.requests import LoadAdapterRequest, UnloadAdapterRequest
from lsv_base.errors import BadRequest, ModelNotFound, Overloaded

_MOST = 128
"""Limit on loaded adapters of an account."""


async def load_adapter(exchange: Exchange) -> HTTPResponse:
    _check_allowed(exchange)
    body = await exchange.body(LoadAdapterRequest)
    client = exchange.api.service.find(body.base_model_name)
    check_ready(client)
    name = _own_name(exchange, body.lora_name)
    _check_room(exchange, name)
    await client.order(LoadAdapter(name, body.lora_path, replace=bool(body.load_inplace)))
    return text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(exchange: Exchange) -> HTTPResponse:
    _check_allowed(exchange)
    body = await exchange.body(UnloadAdapterRequest)
    service, viewer = exchange.api.service, exchange.viewer
    found = service.adapters(viewer).get(body.lora_name)
    if found is None:
        raise ModelNotFound(f"there is no adapter {body.lora_name}", param="lora_name")
    client, adapter = found
    if not viewer.operator and not owner_of(adapter.name):
        raise NotAllowed(f"the adapter {body.lora_name} belongs to the operator, so only the operator may unload it")
    check_ready(client)
    await client.order(UnloadAdapter(adapter.name))
    return text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _own_name(exchange: Exchange, name: str) -> str:
    """The engine's name of the adapter that this request loads.

    Raises ``BadRequest`` for a name that the account may not use.
    """
    service, viewer = exchange.api.service, exchange.viewer
    if viewer.operator:
        return name
    if owner_of(name):
        raise BadRequest(
            "an adapter's name must be at most 200 letters, digits and any of . _ - : / @", param="lora_name"
        )
    known = service.adapters(viewer).get(name)
    if name in service.names or (known is not None and not owner_of(known[1].name)):
        raise BadRequest(f"the name {name} is taken by the operator: choose another", param="lora_name")
    return owned_name(viewer.account, name)


def _check_room(exchange: Exchange, name: str) -> None:
    """Raises ``Overloaded`` if the account has reached its limit of adapters."""
    adapters = [adapter.name for _, adapter in exchange.api.service.adapters().values()]
    mine = [one for one in adapters if owner_of(one) and owner_of(one) == owner_of(name)]
    if len(mine) >= _MOST and name not in mine:
        raise Overloaded(f"the account has reached the limit of {_MOST} loaded adapters: unload one first")


def _check_allowed(exchange: Exchange) -> None:
    """Raises ``NotAllowed`` unless the operator lets clients load adapters from folders of this machine."""
    if not exchange.api.options.runtime_adapters:
        raise NotAllowed(
            "adapters can't be changed at run time: start with --allow-runtime-lora-updating "
            "(VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
        )
