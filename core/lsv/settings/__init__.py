"""Options, declared once: the flag, the config-file key and the variables all come from one ``Setting``.

Only this package reads settings from ``os.environ``. ``lsv_base.processes.environment`` copies some
for child processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lsv.config import OptionValue
from lsv.settings import foreign
from lsv.settings.secrecy import is_secret as is_secret
from lsv.settings.setting import Setting as Setting
from lsv.settings.setting import SettingType as SettingType
from lsv.settings.setting import convert as convert
from lsv.settings.setting import dashed as dashed
from lsv.settings.setting import underscored as underscored
from lsv.settings.spelling import suggest
from lsv.settings.values import FALSE
from lsv_base.errors import ConfigError


class Given(NamedTuple):
    """A value as it was given, and where."""

    value: Any
    source: str


class Declared:
    """The settings a command takes, by every name they go by."""

    def __init__(self, settings: Iterable[Setting] = ()) -> None:
        self.by_name: dict[str, Setting] = {}
        self.by_key: dict[str, Setting] = {}
        self.by_short: dict[str, Setting] = {}
        for setting in settings:
            self.add(setting)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.by_name.values())

    def add(self, setting: Setting) -> None:
        """Raises ``ConfigError`` where another setting goes by one of its names."""
        for index, names in ((self.by_key, setting.keys), (self.by_short, setting.short)):
            for name in names:
                if name in index:
                    raise ConfigError(f"settings {index[name].name} and {setting.name} both claim the name {name}")
        self.by_name[setting.name] = setting
        self.by_key.update(dict.fromkeys(setting.keys, setting))
        self.by_short.update(dict.fromkeys(setting.short, setting))


class Settings(Mapping[str, Any]):
    """The values in force, and where each came from. Immutable."""

    def __init__(self, declared: Declared, given: Mapping[str, Given], positional: Sequence[str] = ()) -> None:
        self.declared = declared
        self.positional = tuple(positional)
        self._given = dict(given)

    def __getitem__(self, name: str) -> Any:
        setting = self.declared.by_name[name]
        return self._given[name].value if name in self._given else setting.default

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared.by_name)

    def __len__(self) -> int:
        return len(self.declared.by_name)

    def replaced(self, name: str, value: Any, source: str) -> Settings:
        """The same with another value for one setting."""
        return Settings(self.declared, {**self._given, name: Given(value, source)}, self.positional)

    def source(self, name: str) -> str:
        """Where a value came from: ``"flag --port"``, ``"LSV_PORT"``, ``"file x.yaml"``, ``"default"`` …"""
        return self._given[name].source if name in self._given else "default"

    def hand_on(self, name: str) -> None:
        """Let the processes that this one starts have a value too, as the setting's variable; None is nothing."""
        setting = self.declared.by_name[name]
        if self[name] is not None and self.source(name) not in ("default", *setting.variables):
            export({setting.variables[0]: str(self[name])}, replace=True)

    def plugin_options(self) -> dict[str, OptionValue]:
        """What plugins take in the engine and its workers, by full name (``"cpu.threads"``)."""
        return {name: self[name] for name, setting in self.declared.by_name.items()
                if "." in name and setting.scope != "serve" and setting.neutral is None}  # fmt: skip


def gather(
    declared: Declared,
    given: Mapping[str, Given],
    *,
    file: str | None = None,
    positional: Sequence[str] = (),
    known: Iterable[Setting] | None = (),
) -> Settings:
    """Values by precedence: ``given`` (flags) > ``LSV_`` variables > alias variables > ``file`` > defaults.

    ``known`` are settings of other commands, which a file may hold, too; None allows any key. Raises ``ConfigError``.
    """
    found = dict(given)
    for layer in (_read_environment(declared), _read_file(file, declared, known) if file else {}):
        for name, one in layer.items():
            found.setdefault(name, one)
    values_in_force = {
        name: Given(value, source)
        for name, (given_value, source) in found.items()
        if (value := convert(declared.by_name[name], given_value, source)) is not None
    }
    return Settings(declared, values_in_force, positional)


def export(variables: Mapping[str, str], *, replace: bool = False) -> None:
    """Hand libraries that read the environment their variables; what the user has set there stays.

    ``replace`` is for values of settings that have the variable as an alias: a flag wins over it.
    """
    for name, value in variables.items():
        if replace or name not in os.environ:
            os.environ[name] = value


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """All variables, and ``more``: for a child that is as trusted as this process."""
    return {**os.environ, **more}


def own_environment() -> dict[str, str]:
    """The variables of lsv's own, and of vLLM's, for workers on other machines: without secrets, because whatever
    starts them logs and shows their environment, and without the address of this machine.
    """
    own = ((name, value) for name, value in os.environ.items() if name.startswith(("LSV_", "VLLM_")))
    return {name: value for name, value in own if not is_secret(name) and not name.endswith("_HOST_IP")}


def variables(settings: Iterable[Setting]) -> dict[str, str]:
    """The variables that are set now, of all that set one of ``settings``."""
    names = (variable for setting in settings for variable in setting.variables)
    return {name: os.environ[name] for name in names if name in os.environ}


def unknown_variables(known: Iterable[Setting]) -> list[str]:
    """A warning for each variable that is meant for lsv or for vLLM and sets nothing."""
    names = {variable for setting in known for variable in setting.variables}
    warnings = []
    for variable, value in sorted(os.environ.items()):
        if variable in names or not value or foreign.is_service_link(variable, value):
            continue
        if variable.startswith("LSV_"):
            warnings.append(f"the variable {variable} is unknown and ignored{suggest(variable, names)}")
        elif variable.startswith(foreign.PREFIX) and variable not in foreign.GRANTED and value.lower() not in FALSE:
            why = foreign.WITHOUT_EFFECT.get(variable, "it is not read here")
            warnings.append(f"the variable {variable} has no effect: {why}")
    return warnings


def _read_environment(declared: Declared) -> dict[str, Given]:
    """What variables set. An empty one counts as absent, except for a list, which it empties."""
    found: dict[str, Given] = {}
    for setting in declared:
        for variable in setting.variables:
            value = os.environ.get(variable)
            if value and foreign.is_service_link(variable, value):
                continue
            if value or (value is not None and setting.type == "list"):
                found.setdefault(setting.name, Given(value, variable))
    return found


def _read_file(file: str, declared: Declared, known: Iterable[Setting] | None) -> dict[str, Given]:
    """The settings in a YAML file. Raises ``ConfigError`` for a file that can't be read and for unknown keys."""
    import yaml

    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise ConfigError(f"config file {file} can't be read: {cause}", param="config") from cause
    if not isinstance(content, dict | None):
        raise ConfigError(f"config file {file} must hold keys and values, got {type(content).__name__}", param="config")
    others = {key for setting in known or () for key in setting.keys}
    found: dict[str, Given] = {}
    for key, value in _flatten(content or {}):
        setting = declared.by_key.get(key)
        if setting is None and known is not None and key not in others:
            hint = suggest(key, [*declared.by_key, *others])
            raise ConfigError(f"config file {file} has an unknown key {key!r}{hint}", param="config")
        if setting is not None:
            found[setting.name] = Given(value, f"file {file}")
    return found


def _flatten(content: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """(dashed key, value); ``plugins: {cpu: {threads: 2}}`` is ``cpu-threads: 2``."""
    for key, value in content.items():
        if key == "plugins" and isinstance(value, dict):
            for plugin, options in value.items():
                if not isinstance(options, dict):
                    raise ConfigError(
                        f"options of plugin {plugin} must be keys and values, got {options!r}", param="config"
                    )
                yield from ((dashed(f"{plugin}.{option}"), value) for option, value in options.items())
        else:
            yield dashed(str(key)), value
