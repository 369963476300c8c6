"""Structural tags: free text in which some marks begin parts of a given form, in vLLM's two notations.

The older one has ``structures`` (begin, schema, end) and ``triggers``; the newer one, xgrammar's, a tree of formats.
Both are read as that tree. Source: https://xgrammar.mlc.ai/docs/structural_tag (read 2026-11).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from lsv_base.errors import BadRequest

_NEUTRAL = {"excludes": [], "any_order": False, "max_whitespace_cnt": None, "max_tokens": None, "max_chars": None}
"""Fields of formats, with the values that ask for nothing."""
MAX_NODES = 1024
"""Formats in one tree."""
MAX_TRIGGERS = 128
"""Texts that free text is searched for, all at once."""


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A part of an answer."""


class ConstString(_Format, frozen=True, tag="const_string"):
    value: str


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    json_schema: bool | dict[str, Any]
    style: Literal["json"] = "json"


class Regex(_Format, frozen=True, tag="regex"):
    pattern: str


class Grammar(_Format, frozen=True, tag="grammar"):
    """A grammar in GBNF or in the notation that the back end reads."""

    grammar: str


class AnyText(_Format, frozen=True, tag="any_text"):
    """Any text, up to the end of the tag that holds it, or of the answer."""


class Sequence(_Format, frozen=True, tag="sequence"):
    elements: tuple[Format, ...]


class Or(_Format, frozen=True, tag="or"):
    elements: tuple[Format, ...]


class Optional(_Format, frozen=True, tag="optional"):
    content: Format


class Star(_Format, frozen=True, tag="star"):
    content: Format


class Plus(_Format, frozen=True, tag="plus"):
    content: Format


class Repeat(_Format, frozen=True, tag="repeat"):
    min: int
    max: int
    """-1 for any number."""
    content: Format


class Tag(_Format, frozen=True, tag="tag"):
    begin: str
    content: Format
    end: str | tuple[str, ...]
    """One of these."""

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.end,) if isinstance(self.end, str) else self.end


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Any text; where a trigger comes, one of the tags goes on from it."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    """A tag comes first, without text before it."""
    stop_after_first: bool = False


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | Regex
    | Grammar
    | AnyText
    | Sequence
    | Or
    | Optional
    | Star
    | Plus
    | Repeat
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class _Newer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Format
    type: Literal["structural_tag"] = "structural_tag"


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    schema: bool | dict[str, Any]
    end: str


class _Older(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    structures: tuple[_Structure, ...]
    triggers: tuple[str, ...]
    type: Literal["structural_tag"] = "structural_tag"


def read_structural_tag(text: str) -> Format:
    """The tree that a structural tag is, in either notation. Raises ``BadRequest`` that names what is wrong."""
    try:
        given = msgspec.json.decode(text)
        if isinstance(given, dict) and ("structures" in given or "triggers" in given):
            older = msgspec.convert(given, _Older)
            tags = tuple(Tag(one.begin, JsonSchema(one.schema), one.end) for one in older.structures)
            found: Format = TriggeredTags(older.triggers, tags)
        else:
            found = msgspec.convert(_drop_neutral(given), _Newer).format
        _check(found)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as cause:
        raise _refuse(str(cause)) from None
    return found


def _drop_neutral(node: Any) -> Any:
    """A format as others write it out, without the fields that ask for nothing."""
    if isinstance(node, list):
        return [_drop_neutral(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        name: _drop_neutral(value) if name in ("format", "content", "elements", "tags") else value
        for name, value in node.items()
        if name not in _NEUTRAL or value != _NEUTRAL[name]
    }


def parts(node: Format) -> tuple[Format, ...]:
    """The formats that a format is made of."""
    if isinstance(node, Sequence | Or):
        return node.elements
    if isinstance(node, TriggeredTags | TagsWithSeparator):
        return node.tags
    return (node.content,) if isinstance(node, Tag | Optional | Star | Plus | Repeat) else ()


def _check(root: Format) -> None:
    """What types do not say."""
    nodes = [root]
    for count, node in enumerate(nodes):
        if count == MAX_NODES:
            raise _refuse(f"it has more than {MAX_NODES} formats")
        nodes += parts(node)
        if isinstance(node, Sequence | Or) and not node.elements:
            raise _refuse("elements must not be empty")
        if isinstance(node, Tag) and not node.ends:
            raise _refuse("end must not be an empty list")
        if isinstance(node, Repeat) and not 0 <= node.min <= (node.min if node.max == -1 else node.max) <= MAX_NODES:
            raise _refuse(f"repeat must have 0 <= min <= max <= {MAX_NODES}, or max -1; got {node.min} and {node.max}")
        if isinstance(node, TriggeredTags):
            _check_triggers(node)


def _check_triggers(node: TriggeredTags) -> None:
    if not node.triggers or "" in node.triggers or not node.tags:
        raise _refuse("triggers and the tags of triggers must not be empty")
    if len(node.triggers) > MAX_TRIGGERS:
        raise _refuse(f"there are at most {MAX_TRIGGERS} triggers, got {len(node.triggers)}")
    for tag in node.tags:
        found = [trigger for trigger in node.triggers if tag.begin.startswith(trigger)]
        if len(found) != 1:
            which = "no trigger" if not found else f"the triggers {' and '.join(map(repr, found))}"
            raise _refuse(f"each tag begins with one of the triggers, and {tag.begin[:64]!r} with {which}")


def _refuse(why: str) -> BadRequest:
    return BadRequest(f"structured_outputs: structural_tag can't be followed: {why}", param="structured_outputs")
