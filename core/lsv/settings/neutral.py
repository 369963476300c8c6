"""Options that set nothing: known from other servers, accepted with a neutral value, refused by name with any other.

A row is the name, the values that ask for nothing, and for the others why not and what to use instead; where answers
are the same without what they ask for, others only earn a warning. Rows of core are in ``lsv.settings.elsewhere``,
plugins declare rows of their own in ``lsv_settings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lsv.settings import Setting, Settings, SettingType
from lsv.settings.setting import ANYTHING, dashed, is_neutral, not_neutral, spell_neutral

_TYPES: Mapping[type, SettingType] = {
    bool: "bool", int: "int", float: "float", str: "str", tuple: "list", dict: "json",
}  # fmt: skip


def neutral(
    name: str,
    *values: Any,
    instead: str,
    type: SettingType | None = None,
    env: Sequence[str] = (),
    aliases: Sequence[str] = (),
    short: Sequence[str] = (),
    platform: str = "",
    tolerant: bool = False,
) -> Setting:
    """A row. ``values`` are the neutral ones, the default first; none refuses whatever is given, ``ANYTHING`` nothing.

    The type is theirs unless ``type`` says it. Values of a row with a ``platform`` are refused only where that one is
    used: a variable may be meant for another program. Others of a ``tolerant`` row are warned of and dropped, since
    answers are the same without.
    """
    return Setting(
        name=name,
        type=type or _TYPES[values[0].__class__],
        default=values[0] if values and ANYTHING not in values else None,
        help=f"{_effect(values, tolerant)}: {instead}",
        env=env,
        aliases=aliases,
        short=short,
        neutral=values,
        instead=instead,
        platform=platform,
        tolerant=tolerant,
    )


def _effect(values: Sequence[Any], tolerant: bool) -> str:
    if tolerant or ANYTHING in values or {True, False} <= {one for one in values if isinstance(one, bool)}:
        return "has no effect"
    accepted = spell_neutral(values)
    return f"has no effect, and only {accepted} is accepted" if accepted else "refused"


def problems(settings: Settings, platform: str) -> Iterator[str]:
    """What is refused on a platform, one sentence for each option; the other rows were judged when they were read."""
    for setting in settings.declared:
        if setting.platform == platform and not setting.tolerant and not is_neutral(setting, settings[setting.name]):
            yield not_neutral(setting, settings[setting.name], settings.source(setting.name)).message


def dropped(settings: Settings, platform: str = "") -> Iterator[Setting]:
    """What was asked for, is not done and changes no answer: of core's rows, or of those of a platform."""
    for setting in settings.declared:
        if setting.tolerant and setting.platform == platform and not is_neutral(setting, settings[setting.name]):
            yield setting


def warnings(settings: Settings) -> Iterator[str]:
    """A sentence for each option that was dropped on every platform."""
    for setting in dropped(settings):
        yield f"{settings.source(setting.name)}: {dashed(setting.name)} has no effect: {setting.instead}"
