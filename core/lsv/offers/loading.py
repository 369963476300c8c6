"""The code that offers name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load_object(name: str) -> Any:
    """The object behind ``"package.module:attribute"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def lazy(name: str) -> Callable[[Any], Any]:
    """The function behind ``"package.module:attribute"``, which is imported when it is first asked something.

    So a light manifest can say who answers for a heavy kernel: ``supports=lazy("lsv_mine.kernels:why_not")``.
    """

    def ask(about: Any) -> Any:
        return load_object(name)(about)

    return ask
