"""The command line: flags in every spelling users know, to values by setting, and what is left over.

``--max-model-len 5``, ``--max_model_len=5``, unambiguous prefixes (``--gpu-memory-util``), short forms (``-tp 2``,
``-tp=2``, ``-tp2``), booleans as ``--x``, ``--no-x``, ``--x=false`` and ``--x false``, lists repeated or with several
values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lsv.settings import Declared, Given, Setting, dashed
from lsv.settings.spelling import misspelt
from lsv.settings.values import is_boolean_word
from lsv_base.errors import ConfigError

_ATTACHED = re.compile(r"(-[A-Za-z]+)(\d+)")
_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-inf")


class CommandLine(NamedTuple):
    """What a command line says."""

    given: dict[str, Given]
    positional: list[str]


class _Flag(NamedTuple):
    setting: Setting
    spelling: str
    negated: bool = False


def is_flag(token: str) -> bool:
    return token.startswith("-") and len(token) > 1 and not _NUMBER.fullmatch(token)


def parse(arguments: Sequence[str], declared: Declared) -> CommandLine:
    """Read a command line; raises ``ConfigError`` for unknown, ambiguous or incomplete flags."""
    given: dict[str, Given] = {}
    positional: list[str] = []
    tokens = list(arguments)
    while tokens:
        token = tokens.pop(0)
        if token == "--":
            positional += tokens
            break
        if not is_flag(token):
            positional.append(token)
            continue
        spelling, equals, text = _split(token, declared)
        flag = _find(spelling, declared)
        value = _take_value(flag, text if equals else None, tokens)
        name = flag.setting.name
        if flag.setting.type == "list" and name in given:
            value = [*given[name].value, *value]
        given[name] = Given(value, f"flag {flag.spelling}")
    return CommandLine(given, positional)


def _split(token: str, declared: Declared) -> tuple[str, str, str]:
    """A flag, ``=`` where a value is attached, and the value; the number of ``-O3`` is one."""
    attached = _ATTACHED.fullmatch(token)
    if attached is not None and attached[1] in declared.by_short:
        return attached[1], "=", attached[2]
    return token.partition("=")


def _take_value(flag: _Flag, attached: str | None, tokens: list[str]) -> Any:
    """The flag's value: attached by ``=``, or from the tokens that follow, which it removes."""
    if flag.setting.type == "bool":
        return _take_boolean(flag, attached, tokens)
    if attached is not None:
        return [attached] if flag.setting.type == "list" else attached
    if not tokens or is_flag(tokens[0]):
        raise ConfigError(f"{flag.spelling} needs a value: {flag.setting.help}", param=flag.setting.name)
    if flag.setting.type != "list":
        return tokens.pop(0)
    values = []
    while tokens and not is_flag(tokens[0]):
        values.append(tokens.pop(0))
    return values


def _take_boolean(flag: _Flag, attached: str | None, tokens: list[str]) -> Any:
    if flag.negated:
        if attached is not None:
            raise ConfigError(f"{flag.spelling} takes no value; write {flag.setting.flag}={attached}")
        return False
    if attached is not None:
        return attached
    return tokens.pop(0) if tokens and is_boolean_word(tokens[0]) else True


def _find(spelling: str, declared: Declared) -> _Flag:
    if spelling in declared.by_short:
        return _Flag(declared.by_short[spelling], spelling)
    known = {key: _Flag(setting, f"--{key}") for key, setting in declared.by_key.items()}
    for key, setting in declared.by_key.items():
        if setting.type == "bool":
            known.setdefault(f"no-{key}", _Flag(setting, f"--no-{key}", negated=True))
    key = dashed(spelling.lstrip("-"))
    if spelling.startswith("--"):
        if key in known:
            return known[key]
        found = [flag for name, flag in known.items() if name.startswith(key)]
        # what sets nothing is cut short only where that can't mean anything else
        found = [flag for flag in found if flag.setting.neutral is None] or found
        if len({(flag.setting.name, flag.negated) for flag in found}) == 1:
            _refuse_slip(spelling, found[0], key, known)
            return found[0]
        if found:
            raise ConfigError(f"{spelling} could be {' or '.join(sorted(flag.spelling for flag in found))}", param=key)
    guess = misspelt(key, known)
    hint = f"; did you mean --{guess}?" if guess else "; --help lists all options"
    raise ConfigError(f"unknown option {spelling}{hint}", param=key)


def _refuse_slip(spelling: str, found: _Flag, key: str, known: Mapping[str, _Flag]) -> None:
    """Raises ``ConfigError`` for an abbreviation of one flag that may be a typo of another one: ``--prot``."""
    others = [name for name, flag in known.items() if flag.setting.name != found.setting.name]
    guess = misspelt(key, others)
    if guess is not None:
        raise ConfigError(
            f"unknown option {spelling}; did you mean --{guess}, or {found.spelling}? Write it in full", param=key
        )
