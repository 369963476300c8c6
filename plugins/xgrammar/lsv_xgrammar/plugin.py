"""The grammar back end xgrammar, which needs an optional package (``pip install -e '.[xgrammar]'``)."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import GrammarOffer
from lsv_xgrammar.availability import is_installed

api = 2


@hookimpl
def lsv_grammars() -> Iterable[GrammarOffer]:
    """Without the package nothing is offered, and whoever has the name among its aliases stands in."""
    if is_installed():
        yield GrammarOffer("xgrammar", "lsv_xgrammar.backend:XGrammarBackend")
