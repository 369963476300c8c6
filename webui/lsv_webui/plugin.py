"""Manifest: a frontend that ``lsv serve --webui`` starts, a command, and the options of both."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CommandOffer, FrontendOffer
from lsv.settings import Setting
from lsv_webui.options import SETTINGS

api = 2


@hookimpl
def lsv_frontends() -> Iterable[FrontendOffer]:
    yield FrontendOffer(
        "webui", load="lsv_webui.frontend:serve", switch="webui.enabled", check="lsv_webui.frontend:check"
    )


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("webui", load="lsv_webui.command:run", help="show a web page in front of a running server")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    return (
        Setting(
            name="webui.enabled",
            type="bool",
            default=False,
            aliases=("webui",),
            help="also start the web page",
            scope="serve",
            main=True,
        ),
        *SETTINGS,
    )
