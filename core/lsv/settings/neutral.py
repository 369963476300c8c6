"""Options that set nothing: known from other servers, accepted with a neutral value, refused by name with any other.

A row is one line: the name, the values that ask for nothing, and for the others why not and what to use instead.
Plugins declare rows of their own in ``lsv_settings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lsv.settings import Setting, Settings, SettingType
from lsv.settings.setting import is_neutral, not_neutral, spell_neutral

_TYPES: Mapping[type, SettingType] = {bool: "bool", int: "int", float: "float", str: "str"}


def neutral(
    name: str,
    *values: Any,
    instead: str,
    type: SettingType | None = None,
    env: Sequence[str] = (),
    platform: str = "",
) -> Setting:
    """A row. ``values`` are the neutral ones, the default first; none refuses whatever is given.

    The type is theirs unless ``type`` says it. Values of a row with a ``platform`` are refused only where that one is
    used: a variable may be meant for another program.
    """
    return Setting(
        name=name,
        type=type or _TYPES[values[0].__class__],
        default=values[0] if values else None,
        help=f"{_effect(values)}: {instead}",
        env=env,
        neutral=values,
        instead=instead,
        platform=platform,
    )


def _effect(values: Sequence[Any]) -> str:
    accepted = spell_neutral(values)
    if not accepted:
        return "refused"
    return "has no effect" if {True, False} <= set(values) else f"has no effect, and only {accepted} is accepted"


def problems(settings: Settings, platform: str) -> Iterator[str]:
    """What is refused on a platform, one sentence for each option; the other rows were judged when they were read."""
    for setting in settings.declared:
        if setting.platform == platform and not is_neutral(setting, settings[setting.name]):
            yield not_neutral(setting, settings[setting.name], settings.source(setting.name)).message


NEUTRAL = (
    neutral("task", "generate", "embed", instead="every model that can do both serves both"),
    neutral("trust_remote_code", False, True, instead="no checkpoint's code is ever run; plugins bring architectures"),
    neutral("preemption_mode", "recompute", instead="a request that loses its blocks is computed again, never swapped"),
    neutral("swap_space", 0.0, instead="requests that lose their blocks are recomputed, none is kept in host memory"),
    neutral("cpu_offload_gb", 0.0, instead="weights are never offloaded to the host; --quantization shrinks them"),
)
