"""Grammars of answers in which a model may call tools, and whose calls have the arguments that their schemas ask for.

Source of the notation: llguidance, docs/syntax.md. Text is free until what begins a call has come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsv.offers import CallForm
from lsv.text.tokenizer import Tokenizer

_JSON = {"whitespace_flexible": True, "whitespace_pattern": r"(\x20|\r?\n[\x20\x09]{0,32})"}
"""The white space of JSON is bounded, so that no model spends an answer on it."""

Schemas = Mapping[str, Mapping[str, Any]]
"""The arguments of functions, by name."""


def either_grammar(
    form: CallForm, functions: Schemas, tokenizer: Tokenizer, answer: Mapping[str, Any], whitespace: str | None = None
) -> str:
    """The grammar, in Lark, of answers that are calls, or else JSON of the schema ``answer``: nothing beside these.

    ``whitespace`` is a regular expression of the white space in the JSON.
    """
    spell = _speller(tokenizer)
    call = " ".join((*spell(form.open), "WS calls WS", *spell(form.close)))
    return "\n".join(
        (
            "%llguidance {}",
            "start: WS made | answer",
            "made: call (WS call)*",
            f"call: {call}",
            f"calls: {_calls(form, functions, spell)}",
            f"answer: {_json(answer, whitespace)}",
            r"WS: /[ \n]{0,8}/",
        )
    )


def strict_grammar(form: CallForm, functions: Schemas, tokenizer: Tokenizer, marks: Iterable[str]) -> str:
    """The grammar, in Lark. ``marks`` may stand in the text, where they are special tokens."""
    spell = _speller(tokenizer)
    opening, *rest = spell(form.open)
    free = sorted({word for mark in marks for word in spell(mark) if word.startswith("<[")} - {opening})
    begin = ["call: TEXT " + opening] if opening.startswith("<[") else ["call: begin", f"begin[lazy]: TEXT {opening}"]
    begin[0] = " ".join((begin[0], *rest, "WS calls WS", *spell(form.close)))
    return "\n".join(
        (
            "%llguidance {}",
            f"start: ({' | '.join(('call', *(['marked'] if free else [])))})* rest",
            "rest: TEXT",
            *([f"marked: TEXT ({' | '.join(free)})"] if free else []),
            *begin,
            f"calls: {_calls(form, functions, spell)}",
            r"TEXT: /(.|\n)*/",
            r"WS: /[ \n]{0,8}/",
        )
    )


def place(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A schema that will stand at ``where`` in another (``#/items``): what it refers to in itself is found there."""
    placed: dict[str, Any] = _moved(schema, where)
    return placed


def _moved(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_moved(one, where) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: where + one[1:] if key == "$ref" and isinstance(one, str) and one.startswith("#") else _moved(one, where)
        for key, one in value.items()
    }


def _speller(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """How a text is written in a grammar: special tokens by their number, the rest as text."""

    def spell(text: str) -> list[str]:
        ids = tokenizer.encode(text, add_special_tokens=False) if text else []
        if not tokenizer.special_ids.intersection(ids):
            return [_text(text)] if text else []
        return [f"<[{id}]>" if id in tokenizer.special_ids else _text(tokenizer.token_text(id)) for id in ids]

    return spell


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _calls(form: CallForm, functions: Schemas, spell: Callable[[str], list[str]]) -> str:
    """What stands between the marks."""
    headed = [_headed(form.head, name, schema, spell) for name, schema in functions.items() if form.head]
    if headed and not form.listed:
        return " | ".join(headed)
    where = "#/items" if form.listed else "#"
    call = {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    form.arguments: place(schema, f"{where}/anyOf/{index}/properties/{form.arguments}"),
                },
                "required": ["name", form.arguments],
                "additionalProperties": False,
            }
            for index, (name, schema) in enumerate(functions.items())
        ]
    }
    return " | ".join((*headed, _json({"type": "array", "minItems": 1, "items": call} if form.listed else call)))


def _headed(head: str, name: str, schema: Mapping[str, Any], spell: Callable[[str], list[str]]) -> str:
    """A call whose name stands before its arguments."""
    before, _, after = head.partition("{name}")
    beyond, index, end = after.partition("{index}")
    number = ("/[0-9]{1,4}/",) if index else ()
    return " ".join((*spell(before), _text(name), *spell(beyond), *number, *spell(end), _json(schema)))


def _json(schema: Mapping[str, Any], whitespace: str | None = None) -> str:
    options = _JSON if whitespace is None else {**_JSON, "whitespace_pattern": whitespace}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    return "%json " + text.replace("::=", r":\u003a=")  # by which back ends know another notation
