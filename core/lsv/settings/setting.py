"""One option: its names, the type and bounds of its values, and what a value that breaks them is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from lsv.settings import values
from lsv_base.errors import ConfigError

SettingType = values.ValueType


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """An option. Its flag is ``--cpu-threads``, its key in a file ``cpu-threads``, its variable ``LSV_CPU_THREADS``."""

    name: str
    """In snake_case, with the plugin's prefix for a plugin's own (``"cpu.threads"``)."""
    type: SettingType = "str"
    default: Any = None
    help: str = ""
    env: Sequence[str] = ()
    """Further variables that set it (``VLLM_CPU_OMP_THREADS_BIND``)."""
    short: Sequence[str] = ()
    """Short flags (``-tp``)."""
    aliases: Sequence[str] = ()
    """Further names, for flags, keys and ``LSV_`` variables."""
    choices: Sequence[str] = ()
    """The values there are, where not any will do; capitals do not matter."""
    spellings: Mapping[str, str] = {}
    """Other names of values, in small letters (``"warn"`` of ``"warning"``)."""
    scope: Literal["engine", "serve", "all"] = "engine"
    """Which commands take it."""
    group: str = ""
    """Its heading in the help."""
    main: bool = False
    """Whether ``--help`` alone shows it; all are shown by ``--help=all``."""
    low: float | None = None
    """The least value, inclusive."""
    high: float | None = None
    """The greatest value, inclusive."""
    neutral: tuple[Any, ...] | None = None
    """The values that are accepted of an option that sets nothing, see ``lsv.settings.neutral``; None for others."""
    instead: str = ""
    """Why other values are refused, and what to use instead."""
    tolerant: bool = False
    """Whether other values only earn a warning, since answers are the same without."""
    platform: str = ""
    """The platform on which they are refused; empty is everywhere."""

    @property
    def flag(self) -> str:
        return f"--{dashed(self.name)}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Its names in files, and behind the dashes of a flag."""
        return tuple(dashed(name) for name in (self.name, *self.aliases))

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it, the first one given wins."""
        return (*(f"LSV_{key.replace('-', '_').upper()}" for key in self.keys), *self.env)


ANYTHING = "*"
"""Among neutral values: whatever is given asks for nothing."""


def dashed(name: str) -> str:
    """The spelling of a name in flags and files: dots and underscores become dashes."""
    return name.replace(".", "-").replace("_", "-")


def underscored(name: str) -> str:
    """The spelling of a name in Python: dots and dashes become underscores."""
    return dashed(name).replace("-", "_")


ARGUMENT = "argument "
"""The prefix of sources of values from Python. Messages spell the names of such values as in Python."""


def spell_name(setting: Setting, source: str) -> str:
    """The setting's name, spelled as in the source of its value."""
    return underscored(setting.name) if source.startswith(ARGUMENT) else dashed(setting.name)


def convert(setting: Setting, value: Any, source: str) -> Any:
    """A value as the setting's type and within its bounds; None, also in writing, is the default's.

    Raises ``ConfigError`` naming where the value came from.
    """
    if value is None or _says_none(setting, value):
        return None
    if ANYTHING in (setting.neutral or ()):
        return value
    try:
        converted = values.convert(setting.type, value)
    except ValueError as cause:
        raise _refusal(setting, source, str(cause), value) from None
    if isinstance(converted, str):
        converted = _spelled(setting, converted)
    for one in converted if isinstance(converted, tuple) else (converted,):
        _check_bounds(setting, one, source)
    if not setting.platform and not setting.tolerant and not is_neutral(setting, converted):
        raise not_neutral(setting, converted, source)
    return converted


def _says_none(setting: Setting, value: Any) -> bool:
    """``--quantization None``, as some servers' options spell that they are left out; a plain text may be that word."""
    if value not in ("None", "null") or setting.scope == "all":
        return False
    return setting.type != "str" or setting.default is None or setting.neutral is not None


def _spelled(setting: Setting, text: str) -> str:
    """The value that a text in other letters, or another name, stands for."""
    if text in setting.choices:
        return text
    small = text.lower()
    return small if small in setting.choices else setting.spellings.get(small, text)


def is_neutral(setting: Setting, value: Any) -> bool:
    """Whether a value asks for what lsv does anyway."""
    return setting.neutral is None or value is None or value in setting.neutral or ANYTHING in setting.neutral


def not_neutral(setting: Setting, value: Any, source: str) -> ConfigError:
    """The error for a value that is not neutral."""
    expected = spell_neutral(setting.neutral or ()) or "left out"
    return ConfigError(
        f"{source}: {spell_name(setting, source)} must be {expected}, got {value!r}: {setting.instead}",
        param=setting.name,
    )


def spell_neutral(values: Sequence[Any]) -> str:
    """Neutral values in words, as in "a or b", without empty values."""
    return " or ".join(spelled for one in values if (spelled := _spell(one)))


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in ((), {}) else ""


def _check_bounds(setting: Setting, value: Any, source: str) -> None:
    if setting.choices and value not in setting.choices:
        raise _refusal(setting, source, f"one of {', '.join(setting.choices)}", value)
    if setting.low is not None and not value >= setting.low:
        raise _refusal(setting, source, f"at least {setting.low:g}", value)
    if setting.high is not None and not value <= setting.high:
        raise _refusal(setting, source, f"at most {setting.high:g}", value)


def _refusal(setting: Setting, source: str, expected: str, value: Any) -> ConfigError:
    meaning = f" ({setting.help})" if setting.help else ""
    return ConfigError(
        f"{source}: {spell_name(setting, source)} must be {expected}, got {value!r}{meaning}", param=setting.name
    )


def grouped(group: str, scope: str, *settings: Setting) -> tuple[Setting, ...]:
    """Settings that the help shows under one heading, and that the commands of one scope take."""
    return tuple(msgspec.structs.replace(setting, group=group, scope=scope) for setting in settings)
