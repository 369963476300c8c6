"""``EngineArgs``: the options of an engine as a dataclass, for scripts written against vLLM.

Its fields are the keyword arguments of ``LLM``, so ``LLM(**dataclasses.asdict(args))`` runs what the arguments say.
They are made from the settings, those of plugins among them, when this module is imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from lsv import plugins
from lsv.settings import Setting, options

_CHOOSING = frozenset({"config"})
"""Settings that a script's own parser handles."""


def _name(setting: Setting) -> str:
    return setting.name.replace(".", "_")


_SETTINGS = tuple(
    setting for setting in options.for_scope("engine", plugins.load().settings()) if setting.name not in _CHOOSING
)
_DEFAULTS = {_name(setting): setting.default for setting in _SETTINGS}


class EngineArguments:
    """What both kinds of arguments do; their fields come from the settings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser a flag for each field; ``from_cli_args`` reads what it makes of them."""
        known = set(parser._option_string_actions)
        for setting in _SETTINGS:
            flags = [flag for flag in (*(f"--{key}" for key in setting.keys), *setting.short) if flag not in known]
            shared: dict[str, Any] = {"dest": _name(setting), "default": setting.default}
            if flags:
                parser.add_argument(*flags, help=setting.help.replace("%", "%%"), **_form(setting), **shared)
            if flags and setting.type == "bool":
                parser.add_argument(
                    f"--no-{setting.keys[0]}", action="store_const", const=False, help=argparse.SUPPRESS, **shared
                )
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The arguments that a parser has read; it may have others besides."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(args).items() if name in names})

    def given(self) -> dict[str, Any]:
        """The options of ``LLM`` that differ from their defaults, so that variables may set the others."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def _form(setting: Setting) -> dict[str, Any]:
    if setting.type == "bool":
        return {"nargs": "?", "const": True}
    return {"nargs": "+"} if setting.type == "list" else {}


_FIELDS = [
    (name, Any, dataclasses.field(default_factory=partial(copy, value)))
    for name, value in _DEFAULTS.items()
    if name != "model"
]

EngineArgs: type[EngineArguments] = dataclasses.make_dataclass(
    "EngineArgs",
    [("model", "str | None", dataclasses.field(default=None)), *_FIELDS],
    bases=(EngineArguments,),
    namespace={"__module__": __name__, "__doc__": "The options of an engine; ``lsv serve --help`` explains them."},
)
AsyncEngineArgs: type[EngineArguments] = dataclasses.make_dataclass(
    "AsyncEngineArgs",
    [("disable_log_requests", bool, dataclasses.field(default=False))],
    bases=(EngineArgs,),
    namespace={"__module__": __name__, "__doc__": "The same for ``AsyncLLMEngine``."},
)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes flags with underscores as well, and options from a YAML file with ``--config``."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The file's options come first, so that flags win over them."""
        given = [_dashes(one) for one in (sys.argv[1:] if args is None else args)]
        file = next((index for index, one in enumerate(given) if one.partition("=")[0] == "--config"), None)
        if file is None:
            return super().parse_known_args(given, namespace)
        _, equals, path = given.pop(file).partition("=")
        if not equals and file == len(given):
            self.error("--config needs the path of a YAML file")
        path = path if equals else given.pop(file)
        try:
            return super().parse_known_args([*_flags_of(path), *given], namespace)
        except (OSError, ValueError) as cause:
            self.error(f"--config {path} can't be read: {cause}")


def _flags_of(path: str) -> Iterator[str]:
    """The options of a YAML file as flags. Raises ``OSError``, and ``ValueError`` for what is no mapping."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as cause:
        raise ValueError(str(cause)) from None
    if not isinstance(content, dict):
        raise ValueError(f"it must hold keys and values, got {type(content).__name__}")
    for key, value in content.items():
        flag = _dashes(f"--{key}")
        if isinstance(value, list):
            yield from (flag, *map(str, value))
        elif isinstance(value, dict):
            yield f"{flag}={json.dumps(value)}"
        else:
            yield f"{flag}={str(value).lower() if isinstance(value, bool) else value}"


def _dashes(argument: str) -> str:
    """A flag with dashes; what stands behind ``=`` stays."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value
