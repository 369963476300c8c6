"""Writes patterns for llguidance: in Rust's syntax, for the whole text, with anchors only at its ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lsv_guidance.patterns import characters
from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.characters import Ranges
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.patterns.tree import Assertion, Chars, Concat, Node, Repeat, Union

MOST_CHARACTERS = 20_000
"""Limit on the characters of a pattern written from an automaton."""
MOST_NESTED = 200
"""Limit on the length of an excluded text, because llguidance limits the nesting of patterns."""
_MOST_STATES = 120
_ANYTHING = "(?s:.*)"


def write_search(pattern: Node) -> str | None:
    """A pattern of whole texts for one that may match anywhere; None if it has an anchor inside."""
    options = pattern.options if isinstance(pattern, Union) else (pattern,)
    found = []
    for option in options:
        parts = list(option.parts) if isinstance(option, Concat) else [option]
        starts = bool(parts) and parts[0] == Assertion("start")
        parts = parts[starts:]
        ends = bool(parts) and parts[-1] == Assertion("end")
        parts = parts[: len(parts) - ends]
        body = [_write(part) for part in parts]
        if any(part is None for part in body):
            return None
        found.append(f"{'' if starts else _ANYTHING}{''.join(map(str, body))}{'' if ends else _ANYTHING}")
    return f"^(?:{'|'.join(found)})$"


def _write(node: Node) -> str | None:
    if isinstance(node, Chars):
        return write_class(node.ranges)
    if isinstance(node, Repeat):
        body = _write(node.body)
        high = "" if node.high is None else node.high
        return None if body is None else f"(?:{body}){{{node.low},{high}}}"
    if isinstance(node, Concat | Union):
        parts = [_write(part) for part in (node.parts if isinstance(node, Concat) else node.options)]
        if any(part is None for part in parts):
            return None
        return "".join(map(str, parts)) if isinstance(node, Concat) else f"(?:{'|'.join(map(str, parts))})"
    return None


def write_class(ranges: Ranges) -> str:
    """One character of a set.

    llguidance 1.9 would let quote and backslash through as escapes for a set with all control characters but without
    these two, so such a set is written without U+0000.
    """
    if characters.contains(ranges, 0) and not all(characters.contains(ranges, ord(char)) for char in '"\\'):
        ranges = characters.join((max(low, 1), high) for low, high in ranges if high > 0)
    if not ranges:
        return r"[^\x{0}-\x{10FFFF}]"
    return f"[{''.join(map(_range, ranges))}]"


def _range(span: tuple[int, int]) -> str:
    low, high = map(_character, span)
    return low if low == high else f"{low}-{high}"


def _character(code: int) -> str:
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\x{{{code:X}}}"


def write_language(language: Language) -> str:
    """A pattern of whole texts, by eliminating the automaton's states. Raises ``TooComplex``."""
    count = len(language.rows)
    if count > _MOST_STATES:
        raise TooComplex(f"the excluded texts need more than {_MOST_STATES} states")
    classes = [write_class(language.characters_of(kind)) for kind in range(max(language.kinds) + 1)]
    begin, end = count, count + 1
    ways: dict[tuple[int, int], str] = {(begin, 0): ""}
    ways |= {(state, end): "" for state in language.accepting}
    for state, row in enumerate(language.rows):
        for target in set(row):
            ways[state, target] = _join_classes(
                language, classes, [kind for kind, one in enumerate(row) if one == target]
            )
    waiting = set(range(count))
    while waiting:
        state = min(waiting, key=lambda one: (_degree(ways, one), one))
        waiting.discard(state)
        _take_out(ways, state)
    if (begin, end) not in ways:
        raise TooComplex("no text matches it")
    return f"^(?:{ways[begin, end]})$"


_PLAIN = r"\x{0}-\x{1F}\x{7F}"
"""Control characters."""


def write_other_texts(texts: Iterable[str]) -> str:
    """A pattern of all texts without control characters, except these texts.

    Raises ``TooComplex`` for a long text.
    """
    root: dict[str, Any] = {}
    for text in texts:
        if len(text) > MOST_NESTED:
            raise TooComplex(f"names of more than {MOST_NESTED} characters need additionalProperties: false")
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"^{_write_others(root)}$"


def _write_others(node: dict[str, Any]) -> str:
    following = [char for char in node if char]
    turns = f"[^{''.join(_character(ord(char)) for char in following)}{_PLAIN}][^{_PLAIN}]*"
    stays = [f"{_character(ord(char))}{_write_others(node[char])}" for char in following]
    return f"(?:{'|'.join([turns, *stays, *([] if '' in node else [''])])})"


def _join_classes(language: Language, classes: list[str], kinds: list[int]) -> str:
    if len(kinds) == 1:
        return classes[kinds[0]]
    return write_class(characters.join(part for kind in kinds for part in language.characters_of(kind)))


def _degree(ways: Iterable[tuple[int, int]], state: int) -> int:
    entering = sum(target == state != source for source, target in ways)
    leaving = sum(source == state != target for source, target in ways)
    return entering * leaving


def _take_out(ways: dict[tuple[int, int], str], state: int) -> None:
    loop = ways.pop((state, state), None)
    middle = "" if loop is None else f"(?:{loop})*"
    entering = [(source, text) for (source, target), text in ways.items() if target == state]
    leaving = [(target, text) for (source, target), text in ways.items() if source == state]
    for key in [key for key in ways if state in key]:
        del ways[key]
    for source, before in entering:
        for target, after in leaving:
            found = f"{_grouped(before)}{middle}{_grouped(after)}"
            known = ways.get((source, target))
            ways[source, target] = found if known is None else f"{known}|{found}"
            if len(ways[source, target]) > MOST_CHARACTERS:
                raise TooComplex(f"the excluded texts need a pattern of more than {MOST_CHARACTERS} characters")


def _grouped(text: str) -> str:
    return f"(?:{text})" if "|" in text else text
