"""Which of a vendor's libraries this process calls: what is installed, or under emulation a fake of it.

Adapters reach a library through one small object each, by its name; the fakes answer the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from lsv.offers import load_object
from lsv_base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Library:
    """``missing`` says without an import what keeps the library from being used; ``load`` and ``fake`` name makers."""

    missing: Callable[[], str | None]
    load: str
    fake: str


@dataclass(slots=True)
class Libraries:
    """The libraries that a plugin has adapters for, by name; each is imported when it is first asked for."""

    known: Mapping[str, Library]

    emulated: Mapping[str, tuple[str, ...]]
    """The values of ``setting``, and the libraries of which each has a fake."""

    setting: str
    """What chooses among the fakes."""

    _chosen: dict[str, Any] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    def obtain(self, name: str) -> Any:
        """The library's object. Raises ``ConfigError`` where ``why_not`` has a reason."""
        reason = self.why_not(name)
        if reason is not None:
            raise ConfigError(f"{name} can't be used here: it lacks {reason}")
        return self._chosen[name]

    def why_not(self, name: str) -> str | None:
        """None, or what keeps this process from calling the library; it is imported where nothing speaks against it."""
        if name not in self._chosen and name not in self._failed:
            self._find(name)
        return self._failed.get(name)

    def _find(self, name: str) -> None:
        missing = self.known[name].missing()
        if missing is not None:
            self._failed[name] = missing
            return
        try:
            self._chosen[name] = load_object(self.known[name].load)()
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            self._failed[name] = f"a library that loads: {error}"

    def emulate(self, choice: str) -> None:
        """Answer calls of some libraries by fakes, have none of the others; ``choice`` is a value of the setting."""
        self.forget()
        platform = self.setting.partition(".")[0]
        for name, library in self.known.items():
            if name in self.emulated[choice]:
                self.use(name, load_object(library.fake)())
            else:
                having = next(other for other, faked in self.emulated.items() if name in faked)
                reason = f"a fake: {platform} is emulated with {self.setting}={choice}, and {having} has one"
                self._failed[name] = reason

    def use(self, name: str, made: Any) -> None:
        """Have ``made`` answer a library's calls from now on in this process."""
        self._failed.pop(name, None)
        self._chosen[name] = made

    def refuse(self, name: str, reason: str) -> None:
        """Have no calls to a library from now on in this process; ``reason`` is what it lacks."""
        self._chosen.pop(name, None)
        self._failed[name] = reason

    def forget(self) -> None:
        """Look for all libraries again."""
        self._chosen.clear()
        self._failed.clear()

    def opaque_calls(self) -> list[tuple[type, str]]:
        """Methods of fakes in use that write to tensors they are given and read values on the host on their way: what
        captures a step under emulation is to remember such a call as a whole.
        """
        return [(type(made), name) for made in self._chosen.values() for name in getattr(type(made), "opaque", ())]


def installed(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
