"""Finding plugins: load each manifest, check it, and remember what is broken and why.

A manifest is the module behind an entry point of the group ``lsv``. It carries ``api = 2`` and functions
marked with ``lsv.hookimpl``. One bad plugin never keeps another from loading.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.metadata import entry_points
from itertools import groupby
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec
import pluggy

from lsv.offers import CommandOffer
from lsv.plugins import guard, hookspecs, manifest
from lsv.plugins.catalog import Catalog
from lsv.plugins.typed import check_types
from lsv.settings import Declared, Setting, options
from lsv_base.errors import ConfigError, PluginError, suggestion

log = logging.getLogger(__name__)

GROUP = "lsv"
CORE = "core"
ESSENTIAL = (CORE, "runtime", "offline")
"""Always loaded if they are installed: nothing runs without scheduling policies and executors."""
_OWN = "lsv"
"""The distribution whose plugins nobody can put out by taking their names."""


class Origin(msgspec.Struct, frozen=True):
    """Where a plugin comes from: its name, what installed it, and the module of its manifest."""

    name: str
    module: str = ""
    distribution: str = ""
    version: str = ""


class BrokenPlugin(Origin, frozen=True, kw_only=True):
    """A plugin that is installed but can't be used, or only in part. ``stale``: its files are gone."""

    error: Exception
    traceback: str
    stale: bool = False

    @property
    def reason(self) -> str:
        if self.stale:
            return f"stale: the module {self.module} of {self.distribution} is gone; reinstall or uninstall it"
        if isinstance(self.error, manifest.ManifestError):
            return str(self.error)
        return f"{type(self.error).__name__}: {self.error}"

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version}): {self.reason}"


class Plugins:
    """The plugins of this process: what was loaded, what is broken, and the catalog of what they offer."""

    def __init__(self, *, watched: bool = True) -> None:
        """``watched`` starts a thread beside what may take long, see ``guard``."""
        self._watched = watched
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._loaded: dict[str, Origin] = {}
        self._broken: dict[str, BrokenPlugin] = {}
        self.catalog = Catalog(self)

    @property
    def names(self) -> tuple[str, ...]:
        """What ``load`` needs to load the same plugins in another process."""
        return tuple(self._loaded)

    @property
    def loaded(self) -> Mapping[str, Origin]:
        return MappingProxyType(self._loaded)

    @property
    def broken(self) -> Mapping[str, BrokenPlugin]:
        return MappingProxyType(self._broken)

    def settings(self) -> tuple[Setting, ...]:
        """The plugins' options. A plugin with one that breaks the rules is broken, and none of its options count."""
        declared = Declared(options.CORE)
        accepted: list[Setting] = []
        for plugin, entries in groupby(self.catalog.declared("lsv_settings", Setting), key=lambda entry: entry.plugin):
            own = [entry.thing for entry in entries]
            try:
                for setting in own:
                    check_types(setting)
                    manifest.check_setting(setting, plugin)
                    declared.add(setting)
            except (manifest.ManifestError, ConfigError, TypeError) as error:
                self.blame(plugin, error)
            else:
                accepted += own
        return tuple(accepted)

    def commands(self) -> tuple[CommandOffer, ...]:
        return self.catalog.offers(CommandOffer)

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Tell all plugins about an event, or ask them; one that raises is logged and does not disturb the others."""
        return [answer for _, answer in self.ask(hook, **arguments)]

    def ask(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """The same, with the plugin that each answer came from."""
        answers = []
        for plugin, implementation in self.implementations(hook):
            wanted = manifest.arguments(implementation)
            try:
                answer = implementation(**{name: arguments[name] for name in wanted})
                answers.append((plugin, tuple(answer) if isinstance(answer, Iterator) else answer))
            except Exception:
                log.exception("plugin %s failed in %s", plugin, hook)
        return answers

    def require(self, names: Iterable[str]) -> None:
        """Raise ``PluginError`` where a plugin that was asked for by name is broken."""
        for name in names:
            if name in self._broken:
                broken = self._broken[name]
                raise PluginError(f"plugin {broken}") from broken.error

    def add(self, origin: Origin, module: object) -> None:
        """Take in a manifest on its own; raises ``manifest.ManifestError`` where it breaks a rule."""
        self.add_specs(module)
        self.add_implementations(origin, module)

    def add_specs(self, module: object) -> None:
        """Take in the hooks a plugin adds (its attribute ``hookspecs``: a module, or a list of them)."""
        manifest.check_api(module)
        for specs in manifest.own_hookspecs(module):
            manifest.check_hookspecs(specs, self._specs())
            self._manager.add_hookspecs(specs)

    def add_implementations(self, origin: Origin, module: object) -> None:
        """Take in what a plugin implements; the hooks of all plugins must be known by now."""
        manifest.check(module, self._specs())
        self._manager.register(module, origin.name)
        self._loaded[origin.name] = origin

    def implementations(self, hook: str) -> Iterator[tuple[str, Any]]:
        """(plugin, function) for each implementation, in the order the plugins were loaded."""
        caller = getattr(self._manager.hook, hook)
        by_plugin = {found.plugin_name: found.function for found in caller.get_hookimpls()}
        for name in self._loaded:
            if name in by_plugin:
                yield name, by_plugin[name]

    def watching(self) -> AbstractContextManager[Callable[[str], None]]:
        """Watch plugins at work: call the yielded function with a name at the start of each turn."""
        return guard.watching() if self._watched else nullcontext(lambda what: None)

    def blame(self, plugin: str, error: Exception) -> None:
        """Remember the first thing that went wrong with a loaded plugin."""
        self._note_broken(self._loaded[plugin], error)

    @contextmanager
    def blaming(self, origin: Origin) -> Iterator[None]:
        """Let nothing that a plugin raises get further than its record."""
        try:
            yield
        except Exception as error:
            self._note_broken(origin, error)

    def is_own(self, plugin: str) -> bool:
        """Whether a plugin comes with lsv itself."""
        return self._loaded[plugin].distribution == _OWN

    def suspects(self) -> list[str]:
        return [str(broken) for broken in self._broken.values()]

    def first_cause(self) -> Exception | None:
        return next((broken.error for broken in self._broken.values()), None)

    def _note_broken(self, origin: Origin, error: Exception) -> None:
        if origin.name not in self._broken:
            self._broken[origin.name] = BrokenPlugin(
                **msgspec.structs.asdict(origin),
                error=error,
                traceback="".join(traceback.format_exception(error)),
                stale=manifest.is_missing(error, origin.module),
            )

    def _specs(self) -> dict[str, tuple[str, ...]]:
        """The names of all hooks, each with the names of its arguments."""
        hooks = vars(self._manager.hook)
        return {name: tuple(caller.spec.argnames) for name, caller in hooks.items() if getattr(caller, "spec", None)}


def load(
    names: Sequence[str] | None = None,
    without: Sequence[str] = (),
    extra: Sequence[str] | None = None,
    *,
    watched: bool = True,
) -> Plugins:
    """Load the installed plugins: all of them, or those in ``names``; never those in ``without``.

    ``extra`` chooses among those that other distributions than core's installed; None takes all. A name in it that is
    not installed may be meant for another program, and is passed over.

    ``watched`` False starts no thread, which a process whose memory is limited would pay for.

    Raises ``PluginError`` where a name in ``names`` or ``without`` is not installed, or one in ``names`` is broken.
    """
    installed = _find_installed(tuple(sys.path))
    _refuse_unknown([*(names or ()), *without], [origin.name for origin in installed])
    own = {origin.distribution for origin in installed if origin.name == CORE}
    chosen = [
        origin
        for origin in installed
        if _is_chosen(origin.name, names, without)
        and (extra is None or origin.name in (*extra, *(names or ())) or origin.distribution in own)
    ]
    plugins = Plugins(watched=watched)
    _load_into(plugins, chosen)
    plugins.require(names or ())
    return plugins


def packages() -> set[str]:
    """The packages of installed plugins and core, and the ground library below them. None is imported."""
    return {"lsv_base", *(origin.module.partition(".")[0] for origin in _find_installed(tuple(sys.path)))}


@cache
def _find_installed(path: Sequence[str]) -> Sequence[Origin]:
    """All plugins in a search path, by name. Reading takes as long as loading, and a process loads plugins often."""
    return tuple(sorted(_read_origins(), key=lambda origin: (origin.name, origin.distribution)))


def _read_origins() -> Iterator[Origin]:
    """Many plugins may come from one distribution, whose metadata is parsed once."""
    metadata = cache(lambda distribution: distribution.metadata)
    for point in entry_points(group=GROUP):
        if point.dist is None:
            yield Origin(point.name, point.value)
        else:
            found = metadata(point.dist)
            yield Origin(point.name, point.value, found["Name"], found["Version"])


def _is_chosen(name: str, names: Sequence[str] | None, without: Sequence[str]) -> bool:
    if name in ESSENTIAL:
        return True
    return name not in without and (names is None or name in names)


def _refuse_unknown(asked: Iterable[str], installed: Sequence[str]) -> None:
    for name in asked:
        if name not in installed:
            raise PluginError(
                f"no plugin called {name!r} is installed{suggestion(name, installed)} "
                f"(installed: {', '.join(dict.fromkeys(installed)) or 'none'})"
            )


def _load_into(plugins: Plugins, chosen: Iterable[Origin]) -> None:
    """Three passes, so that a plugin may implement a hook that a later one adds."""
    imported = _import_manifests(plugins, chosen)
    fit = []
    for origin, module in imported.values():
        with plugins.blaming(origin):
            plugins.add_specs(module)
            fit.append((origin, module))
    for origin, module in fit:
        with plugins.blaming(origin):
            plugins.add_implementations(origin, module)


def _import_manifests(plugins: Plugins, chosen: Iterable[Origin]) -> dict[str, tuple[Origin, ModuleType]]:
    """The manifests that can be imported, by name. Of several plugins of a name lsv's own is taken, or none."""
    imported: dict[str, tuple[Origin, ModuleType]] = {}
    with plugins.watching() as begin:
        for name, same in groupby(chosen, key=lambda origin: origin.name):
            first, *others = sorted(same, key=lambda origin: origin.distribution != _OWN)
            begin(f"plugin manifest {first.module} ({first.distribution or 'no distribution'})")
            with plugins.blaming(first):
                if others and first.distribution != _OWN:
                    both = ", ".join(origin.distribution for origin in (first, *others))
                    raise manifest.ManifestError(
                        f"several distributions register this name, uninstall all but one: {both}"
                    )
                imported[name] = first, manifest.read(first.module, first.distribution)
            for other in others:
                if first.distribution == _OWN:
                    log.warning("plugin %s of %s is passed over: lsv has one of that name", name, other.distribution)
    return imported
