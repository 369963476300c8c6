"""Objects that stay are exempt from collecting garbage.

Engines collect garbage when they close, and each collection looks through all objects. Test modules and what they
import are hundreds of thousands, and none of them ever becomes garbage.
"""

from __future__ import annotations

import gc
import sys

from lsv.engine.engine import Engine

IMPORTS = 20
"""Freezing pays after this many imports of modules."""
ENGINES = 8
"""So many frozen engines, of 12 to 16 MiB each, are worth a collection among all objects, which takes 0.4 seconds."""


class Heap:
    """The objects of this process: those that are frozen, and those that were made since."""

    def __init__(self) -> None:
        self._modules = 0
        self._engines = 0
        """How many engines were open when objects were frozen: once closed, they are garbage that is never found."""

    def freeze(self) -> None:
        """Collect garbage, and exempt all that is left from later collections."""
        if self._engines >= ENGINES:
            gc.unfreeze()
            self._engines = 0
        gc.collect()
        self._engines += sum(type(thing) is Engine for thing in gc.get_objects())
        gc.freeze()
        self._modules = len(sys.modules)

    def freeze_imports(self) -> None:
        """The same, if much has been imported since the last time."""
        if len(sys.modules) - self._modules >= IMPORTS:
            self.freeze()
