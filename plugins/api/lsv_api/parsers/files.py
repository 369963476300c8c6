"""A plugin that is one Python file of an operator's, and is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from lsv.offers import ToolParserOffer
from lsv.plugins import Origin, Plugins
from lsv_base.errors import ConfigError

OPTION = "tool_parser_plugin"
_FORM = "it must be a manifest that offers parsers by the hook lsv_tool_parsers, as docs/tools.md shows"


def add_file(plugins: Plugins, path: str) -> None:
    """Take in the parsers of tools that a file offers; its offers name what is in it by the file's name, without .py.

    Raises ``ConfigError``.
    """
    file = Path(path)
    module = _load(file)
    origin = Origin(name=module.__name__, module=module.__name__)
    try:
        plugins.add(origin, module)
    except Exception as cause:
        raise _unfit(file, f"{cause}; {_FORM}") from cause
    offered = [found.plugin for found in plugins.catalog.declared("lsv_tool_parsers", ToolParserOffer)]
    if origin.name in plugins.broken:
        raise _unfit(file, plugins.broken[origin.name].reason)
    if origin.name not in offered:
        raise _unfit(file, f"it offers no parser; {_FORM}")


def _load(file: Path) -> ModuleType:
    name = file.stem
    known = sys.modules.get(name)
    if not name.isidentifier() or (known is not None and getattr(known, "__file__", None) != str(file.resolve())):
        raise _unfit(file, "its name must be that of a module, and of none that is there already: rename it")
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise _unfit(file, "it must be a file of Python, called *.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        del sys.modules[name]
        raise _unfit(file, f"it can't be loaded: {type(cause).__name__}: {cause}; {_FORM}") from cause
    return module


def _unfit(file: Path, why: str) -> ConfigError:
    return ConfigError(f"--tool-parser-plugin {file}: {why}", param=OPTION)
