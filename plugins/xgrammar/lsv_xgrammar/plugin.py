"""The grammar back end xgrammar, an optional package (``pip install 'lsv[xgrammar]'``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import GrammarOffer

api = 1


@hookimpl
def lsv_grammars() -> Iterable[GrammarOffer]:
    """Without the package nothing is offered, and whoever has the name among its aliases stands in."""
    if importlib.util.find_spec("xgrammar") is not None:
        yield GrammarOffer("xgrammar", "lsv_xgrammar.backend:XGrammarBackend")
