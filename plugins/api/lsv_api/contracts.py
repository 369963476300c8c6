"""The contracts of all plugins, as the application serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lsv import plugins
from lsv_api.contract import Contract, ContractOffer, Route
from lsv_base.errors import PluginError

_OWN = "api"


class Declared(NamedTuple):
    """A contract, and where it came from."""

    plugin: str
    name: str
    contract: Contract

    def __str__(self) -> str:
        return f"the contract {self.name} of plugin {self.plugin}"


def load_contracts(settings: Mapping[str, Any], chosen: Sequence[str] = ()) -> tuple[Declared, ...]:
    """The contracts of the ``chosen`` plugins, or of all that are installed; the server's own come first.

    Raises ``PluginError`` for one that can't be made, and for a route that two contracts declare.
    """
    catalog = plugins.load(sorted({*chosen, _OWN}) if chosen else None).catalog
    offered = sorted(catalog.declared("lsv_routes", ContractOffer), key=lambda entry: entry.plugin != _OWN)
    declared = tuple(
        Declared(entry.plugin, entry.thing.name, _made(entry.thing, catalog.load(entry.thing), settings))
        for entry in offered
    )
    _refuse_twins(declared)
    return declared


def _made(offer: ContractOffer, make: Any, settings: Mapping[str, Any]) -> Contract:
    contract = make(settings)
    if not isinstance(contract, Contract) or not all(isinstance(route, Route) for route in contract.routes):
        raise PluginError(f"{offer.load} must return a lsv_api.contract.Contract of Routes, got {contract!r:.80}")
    return contract


def _refuse_twins(declared: Iterable[Declared]) -> None:
    owners: dict[tuple[str, str], Declared] = {}
    for one in declared:
        for route in one.contract.routes:
            other = owners.setdefault((route.method, route.path), one)
            if other is not one:
                raise PluginError(
                    f"{one} declares {route.method} {route.path}, which {other} has: leave one out with --no-plugin"
                )
