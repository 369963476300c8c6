"""Converts messages where chat templates expect another form than OpenAI's API, for every frontend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

_TRIES = 4
"""How many cut points to try when completing truncated arguments."""

_CLOSERS = {"{": "}", "[": "]"}


def template_role(role: str) -> str:
    """``developer`` is OpenAI's newer word for ``system``; templates know the older one."""
    return "system" if role == "developer" else role


class Turn(NamedTuple):
    """The fields of a message that decide its order."""

    calls: Sequence[str] = ()
    """The ids of its calls, empty for calls without ids."""
    answered: str | None = None
    """The id of the call that it answers, empty for a result without an id; None for other messages."""


def order_results(turns: Sequence[Turn]) -> list[int]:
    """The places of messages in the order for templates: results in the order of their calls.

    Templates match results to calls by order. Clients match them by id and may send results in any order. A result
    whose call is missing, as in a trimmed history, keeps its place.
    """
    order = list(range(len(turns)))
    first = 0
    while first < len(turns):
        end = first + 1
        while turns[first].calls and end < len(turns) and turns[end].answered is not None:
            end += 1
        number = {id: place for place, id in enumerate(turns[first].calls)}
        known = [place for place in range(first + 1, end) if turns[place].answered in number]
        ranked = sorted(known, key=lambda place: number[turns[place].answered or ""])
        for slot, place in zip(known, ranked, strict=True):
            order[slot] = place
        first = end
    return order


def read_arguments(given: Any) -> dict[str, Any]:
    """The arguments of an earlier call as an object. Clients send back the JSON text that they received.

    Null and an empty text mean no arguments. The text of a truncated call is completed: the object keeps all complete
    values and the beginning of a truncated string. Any other text or value becomes the single argument ``arguments``.
    """
    if isinstance(given, dict):
        return given
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    value = _parse(given) if isinstance(given, str) else given
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def write_arguments(given: Any) -> str:
    """The arguments of an earlier call as JSON text: as the client sent it, ``{}`` for none."""
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        return "{}"
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _parse(text: str) -> Any:
    """The value of a JSON text, complete or truncated; the text itself if it is neither."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        pass
    for tried in (text, *_completed(text)):
        try:
            value = json.loads(tried, strict=False)  # models write raw line breaks in strings
            json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates, which no prompt can contain
        except (ValueError, RecursionError):
            continue
        return value
    return text


def _completed(text: str) -> Iterator[str]:
    """Ways to complete a truncated JSON object: at its end, and after each of the last values before it."""
    if not text.lstrip().startswith("{"):
        return
    opened: list[str] = []
    whole: list[tuple[int, str]] = []
    in_text = escaped = False
    for place, letter in enumerate(text):
        if in_text:
            in_text, escaped = letter != '"' or escaped, letter == "\\" and not escaped
        elif letter == '"':
            in_text = True
        elif letter in _CLOSERS:
            opened.append(_CLOSERS[letter])
            whole.append((place + 1, "".join(reversed(opened))))
        elif opened and letter == opened[-1]:
            opened.pop()
        elif letter == ",":
            whole.append((place, "".join(reversed(opened))))
    if not opened:
        return
    end = "".join(reversed(opened))
    yield (text[:-1] if escaped else text) + ('"' if in_text else "") + end
    for place, closers in whole[: -_TRIES - 1 : -1]:
        yield text[:place] + closers
