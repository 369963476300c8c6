"""Every architecture that people bring, and whether it runs here: natively, through the generic adapter, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from lsv.offers import ModelOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.architecture.families import read_families as read_known
from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.orders import FAILED, Cell

_FAMILIES = Path(__file__).with_name("families.tsv")
NO_CLASS = "transformers has no class of this name for text generation, and no plugin here offers it"
_UNCHECKED = "no check has run"
_FAILURES = {
    "wrong": "it is taken, and its answers are wrong: ",
    "crash": "it ends in an error: ",
    "untried": "no check can run: ",
}
Way = Literal["native", "generic", "no"]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture, as config.json's ``architectures`` names it."""

    architecture: str
    models: str = ""
    """What people know it by."""
    way: Way
    why: str = ""
    """Of ``no``: the reason; otherwise what else to know."""
    plugin: str = ""
    tasks: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    text: Cell = ""
    """Whether a check has found the text right; empty where none has run."""
    cells: Mapping[str, Cell] = {}
    """What a check has found besides, by column of ``COLUMNS``; a column that is missing had no run."""
    unstable: Mapping[str, str] = {}
    """Dtypes that are refused, each with the reason."""
    counts: bool = False
    """Whether it takes part in the share of transformers' classes that run."""


class Share(NamedTuple):
    """How many of transformers' classes serve text."""

    running: int
    all: int

    def __str__(self) -> str:
        return f"{self.short} text-generation classes of transformers serve text{self.part}"

    @property
    def short(self) -> str:
        return f"{self.running} of {self.all}"

    @property
    def part(self) -> str:
        return f" ({self.running / self.all:.0%})" if self.all else ""


def list_served(catalog: Catalog, classes: Mapping[str, Class] | None = None) -> list[Served]:
    """All architectures by name: those of transformers, those of plugins, and those of well-known models."""
    classes = read_classes() if classes is None else classes
    offers = catalog.offers(ModelOffer)
    fallback = next((offer for offer in offers if offer.fallback), None)
    by_name = {name: offer for offer in offers for name in offer.architectures}
    by_half = _native_halves(catalog, by_name)
    families = read_families()
    names = sorted({*classes, *by_name, *families}, key=lambda name: (name.lower(), name))
    return [
        _serve(
            name, families.get(name, ""), classes.get(name), by_name.get(name) or by_half.get(name), fallback, catalog
        )
        for name in names
    ]


def _native_halves(catalog: Catalog, by_name: Mapping[str, ModelOffer]) -> dict[str, ModelOffer]:
    """The native models of the language models in wrappers, by the wrapper's architecture."""
    known = read_known(catalog)
    halves = {one.architecture: known.architectures.get(one.half, "") for one in known.wrappers.values()}
    return {name: by_name[half] for name, half in halves.items() if half in by_name}


def read_families(path: Path = _FAMILIES) -> dict[str, str]:
    """Architecture → the models that people know it by."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: models for name, _, models in (line.partition("\t") for line in lines)}


def share(served: Sequence[Served]) -> Share:
    counted = [one for one in served if one.counts]
    return Share(sum(one.text == "yes" for one in counted), len(counted))


def _serve(
    name: str, models: str, one: Class | None, offer: ModelOffer | None, fallback: ModelOffer | None, catalog: Catalog
) -> Served:
    native = offer is not None and not offer.adapts
    runs, failed = one is not None and one.state == "runs", one is not None and one.state in FAILED
    offer = offer or (fallback if runs else None)
    way: Way = "no" if failed else "native" if native else "generic" if runs or (offer and one is None) else "no"
    found = Served(
        architecture=name, models=models, way=way, why=_why(one, way, offer), counts=one is not None,
        text=_text(one), cells=one.cells if one else {},
    )  # fmt: skip
    if offer is None or way == "no":
        return found
    return msgspec.structs.replace(
        found, plugin=catalog.provider(offer), tasks=offer.tasks, modalities=offer.modalities, unstable=offer.unstable
    )


def _text(one: Class | None) -> Cell:
    if one is None or one.state in ("", "untried"):
        return ""
    return "yes" if one.state == "runs" else "no" if one.state == "refused" else "wrong"


def _why(one: Class | None, way: Way, offer: ModelOffer | None) -> str:
    if way == "no":
        return NO_CLASS if one is None else _FAILURES.get(one.state, "") + one.detail or _UNCHECKED
    found = (one.detail, one.notes) if one is not None and one.state == "runs" else ()
    return "; ".join(filter(None, (offer.note if offer else "", *found)))
