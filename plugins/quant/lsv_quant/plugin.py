"""``lsv-quant``: weight formats."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import QuantizerOffer

api = 1


@hookimpl
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    yield QuantizerOffer("int8", "lsv_quant.int8:make", online=True)
    yield QuantizerOffer("sym_int4", "lsv_quant.int4:make_64", online=True)
    yield QuantizerOffer("sym_int4_g32", "lsv_quant.int4:make_32", online=True)
    yield QuantizerOffer("sym_int4_g128", "lsv_quant.int4:make_128", online=True)
