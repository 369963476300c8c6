"""Manifest: a part of the engine, and its setting."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import PartOffer
from lsv.settings import Setting

api = 2


@hookimpl
def lsv_parts() -> Iterable[PartOffer]:
    yield PartOffer("quota", "lsv_quota.quota:make_quota")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="quota.tokens_per_second", type="int", low=1, scope="engine",
        help="tokens of prompts and answers that the engine may be asked for in a second",
    )  # fmt: skip
