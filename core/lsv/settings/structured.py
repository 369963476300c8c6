"""``--structured-outputs-config``: one option of vLLM's that says several things about answers with a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import ConfigError

_NAME = "structured_outputs_config"
_ELSEWHERE = ("reasoning_parser",)
"""What has an option of its own, and means that one."""
_UNKEPT = ("disable_any_whitespace", "disable_additional_properties", "reasoning_parser_plugin")
_NEUTRAL = ("disable_fallback",)


def grammar_backend(settings: Mapping[str, Any]) -> str:
    """The back end that an operator names, by either option. Raises ``ConfigError``."""
    named = _read(settings).get("backend") or "auto"
    return str(settings["guided_decoding_backend"] if named == "auto" else named)


def enable_in_reasoning(settings: Mapping[str, Any]) -> bool:
    """Whether forms hold for thoughts, too. Raises ``ConfigError``."""
    return bool(settings.get("enable_in_reasoning") or _read(settings).get("enable_in_reasoning"))


def _read(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    given = settings.get(_NAME) or {}
    if not isinstance(given, Mapping):
        raise ConfigError("structured-outputs-config must be a JSON object", param=_NAME)
    for key, value in given.items():
        if key == "backend" and not isinstance(value, str | None):
            raise ConfigError(f"structured-outputs-config: backend must be a name, got {value!r:.100}", param=_NAME)
        if key == "enable_in_reasoning" and not isinstance(value, bool):
            raise ConfigError(
                f"structured-outputs-config: enable_in_reasoning must be true or false, got {value!r:.100}", param=_NAME
            )
        if key in ("backend", "enable_in_reasoning", *_NEUTRAL):
            continue
        if key in _ELSEWHERE and value not in (None, "", settings.get(key)):
            raise ConfigError(f"structured-outputs-config: give {key} by --{key.replace('_', '-')}", param=_NAME)
        if key in _UNKEPT and value:
            raise ConfigError(
                f"structured-outputs-config: {key} is not available: what a request asks for is kept exactly",
                param=_NAME,
            )
        if key not in (*_ELSEWHERE, *_UNKEPT):
            raise ConfigError(f"structured-outputs-config: unknown key {key!r:.100}", param=_NAME)
    return given
