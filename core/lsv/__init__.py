"""lsv: LLM inference and serving where every platform, kernel, quantiser and model is a plugin.

The public names below are imported when they are first used, so ``import lsv`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lsv.hooks import hookimpl
from lsv.version import __version__

if TYPE_CHECKING:
    from lsv.errors import LsvError as LsvError
    from lsv.llm import LLM as LLM
    from lsv.llm import CompletionOutput as CompletionOutput
    from lsv.llm import RequestOutput as RequestOutput
    from lsv.request.params import PoolingParams as PoolingParams
    from lsv.request.params import SamplingParams as SamplingParams

_HOMES = {
    "LLM": "lsv.llm",
    "CompletionOutput": "lsv.llm",
    "RequestOutput": "lsv.llm",
    "LsvError": "lsv.errors",
    "PoolingParams": "lsv.request.params",
    "SamplingParams": "lsv.request.params",
}

__all__ = ["__version__", "hookimpl", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lsv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
