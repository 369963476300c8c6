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


class Heap:
    """The objects of this process: those that are frozen, and those that were made since."""

    def __init__(self) -> None:
        self._modules = 0

    def freeze(self) -> None:
        """Collect garbage, and exempt all that is left from later collections.

        Nothing is frozen while an engine is open: once closed it is garbage, and must be found with all its memory.
        """
        gc.collect()
        if any(type(thing) is Engine for thing in gc.get_objects()):
            return
        gc.freeze()
        self._modules = len(sys.modules)

    def freeze_imports(self) -> None:
        """The same, if much has been imported since the last time."""
        if len(sys.modules) - self._modules >= IMPORTS:
            self.freeze()
