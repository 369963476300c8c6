"""The rules a plugin's manifest must obey, each with an error that names what breaks it."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

from lsv.settings import Setting
from lsv_base.errors import suggestion

log = logging.getLogger(__name__)

API = 2
"""The version of the hooks and seams; a manifest says which one it was written for with ``api = 2``."""

_CHANGES = {
    1: "modules that import torch have moved from lsv to lsv_runtime, lsv.testing to lsv_testing, lsv.llm to "
    "lsv_offline, and errors and processes to lsv_base; CHANGELOG.md has the table",
}
"""What authors must change in a plugin for an earlier version."""

HookSpecs = Mapping[str, tuple[str, ...]]
"""Hook → the names of its arguments."""

_SETTING_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class ManifestError(Exception):
    """A manifest breaks a rule; the message says which, where, and what to do."""


def check(manifest: object, specs: HookSpecs) -> None:
    """Check a manifest against the known hooks; raises ``ManifestError``."""
    check_api(manifest)
    for name, value in vars(manifest).items():
        mark = getattr(value, "lsv_impl", None)
        if mark is not None:
            _check_implementation(mark.get("specname") or name, value, mark, specs)
        elif _claims_a_hook(name, value, specs):
            _refuse_unmarked(name, value, specs)


def check_api(manifest: object) -> None:
    found = getattr(manifest, "api", None)
    if found is None:
        raise ManifestError(f"the manifest has no api number: add `api = {API}`")
    if found != API or isinstance(found, bool):
        changes = _CHANGES.get(found) if type(found) is int else None
        since = f" (since api {found}, {changes})" if changes else ""
        raise ManifestError(
            f"the manifest is written for api {found!r}, this lsv has api {API}: install a matching version{since}"
        )


def own_hookspecs(manifest: object) -> tuple[Any, ...]:
    """The modules or classes in which a plugin specifies hooks of its own."""
    declared = getattr(manifest, "hookspecs", ())
    return tuple(declared) if isinstance(declared, list | tuple) else (declared,)


def check_hookspecs(specs: object, known: HookSpecs) -> None:
    names = [name for name, value in vars(specs).items() if getattr(value, "lsv_spec", None) is not None]
    if not names:
        raise ManifestError(
            f"hookspecs {_name(specs)} specifies no hook: mark functions with pluggy.HookspecMarker('lsv')"
        )
    for name in names:
        if name in known:
            raise ManifestError(f"hookspecs {_name(specs)} specifies {name}, which exists already: choose another name")


def check_setting(setting: Setting, plugin: str) -> None:
    """A plugin's option is called ``plugin.option``, and the engine's options are plain values."""
    prefix = plugin.replace("-", "_")
    owner, _, option = setting.name.partition(".")
    if owner != prefix or not _SETTING_NAME.fullmatch(option):
        raise ManifestError(f"setting {setting.name!r} must be called {prefix}.<name> with a name in snake_case")
    if setting.type in ("list", "json") and setting.scope != "serve":
        raise ManifestError(
            f"setting {setting.name!r} reaches the engine, so its type can't be {setting.type}: use str"
        )


def arguments(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _check_implementation(hook: str, function: Any, mark: Mapping[str, Any], specs: HookSpecs) -> None:
    if hook not in specs:
        if mark.get("optionalhook"):
            return
        raise ManifestError(f"{_place(function)} implements {hook}, which is not a hook{suggestion(hook, specs)}")
    if mark.get("wrapper") or mark.get("hookwrapper"):
        raise ManifestError(f"{_place(function)}: hook wrappers are not supported, yield offers instead")
    unknown = [name for name in arguments(function) if name not in specs[hook]]
    if unknown:
        takes = f"takes ({', '.join(specs[hook])})" if specs[hook] else "takes no arguments"
        raise ManifestError(f"{_place(function)}: {hook} {takes}, not {', '.join(unknown)}")


def _claims_a_hook(name: str, value: object, specs: HookSpecs) -> bool:
    if isinstance(value, ModuleType) or getattr(value, "lsv_spec", None) is not None:
        return False
    return name in specs or (name.startswith("lsv_") and inspect.isroutine(value))


def _refuse_unmarked(name: str, value: object, specs: HookSpecs) -> None:
    if not inspect.isroutine(value):
        raise ManifestError(f"{name} must be a function marked with @lsv.hookimpl, got {type(value).__name__}")
    if name in specs:
        raise ManifestError(f"{_place(value)} has no @lsv.hookimpl mark, so it would never be called: add it")
    raise ManifestError(f"{_place(value)} is named like a hook but is not one{suggestion(name, specs)}")


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", repr(function))
    return f"{name} (line {code.co_firstlineno})" if code else name


def _name(thing: object) -> str:
    return getattr(thing, "__name__", repr(thing))


def is_missing(error: BaseException, module: str) -> bool:
    """Whether an import failed because ``module`` itself (or its package) is not there, not something it imports."""
    return (
        isinstance(error, ModuleNotFoundError)
        and error.name is not None
        and (module == error.name or module.startswith(f"{error.name}."))
    )


def read(name: str, distribution: str = "") -> ModuleType:
    """Import a manifest; a module that tries to end the process is unfit, not obeyed."""
    if ":" in name:
        raise ManifestError(f"the entry point must name a module, not an object in one: {name}")
    try:
        # what a manifest prints must not get into what commands print
        with redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        log.warning("interrupted while importing plugin manifest %s (%s)", name, distribution or "no distribution")
        raise
    except SystemExit as error:
        raise ManifestError(f"importing {name} tried to end the process ({error.code!r})") from error
