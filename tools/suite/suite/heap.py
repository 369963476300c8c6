"""Exempts long-lived objects from garbage collection.

Engines collect garbage when they close, and each collection traverses all objects. Test modules and their imports are
hundreds of thousands of objects, none of which ever becomes garbage.
"""

from __future__ import annotations

import gc
import sys

from lsv.engine.engine import Engine

IMPORTS = 20
"""Freezing pays after this many imports of modules."""


def collect_frozen() -> None:
    """Collect all garbage, including objects that were still in use when they were frozen, such as a fixture's model.

    This takes as long as ``Heap.freeze`` saves: tests that measure memory need it.
    """
    gc.unfreeze()
    Heap().freeze()


class Heap:
    """The objects of this process: those that are frozen, and those that were made since."""

    def __init__(self) -> None:
        self._modules = 0

    def freeze(self) -> None:
        """Collect garbage, and exempt all remaining objects from later collections.

        Nothing is frozen while an engine is open: once closed it is garbage, and must be found with all its memory.
        """
        gc.collect()
        self._modules = len(sys.modules)
        if not any(type(thing) is Engine for thing in gc.get_objects()):
            gc.freeze()

    def freeze_imports(self) -> None:
        """The same, if much has been imported since the last time."""
        if len(sys.modules) - self._modules >= IMPORTS:
            self.freeze()
