"""lsv under vLLM's name: the classes and functions here are lsv's.

Modules are made when they are imported; ``vllm._names`` lists them. Installed by ``pip install ./compat/vllm``.
"""

from __future__ import annotations

from typing import Any

from lsv_offline.vllm_names.modules import Modules
from vllm._names import NAMES
from vllm.version import __version__ as __version__

_MODULES = Modules(__name__, NAMES)
_MODULES.install()

__all__ = ["__version__", *_MODULES.list_names(__name__)]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return _MODULES.load(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
