"""Modules of another library's names, made when they are imported; each name is loaded when it is first used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Modules(MetaPathFinder, Loader):
    """Finds and makes the modules of one library.

    ``names`` maps each module to its names, and each name to its place, ``package.module:name``. The packages above a
    module need no entry of their own. A name that is not there raises an error that says whose stand-in was asked.
    """

    def __init__(self, library: str, names: Mapping[str, Mapping[str, str]]) -> None:
        self._library = library
        self._names = names
        self._known = {parent for module in names for parent in _with_parents(module)}
        self._made: dict[str, ModuleType] = {}
        self._borrowers = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Make the modules importable for good. Those with files of their own come first."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Make the modules importable while this lasts, unless the library is installed. Threads may overlap."""
        if self._borrowers == 0 and (self._library in sys.modules or self._is_installed):
            yield
            return
        self._lend()
        try:
            yield
        finally:
            self._take_back()

    @cached_property
    def _is_installed(self) -> bool:
        """Searched for once, because that takes most of a millisecond, and processors run in every step."""
        return importlib.util.find_spec(self._library) is not None

    def _lend(self) -> None:
        with self._lock:
            self._borrowers += 1
            if self._borrowers == 1:
                sys.modules.update(self._made)
                sys.meta_path.append(self)

    def _take_back(self) -> None:
        with self._lock:
            self._borrowers -= 1
            if self._borrowers == 0:
                sys.meta_path.remove(self)
                for name in self._made:
                    sys.modules.pop(name, None)

    def load(self, module: str, name: str) -> Any:
        """What a name of a module stands for. Raises ``AttributeError``."""
        place = self._names.get(module, {}).get(name)
        if place is not None:
            home, _, attribute = place.partition(":")
            return getattr(importlib.import_module(home), attribute)
        if f"{module}.{name}" in self._known:
            return importlib.import_module(f"{module}.{name}")
        raise AttributeError(self._missing(f"{module}.{name}"), name=name)

    def list_names(self, module: str) -> list[str]:
        """The names of a module."""
        return sorted(self._names.get(module, {}))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ``ModuleNotFoundError`` for a module of the library that is not there."""
        if fullname.partition(".")[0] != self._library:
            return None
        if fullname not in self._known:
            # another name than the module's: "from package import name" would hide this error otherwise
            raise ModuleNotFoundError(self._missing(fullname), name=self._library)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = self._made[spec.name] = _Module(spec.name)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert isinstance(module, _Module)
        module.load_from(self)

    def _missing(self, name: str) -> str:
        return f"{self._library} is lsv's stand-in here and has no {name}; docs/vllm.md lists what it has"


class _Module(ModuleType):
    """A module that loads its names when they are first used."""

    _modules: Modules

    def load_from(self, modules: Modules) -> None:
        self._modules = modules
        self.__all__ = modules.list_names(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_modules" not in vars(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        found = self._modules.load(self.__name__, name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
