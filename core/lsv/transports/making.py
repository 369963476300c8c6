"""Makes the transport that a configuration names, where its contents mean the same as those of others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lsv.config import EngineConfig
from lsv.offers import KVTransportOffer
from lsv.plugins.catalog import Catalog
from lsv.transports import Site, Transport
from lsv.transports.exchange import Exchange, Seat
from lsv_base.untrusted.files import WEIGHTS, open_regular
from lsv_base.version import __version__

_FORMAT = "lsv-kv-contents-1"
"""Version of the layout of contents that this file knows of; to be changed where that changes within a release."""
_SAMPLES = 64
_SAMPLE = 4096
_COUNTED = (
    "architecture", "model_offer", "platform", "emulate", "attention", "attention_next", "quantization",
    "quantization_ignore", "load_format", "loader", "dtype", "kv_dtype", "block_size", "max_model_len", "overrides",
    "reference_ops", "seed",
)  # fmt: skip
"""What of a configuration a content depends on, or its layout."""


def make_transport(config: EngineConfig, catalog: Catalog, rank: int = 0) -> Transport | None:
    """The transport of one rank, or of the engine, which has rank 0's; None where none was asked for."""
    if config.offload is None or config.offload.transport is None:
        return None
    offer = catalog.find(KVTransportOffer, config.offload.transport)
    made: Transport = catalog.load(offer)(_describe(config, offer, rank))
    return made


def make_exchange(config: EngineConfig, catalog: Catalog, secret: bytes) -> Exchange | None:
    """What an engine's transport hands to others and gets from them; None where none of that was asked for."""
    if config.offload is None or config.offload.transport is None or config.offload.transfers is None:
        return None
    offer = catalog.find(KVTransportOffer, config.offload.transport)
    seat = Seat(
        site=_describe(config, offer),
        ranks=config.topology.ranks,
        transfers=config.offload.transfers,
        secret=secret,
    )
    made: Exchange = catalog.load(offer, "exchange")(seat)
    return made


def _describe(config: EngineConfig, offer: KVTransportOffer, rank: int = 0) -> Site:
    own = offer.switch.partition(".")[0]
    return Site(identity=identify(config, own), rank=rank, options=config.options)


def identify(config: EngineConfig, transport: str = "") -> str:
    """``Site.identity`` of a configuration. Settings that begin with ``transport`` and a dot do not count.

    Engines that hand each other contents have copies of the checkpoint, whose times say nothing: for them samples of
    all files must do.
    """
    copied = config.offload is not None and config.offload.transfers is not None
    topology = config.topology
    options = {name: value for name, value in config.options.items() if not name.startswith(f"{transport}.")}
    parts = {
        "format": _FORMAT,
        "version": __version__,
        "ranks": (topology.tensor, topology.pipeline, topology.expert, topology.layers),
        "config": {name: getattr(config, name) for name in _COUNTED},
        "options": options,
        "weights": list(_weigh(Path(config.model), timed=not copied)),
        "parts": {one.place: list(_weigh(Path(one.folder), timed=not copied)) for one in config.parts if one.folder},
        "kv_scales": list(_weigh(Path(config.kv_scales), timed=not copied)) if config.kv_scales else [],
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


def _weigh(path: Path, *, timed: bool) -> Iterator[tuple[str, int, int, str]]:
    """What tells a checkpoint from others: names, sizes and times of its files, and samples of what is in them.

    Where it is ``timed``, a copy with other times is another checkpoint: at worst a content is not found.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            about = file.stat()
            yield file.name, about.st_size, about.st_mtime_ns if timed else 0, _sample(file, about.st_size)


def _sample(path: Path, size: int) -> str:
    """The hash of the file's beginning and of pieces at equal distances; of a short file that is all of it."""
    digest = hashlib.sha256()
    step = max(_SAMPLE, size // _SAMPLES)
    descriptor = open_regular(path, WEIGHTS)
    try:
        for place in range(0, size, step):
            digest.update(os.pread(descriptor, _SAMPLE, place))
    finally:
        os.close(descriptor)
    return digest.hexdigest()
