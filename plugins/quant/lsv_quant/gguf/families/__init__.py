"""The architectures of GGUF files, by ``general.architecture``: of several, a file has the first that it fits."""

from __future__ import annotations

from collections.abc import Mapping

from lsv_quant.gguf.architecture import Architecture
from lsv_quant.gguf.families.gpt import GPT
from lsv_quant.gguf.families.rms import RMS
from lsv_quant.gguf.families.sparse import SPARSE

FAMILIES: Mapping[str, tuple[Architecture, ...]] = {**RMS, **GPT, **SPARSE}
