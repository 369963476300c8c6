"""What is behind the device's KV cache: host memory, and what plugins offer beside it."""

from __future__ import annotations

import os
from typing import Any

from lsv.config import Offload
from lsv.errors import ConfigError
from lsv.offers import KVTransportOffer
from lsv.plugins.catalog import Catalog
from lsv.settings import Settings
from lsv.settings.setting import dashed

_GIB = 1 << 30
_SIZE = "kv_offload_gib"


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
            "kv_offloading_backend says of which kind the memory is: say how much there is with --kv-offload-gib",
            param="kv_offloading_backend",
        )
    asked = [offer for offer in catalog.offers(KVTransportOffer) if settings[offer.switch]]
    if len(asked) > 1:
        flags = " and ".join(f"--{dashed(offer.switch)}" for offer in asked)
        raise ConfigError(f"{flags} both say where the KV cache is kept: give one of them", param=asked[1].switch)
    if size is None and not asked:
        return None
    name = _SIZE if size is not None else asked[0].switch
    if not cached:
        raise ConfigError(f"{dashed(name)}: this model keeps no KV cache, so leave it out", param=name)
    if not settings["enable_prefix_caching"]:
        raise ConfigError(
            f"{dashed(name)} keeps cached beginnings of prompts: it needs --enable-prefix-caching", param=name
        )
    wanted, replicas = int((size or 0) * _GIB), settings["data_parallel_size"]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted * replicas > machine:
        each = f" for each of {replicas} replicas" if replicas > 1 else ""
        raise ConfigError(
            f"{dashed(_SIZE)}={size:g}{each}: this machine has {machine / _GIB:.1f} GiB of memory, ask for less",
            param=_SIZE,
        )
    return Offload(host_bytes=wanted, transport=asked[0].name if asked else None)
