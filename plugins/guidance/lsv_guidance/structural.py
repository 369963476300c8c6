"""Structural tags in Lark, as llguidance writes it.

Free text is a lexeme without the marks that end it: up to a trigger or the end of a tag, a lazy one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsv.request import structural_tag as tags
from lsv.request.structural_tag import Format
from lsv_base.errors import BadRequest

_ANY = "/(?s:.*)/"
_ON_ONE_LINE = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}

Ends = tuple[str, ...] | None
"""What must follow a format: one of some texts; None for the end of the answer."""
_MORE: Ends = ()
"""Something else follows, which says itself how it begins."""


class StructuralTagWriter:
    """Writes one structural tag.

    ``schema`` says how a JSON schema stands in a grammar, ``grammar`` turns a grammar into Lark; ``special`` are the
    special tokens by their texts, which a model may write in place of these.
    """

    def __init__(
        self, schema: Callable[[dict[str, Any] | bool], str], grammar: Callable[[str], str], special: Mapping[str, int]
    ) -> None:
        self._schema = schema
        self._grammar = grammar
        self._special = special
        found = sorted(map(re.escape, filter(None, special)), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(found)})") if found else None
        self._rules: list[str] = []

    def write(self, root: Format) -> str:
        """Raises ``BadRequest`` for text that has no end where something must follow it."""
        start = self._format(root, None)
        return "\n".join((f"start: {start}", *self._rules))

    def _format(self, node: Format, ends: Ends) -> str:
        """An expression for a format and what must follow it."""
        if isinstance(node, tags.AnyText):
            return self._text(ends)
        if isinstance(node, tags.TriggeredTags):
            return self._triggered(node, ends)
        if isinstance(node, tags.Sequence):
            *first, last = node.elements
            return " ".join((*(self._format(one, _MORE) for one in first), self._format(last, ends)))
        return self._closed(node) if not ends else f"{self._closed(node)} {self._one_of(ends)}"

    def _closed(self, node: Format) -> str:
        """A format that has its own end."""
        if isinstance(node, tags.ConstString):
            return self._literal(node.value)
        if isinstance(node, tags.JsonSchema):
            return self._schema(node.json_schema)
        if isinstance(node, tags.Regex):
            return _regex(node.pattern)
        if isinstance(node, tags.Grammar):
            return self._rule(f"%lark {{\n{self._grammar(node.grammar)}\n}}")
        if isinstance(node, tags.Tag):
            return f"{self._literal(node.begin)} {self._format(node.content, node.ends)}"
        if isinstance(node, tags.Or):
            return _any_of(self._format(one, _MORE) for one in node.elements)
        if isinstance(node, tags.TagsWithSeparator):
            return self._separated(node)
        assert isinstance(node, tags.Optional | tags.Star | tags.Plus | tags.Repeat)
        return f"({self._format(node.content, _MORE)}){_times(node)}"

    def _separated(self, node: tags.TagsWithSeparator) -> str:
        one = self._rule(_any_of(map(self._closed, node.tags)))
        found = one if node.stop_after_first else f"{one} ({self._literal(node.separator)} {one})*"
        return found if node.at_least_one else f"({found})?"

    def _triggered(self, node: tags.TriggeredTags, ends: Ends) -> str:
        later = self._rule(_any_of(self._from_trigger(node, trigger) for trigger in node.triggers))
        text = self._text(ends, without=node.triggers)
        after = "" if not ends else self._one_of(ends)
        first = _any_of(map(self._closed, node.tags))
        if node.stop_after_first:
            return f"{first} {after}" if node.at_least_one else f"({later} {after} | {text})"
        return f"{first if node.at_least_one else ''} ({later})* {text}"

    def _from_trigger(self, node: tags.TriggeredTags, trigger: str) -> str:
        """Text up to a trigger, then the rest of one of its tags."""
        rests = _any_of(
            f"{self._literal(tag.begin.removeprefix(trigger))} {self._format(tag.content, tag.ends)}"
            for tag in node.tags
            if tag.begin.startswith(trigger)
        )
        until = self._rule(f"{_ANY} {_quoted(trigger)}", lazy=True)
        if trigger in self._special:
            until = f"({until} | {self._rule(_ANY)} <[{self._special[trigger]}]>)"
        return f"{until} {rests}"

    def _text(self, ends: Ends, without: Iterable[str] = ()) -> str:
        """Text up to its end."""
        if ends == _MORE or (ends is not None and "" in ends):
            raise BadRequest(
                "structured_outputs: this structural_tag can't be followed: any_text and triggered_tags stand at the "
                "end of the answer, or of a tag whose end is not empty",
                param="structured_outputs",
            )
        if ends is None:
            return self._rule(
                " & ".join((_ANY, *(f"~/(?s:.*){_escaped(mark)}(?s:.*)/" for mark in without))), text=True
            )
        marks = " | ".join(map(_quoted, ends))
        until = self._rule(f"{_ANY} ({marks})", lazy=True)
        special = [f"{self._rule(_ANY)} <[{self._special[end]}]>" for end in ends if end in self._special]
        return _any_of((until, *special))

    def _rule(self, body: str, *, lazy: bool = False, text: bool = False) -> str:
        name = f"{'T' if text else 'r'}{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _one_of(self, texts: Iterable[str]) -> str:
        return _any_of(map(self._literal, texts))

    def _literal(self, text: str) -> str:
        """A text, in which special tokens may stand for their texts."""
        pieces = self._specials.split(text) if self._specials is not None else [text]
        return " ".join(map(self._piece, filter(None, pieces))) or '""'

    def _piece(self, text: str) -> str:
        return f"({_quoted(text)} | <[{self._special[text]}]>)" if text in self._special else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def _regex(pattern: str) -> str:
    """A pattern between slashes, on one line."""
    shown = re.sub(r"\\?\n|\\.|/", lambda found: _ON_ONE_LINE.get(found[0], found[0]), pattern)
    return f"/(?:{shown})/"


def _any_of(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def _times(node: tags.Optional | tags.Star | tags.Plus | tags.Repeat) -> str:
    if isinstance(node, tags.Repeat):
        return f"{{{node.min},{'' if node.max == -1 else node.max}}}"
    return {tags.Optional: "?", tags.Star: "*", tags.Plus: "+"}[type(node)]
