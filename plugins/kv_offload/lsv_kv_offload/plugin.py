"""Files behind the KV cache, and where they are."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import KVTransportOffer
from lsv.settings import Setting

api = 2


@hookimpl
def lsv_kv_transports() -> Iterable[KVTransportOffer]:
    yield KVTransportOffer(
        "files",
        "lsv_kv_offload.files:FileTransport",
        switch="kv_offload.path",
        exchange="lsv_kv_offload.exchange:FileExchange",
    )


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="kv_offload.path",
        help="folder for cached prefixes, shared by restarts and other replicas of this user",
    )
    yield Setting(
        name="kv_offload.path_gib", type="float", default=16.0, low=0.001, high=1 << 20,
        help="approximate limit of its files in GiB; the least recently used are deleted first",
    )  # fmt: skip
