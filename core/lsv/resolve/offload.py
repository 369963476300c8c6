"""What is behind the device's KV cache: host memory, what plugins offer beside it, and engines to share that with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lsv.config import Offload, Transfers
from lsv.offers import KVTransportOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.ranks.nodes import check_address, check_key
from lsv.resolve.ranks.replicas import place_replicas
from lsv.settings import Settings
from lsv.settings.setting import dashed
from lsv.transports.exchange import join_address, split_address
from lsv_base.errors import ConfigError

_GIB = 1 << 30
_SIZE = "kv_offload_gib"
_ROLE = "kv_role"
_ROLES = {"kv_producer": "producer", "kv_consumer": "consumer", "kv_both": "both"}
_CONNECTORS = ("NixlConnector",)
"""Those of vLLM's whose part in a request is the one that is played here."""
_IDLE = frozenset({"kv_buffer_device", "kv_buffer_size", "kv_parallel_size", "kv_rank", "engine_id"})
"""Keys of vLLM's that say nothing here: files are the buffer, and a request names its producer by address."""


def caching(settings: Settings, catalog: Catalog, *, cached: bool) -> dict[str, Any]:
    """What becomes of what was computed: the part of a configuration that no answer depends on.

    Raises ``ConfigError``.
    """
    return {
        "prefix_caching": cached and settings["enable_prefix_caching"],
        "offload": choose_offload(settings, catalog, cached=cached),
    }


def choose_offload(settings: Settings, catalog: Catalog, *, cached: bool) -> Offload | None:
    """None where contents stay on the device. Raises ``ConfigError`` where they can't leave it as asked."""
    size: float | None = settings[_SIZE]
    if settings["kv_offloading_backend"] is not None and size is None:
        raise ConfigError(
            "kv_offloading_backend only sets the kind of memory: set its size with --kv-offload-gib",
            param="kv_offloading_backend",
        )
    asked = [offer for offer in catalog.offers(KVTransportOffer) if settings[offer.switch]]
    if len(asked) > 1:
        flags = " and ".join(f"--{dashed(offer.switch)}" for offer in asked)
        raise ConfigError(f"{flags} both say where the KV cache is kept: give one of them", param=asked[1].switch)
    transfers = choose_transfers(settings, asked[0] if asked else None)
    if size is None and not asked:
        return None
    name = _SIZE if size is not None else asked[0].switch
    if not cached:
        raise ConfigError(f"{dashed(name)}: this model keeps no KV cache, so leave it out", param=name)
    if not settings["enable_prefix_caching"]:
        raise ConfigError(
            f"{dashed(name)} keeps cached beginnings of prompts: it needs --enable-prefix-caching", param=name
        )
    wanted, replicas = int((size or 0) * _GIB), place_replicas(settings).here
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted * replicas > machine:
        each = f" for each of {replicas} replicas" if replicas > 1 else ""
        raise ConfigError(
            f"{dashed(_SIZE)}={size:g}{each}: this machine has {machine / _GIB:.1f} GiB of memory, ask for less",
            param=_SIZE,
        )
    return Offload(host_bytes=wanted, transport=asked[0].name if asked else None, transfers=transfers)


def choose_transfers(settings: Settings, offer: KVTransportOffer | None) -> Transfers | None:
    """None for a server that has nothing to do with others. Raises ``ConfigError`` for what it can't do.

    ``offer`` is what keeps contents outside the engine, if anything does.
    """
    theirs = _read_theirs(settings["kv_transfer_config"])
    role = settings[_ROLE] or theirs.get("role")
    if role is None:
        if settings["kv_peers"]:
            raise ConfigError("kv_peers are for a server with --kv-role consumer or both", param="kv_peers")
        return None
    if theirs and theirs["role"] != role:
        raise ConfigError(f"kv_role={role} and kv_transfer_config say different things: give one", param=_ROLE)
    if offer is None or not offer.exchange:
        raise ConfigError(
            f"kv_role={role} needs --kv-offload-path, the folder for blocks to serve or to fetch; /dev/shm/lsv-kv "
            "keeps them in memory",
            param=_ROLE,
        )
    produces, consumes = role in ("producer", "both"), role in ("consumer", "both")
    _check_ranks(settings, role, produces=produces)
    check_key(settings["cluster_key"], f"servers with a kv_role ({role})")
    host = theirs.get("host", settings["kv_host"]).strip("[]")
    check_address("kv_host", host)
    peers = tuple(_read_peer(peer) for peer in settings["kv_peers"] or ())
    if consumes and not produces and not peers:
        raise ConfigError("kv_role=consumer needs --kv-peers: the producers that it may fetch from", param="kv_peers")
    if peers and not consumes:
        raise ConfigError("kv_peers: a producer fetches nothing; leave them out", param="kv_peers")
    return Transfers(
        produces=produces,
        consumes=consumes,
        host=host,
        port=theirs.get("port", settings["kv_port"]),
        peers=peers,
        timeout=settings["kv_timeout"],
    )


def _read_peer(peer: str) -> str:
    try:
        return join_address(*split_address(peer))
    except ValueError:
        raise ConfigError(f"kv_peers: {peer!r} must be host:port, or [address]:port", param="kv_peers") from None


def _read_theirs(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``kv_transfer_config`` says: the role, and host and port where they are given."""
    if not config:
        return {}
    name = "kv_transfer_config"
    known = {"kv_connector", "kv_role", "kv_ip", "kv_port"}
    unknown = sorted(set(config) - known - _IDLE)
    if unknown:
        raise ConfigError(f"{name}: {unknown[0]} is not known here; there are {', '.join(sorted(known))}", param=name)
    connector, role = config.get("kv_connector"), config.get("kv_role")
    if connector not in _CONNECTORS:
        raise ConfigError(
            f"{name}: kv_connector must be {' or '.join(_CONNECTORS)}, got {connector!r}; contents are always "
            "exchanged between the folders of --kv-offload-path; for host memory use --kv-offload-gib",
            param=name,
        )
    if role not in _ROLES:
        raise ConfigError(f"{name}: kv_role must be one of {', '.join(_ROLES)}, got {role!r}", param=name)
    found: dict[str, Any] = {"role": _ROLES[role]}
    if (host := config.get("kv_ip")) is not None:
        found["host"] = str(host)
    if (port := config.get("kv_port")) is not None:
        try:
            _, found["port"] = split_address(f"x:{port}")
        except ValueError:
            raise ConfigError(f"{name}: kv_port must be 1 to 65535, got {port!r}", param=name) from None
    return found


def _check_ranks(settings: Settings, role: str, *, produces: bool) -> None:
    """Parts of contents must be in one folder, of which one process tells others."""
    if settings["nnodes"] > 1 or settings["executor"] not in ("auto", "inline", "processes"):
        raise ConfigError(
            f"kv_role={role} works where all ranks are on one machine: leave out --nnodes and --executor", param=_ROLE
        )
    if produces and (replicas := place_replicas(settings).size) > 1:
        raise ConfigError(
            f"kv_role={role} with data_parallel_size={replicas}: start a server for each, with a --kv-port of its own",
            param=_ROLE,
        )
