"""Manifest: one frontend, its options, and the hook that other plugins use to extend it."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import FrontendOffer
from lsv.settings import Setting
from lsv_api import hookspecs as hookspecs

api = 1


@hookimpl
def lsv_frontends() -> Iterable[FrontendOffer]:
    return (FrontendOffer("api", load="lsv_api.server:serve", default=True),)


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    return (
        Setting(
            name="api.request_templates",
            type="bool",
            default=False,
            help="let a chat request bring its own chat template",
            scope="serve",
        ),
        Setting(
            name="api.template_timeout",
            type="float",
            default=5.0,
            low=0.1,
            help="seconds that rendering a chat template of a request may take",
            scope="serve",
        ),
        Setting(
            name="api.template_memory_mb",
            type="float",
            default=128.0,
            low=16,
            help="MiB of memory that rendering a chat template of a request may take",
            scope="serve",
        ),
        Setting(
            name="api.heartbeat",
            type="float",
            default=15.0,
            low=0.1,
            help="seconds of silence after which a stream gets a comment, so that no proxy closes it",
            scope="serve",
        ),
    )
