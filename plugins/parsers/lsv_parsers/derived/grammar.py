"""The grammar of calls of a derived shape, in Lark as llguidance reads it (llguidance, docs/syntax.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsv.text.answer_parser import Spelling
from lsv_parsers.derived.atoms import ID, INDEX
from lsv_parsers.derived.shape import CallShape, JsonArguments, WrittenArguments, opening
from lsv_parsers.tools.value_kinds import kind_of, resolve

_OPEN = {ID: "/[A-Za-z0-9_-]{1,64}/", INDEX: "/[0-9]{1,4}/"}
_HOLES = re.compile("([\ue000\ue001])")
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_ANYTHING = r"/(.|\n)*/"
_NOTES = frozenset({"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"})
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
"""Allowed keywords of a schema whose properties are written one by one."""
_TEXT = frozenset({"type", "enum", "const", "anyOf", "$ref", "nullable"})
"""Allowed keywords of a schema for a text without quotes."""
_MAX_DEPTH = 32
"""Limit on nested references and choices."""
_WORDS = {"boolean": '("True" | "False")', "null": '"None"'}
"""Values that Python writes differently from JSON."""


class _NotWritable(Exception):
    """The rules of this form can't enforce the schema."""


@dataclass(frozen=True)
class ShapeGrammar:
    """See :class:`lsv.text.answer_parser.CallGrammar`."""

    shape: CallShape

    @property
    def open(self) -> str:
        mark = opening(self.shape)
        first, _, more = mark.partition("\n")
        return first if first.endswith(">") and more.startswith("<") else mark

    @property
    def repeats(self) -> bool:
        return self.shape.repeats and not self._chained

    @property
    def _chained(self) -> bool:
        """Whether two calls are separated by more than white space and the mark of the next call."""
        shape = self.shape
        return bool(shape.open or shape.close or not self.open or shape.between.strip())

    def rules(self, functions: Mapping[str, Mapping[str, Any]], spelling: Spelling, *, many: bool) -> list[str] | None:
        shape = self.shape
        if isinstance(shape.arguments, JsonArguments) and shape.arguments.encoded:
            return None
        writer = _Writer(shape, spelling)
        try:
            for index, (name, schema) in enumerate(functions.items()):
                writer.add_function(f"f{index}", name, schema)
        except _NotWritable:
            return None
        start = f"{shape.open}{shape.begin}".lstrip()[len(self.open) :].lstrip()
        again = f"{shape.between}{shape.begin}" if many and shape.repeats and self._chained else ""
        more = f"({writer.literal(again)} one)*" if again else ""
        calls = " ".join(filter(None, (writer.literal(start), "one", more, writer.literal(shape.close))))
        one = " | ".join(f"f{index}" for index in range(len(functions)))
        return [f"calls: {calls}", f"one: {one}", *writer.lines]


class _Writer:
    """Writes the rules of functions."""

    def __init__(self, shape: CallShape, spelling: Spelling) -> None:
        self.lines: list[str] = []
        self._shape = shape
        self._spelling = spelling

    def literal(self, text: str) -> str:
        """A text in which ids and numbers are variable."""
        pieces: list[str] = []
        for part in _HOLES.split(text):
            pieces.extend([_OPEN[part]] if part in _OPEN else self._spelling.text(part))
        return " ".join(pieces)

    def add_function(self, rule: str, name: str, schema: Mapping[str, Any]) -> None:
        shape, called = self._shape, self._spelling.plain(name)
        if isinstance(shape.arguments, JsonArguments):
            head, tail = called, self._spelling.json(schema)
        else:
            head, tail = called, self._members(rule, shape.arguments, schema)
        first, second = (head, tail) if shape.name_first else (tail, head)
        self._rule(rule, first, self.literal(shape.head_end), second, self.literal(shape.end))

    def _rule(self, name: str, *parts: str) -> None:
        self.lines.append(f"{name}: {' '.join(filter(None, parts))}")

    def _members(self, rule: str, form: WrittenArguments, schema: Mapping[str, Any]) -> str:
        """The rule of all arguments: a rule for each, which may be missing unless required."""
        if schema.keys() - _OBJECT - _NOTES:
            raise _NotWritable
        properties = schema.get("properties")
        if properties is None and schema.get("additionalProperties") is not False:
            return self._any_members(rule, form)
        required = schema.get("required") or ()
        if not isinstance(properties, Mapping) or not properties.keys() >= set(required):
            raise _NotWritable
        names = [self._member(f"{rule}_{at}", form, schema, key) for at, key in enumerate(properties)]
        optional = [key not in required for key in properties]
        if not form.between:
            return " ".join(f"{name}?" if may else name for name, may in zip(names, optional, strict=True))
        return self._joined(rule, self.literal(form.between), names, optional)

    def _joined(self, rule: str, between: str, names: Sequence[str], optional: Sequence[bool]) -> str:
        """Members with a separator: rules for members before and after the first one has been written."""
        first, later = "", ""
        for at in reversed(range(len(names))):
            follow = f"{rule}_later{at + 1}" if at + 1 < len(names) else ""
            begin = f"{rule}_first{at + 1}" if at + 1 < len(names) else ""
            later = f"({between} {names[at]}){'?' if optional[at] else ''} {follow}"
            first = f"{names[at]} {follow}" + (f" | {begin}" if optional[at] and begin else "")
            self._rule(f"{rule}_later{at}", later)
            self._rule(f"{rule}_first{at}", f"({first}){'?' if optional[at] and not begin else ''}")
        return f"{rule}_first0" if names else ""

    def _member(self, rule: str, form: WrittenArguments, schema: Mapping[str, Any], key: str) -> str:
        part = schema["properties"][key]
        part = part if isinstance(part, Mapping) else {}
        begin = (self.literal(form.key_begin), self._spelling.plain(key))
        if kind_of(schema, key) == "any" or _is_literal(form):
            value = self._json_value(form, {**part, **_definitions(schema)})
            self._rule(rule, *begin, self.literal(form.value_begin), value, self.literal(form.value_end))
        else:
            text = self._text_value(rule, form, _choices(part, schema))
            self._rule(rule, *begin, self.literal(form.text_begin), text)
        return rule

    def _any_members(self, rule: str, form: WrittenArguments) -> str:
        key = (self.literal(form.key_begin), _KEY)
        if _is_literal(form):
            value = f"{self.literal(form.value_begin)} {self._spelling.json({})}"
        else:
            value = f"{self.literal(form.text_begin)} {self._text_value(rule, form, None)}"
        self._rule(f"{rule}_any", *key, value)
        more = f"({self.literal(form.between)} {rule}_any)*" if form.between else f"{rule}_any*"
        return f"({rule}_any {more})?"

    def _json_value(self, form: WrittenArguments, part: Mapping[str, Any]) -> str:
        word = _WORDS.get(str(part.get("type"))) if _is_literal(form) else None
        return word if word and not part.keys() & {"enum", "const"} else self._spelling.json(part)

    def _text_value(self, rule: str, form: WrittenArguments, choices: Sequence[str] | None) -> str:
        """A text without quotes, and its end."""
        end = self._spelling.text(form.quote + form.value_end)
        if choices is not None:
            return f"({' | '.join(map(self._spelling.plain, choices))}) {' '.join(end)}"
        special = next((at for at, piece in enumerate(end) if piece.startswith("<[")), None)
        if special is not None:  # only white space precedes it, which is not part of the text
            return " ".join((_ANYTHING, *end[special:]))
        self._rule(f"{rule}_text[lazy]", _ANYTHING, end[0])
        return " ".join((f"{rule}_text", *end[1:]))


def _is_literal(form: WrittenArguments) -> bool:
    """Whether texts are quoted as in JSON or Python."""
    return form.quote in ("'", '"')


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _choices(part: Any, root: Mapping[str, Any], depth: int = 0) -> list[str] | None:
    """The texts that a schema allows; None if it allows any. Raises ``_NotWritable`` for other restrictions."""
    if not isinstance(part, Mapping) or depth > _MAX_DEPTH or part.keys() - _TEXT - _NOTES:
        raise _NotWritable
    bounds = [_choices(resolve(part["$ref"], root), root, depth + 1)] if "$ref" in part else []
    branches = [_choices(branch, root, depth + 1) for branch in part.get("anyOf", ())]
    if any(branch is None for branch in branches):
        branches = []
    bounds += [[text for branch in branches for text in branch or ()]] if branches else []
    if "const" in part or "enum" in part:
        values = [part["const"]] if "const" in part else part["enum"]
        bounds.append(["null" if one is None else str(one) for one in values])
    found = [bound for bound in bounds if bound is not None]
    return [text for text in found[0] if all(text in bound for bound in found)] if found else None
