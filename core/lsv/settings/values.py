"""Values of options: from text, or from a file's or caller's own type, to the type an option has."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

ValueType = Literal["str", "int", "float", "bool", "json", "list", "counts"]

TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_MULTIPLES = {"k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20, "g": 1000**3, "G": 1 << 30}


def is_boolean_word(text: str) -> bool:
    return text.lower() in TRUE + FALSE


def convert(kind: ValueType, value: Any) -> Any:
    """``value`` as ``kind``; a list becomes a tuple of strings. Raises ``ValueError`` saying what is expected."""
    return _CONVERSIONS[kind](value)


def _to_bool(value: Any) -> bool:
    if not is_boolean_word(str(value)):
        raise ValueError(f"one of {'/'.join(TRUE + FALSE)}")
    return str(value).lower() in TRUE


def _to_int(value: Any) -> int:
    """Whole numbers; ``8k`` is 8000 and ``8K`` is 8192, and so on for m, M, g and G."""
    text = str(value)
    try:
        if text[-1:] not in _MULTIPLES:
            return int(text)
        number = float(text[:-1]) * _MULTIPLES[text[-1]]
        if number.is_integer():
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError("a whole number (or one like 8k = 8000, 8K = 8192)")


def _to_float(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError("a number") from None


def _to_str(value: Any) -> str:
    """Text, also of a path, and the name of a thing of torch's (``torch.bfloat16``, ``torch.device("cpu")``)."""
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("text")
    return str(value)


def _to_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as cause:
        raise ValueError(f"JSON ({cause})") from None


def _to_list(value: Any) -> tuple[str, ...]:
    """Items of a list, or of text such as ``a,b`` or ``["a", "b"]``."""
    if not isinstance(value, list | tuple):
        return _items(_to_str(value))
    return tuple(item for part in value for item in _items(_to_item(part)))


def _to_counts(value: Any) -> dict[str, int]:
    """Whole numbers by name, from text such as ``image=2,audio=1`` or ``{"image": 2}``."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        value = dict(item.partition("=")[::2] for item in _items(value))
    found = _to_json(value)
    if not isinstance(found, dict) or not all(str(count).isdecimal() for count in found.values()):
        raise ValueError("whole numbers by name, such as image=2,audio=1")
    return {str(name): int(count) for name, count in found.items()}


def _items(text: str) -> tuple[str, ...]:
    """The items of a text, one of which may be a JSON object."""
    if text.startswith("{"):
        return (text,)
    parts = _to_json(text) if text.startswith("[") else text.split(",")
    return tuple(stripped for part in parts if (stripped := _to_item(part).strip()))


def _to_item(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else _to_str(value)


_CONVERSIONS = {
    "str": _to_str,
    "int": _to_int,
    "float": _to_float,
    "bool": _to_bool,
    "json": _to_json,
    "list": _to_list,
    "counts": _to_counts,
}
