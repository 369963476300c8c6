"""The grammar back end that lsv brings: llguidance."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import GrammarOffer

api = 2


@hookimpl
def lsv_grammars() -> Iterable[GrammarOffer]:
    yield GrammarOffer(
        "guidance",
        "lsv_guidance.backend:GuidanceBackend",
        rank=10,
        aliases=("llguidance", "xgrammar", "outlines", "lm-format-enforcer"),
    )
