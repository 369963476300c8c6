"""``lsv new plugin NAME --kind model|quantizer|platform``: write a small plugin that works and passes its tests."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from lsv.cli.context import CommandContext
from lsv.settings import Setting
from lsv_base.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_USAGE = {
    "model": "by a checkpoint whose config.json names its architecture",
    "quantizer": "with `lsv serve MODEL --quantization {name}`",
    "platform": "with `lsv serve MODEL --platform {name}`",
}
_SETTINGS = (
    Setting(name="kind", choices=tuple(_USAGE), help="what the plugin offers", scope="all"),
    Setting(name="path", default=".", help="folder to write the plugin's own folder into", scope="all"),
)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="none", extra=_SETTINGS, positional=2, usage="plugin NAME")
    if len(settings.positional) != 2 or settings.positional[0] != "plugin" or settings["kind"] is None:
        raise ConfigError(f"use lsv new plugin NAME --kind {'|'.join(_USAGE)}")
    _check_free(settings.positional[1], context)
    folder = write_plugin(settings.positional[1], settings["kind"], Path(settings["path"]))
    context.console.print(f"wrote {folder}; README.md says how to go on", soft_wrap=True)
    return 0


def _check_free(name: str, context: CommandContext) -> None:
    known = {**context.plugins.loaded, **context.plugins.broken}
    if name in known:
        owner = known[name].distribution
        raise ConfigError(f"{owner} has a plugin called {name} already: choose another name")


def write_plugin(name: str, kind: str, path: Path) -> Path:
    """Write the plugin ``name`` into a new folder below ``path`` and return that folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a plugin's name is lower case with dashes, like my-format; got {name!r}")
    folder = path / f"lsv-{name}"
    if folder.exists():
        raise ConfigError(f"{folder} exists already: choose another name or --path")
    package = f"lsv_{name.replace('-', '_')}"
    words = {
        "name": name,
        "module_name": name.replace("-", "_"),
        "distribution": f"lsv-{name}",
        "package": package,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "title": f"The {kind} {name}",
        "module": kind,
        "usage": _USAGE[kind].format(name=name),
    }
    templates = files("lsv_scaffold") / "templates"
    for template in (*(templates / "package").iterdir(), *(templates / kind).iterdir()):
        _write(template, folder, package, words)
    return folder


def _write(template: Traversable, folder: Path, package: str, words: dict[str, str]) -> None:
    name = template.name.removesuffix(".tmpl")
    if name.startswith("test_"):
        target = folder / "tests" / name
    else:
        target = (folder / package if name.endswith(".py") else folder) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
