"""``lsv-demo``: the model that is served when none is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lsv import hookimpl
from lsv.offers import ModelAlias

api = 1


def locate() -> str:
    return str(Path(__file__).parent / "checkpoint")


@hookimpl
def lsv_model_aliases() -> Iterable[ModelAlias]:
    yield ModelAlias("lsv-demo", locate, default=True)
