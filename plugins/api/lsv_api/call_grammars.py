"""Grammars of answers in which a model may call tools with arguments that follow their schemas.

Source of the notation: llguidance, docs/syntax.md. Text is free until a call begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lsv.offers import CallForm
from lsv.text.answer_parser import CallGrammar, Spelling
from lsv.text.tokenizer import Tokenizer

_JSON = {"whitespace_flexible": True, "whitespace_pattern": r"(\x20|\r?\n[\x20\x09]{0,32})"}
"""White space in JSON is limited, so that no model spends a whole answer on it."""

_WS = r"WS: /[ \n]{0,8}/"

Schemas = Mapping[str, Mapping[str, Any]]
"""The arguments of functions, by name."""


def either_grammar(
    form: CallGrammar,
    functions: Schemas,
    tokenizer: Tokenizer,
    answer: Mapping[str, Any],
    whitespace: str | None = None,
) -> str | None:
    """The grammar, in Lark, of answers that are either calls or JSON of the schema ``answer``.

    ``whitespace`` is a regular expression for white space in the JSON. None if ``form`` can't enforce the schemas.
    """
    made = _made(form, functions, LarkSpelling(tokenizer), many=True)
    if made is None:
        return None
    return "\n".join(("%llguidance {}", "start: WS made | answer", *made, f"answer: {_json(answer, whitespace)}", _WS))


def forced_grammar(form: CallGrammar, functions: Schemas, tokenizer: Tokenizer, *, many: bool) -> str | None:
    """The grammar, in Lark, of answers that are one call, or several if ``many``.

    None if ``form`` can't enforce the schemas.
    """
    made = _made(form, functions, LarkSpelling(tokenizer), many=many)
    return None if made is None else "\n".join(("%llguidance {}", "start: WS made", *made, _WS))


def strict_grammar(form: CallGrammar, functions: Schemas, tokenizer: Tokenizer, marks: Iterable[str]) -> str | None:
    """The grammar, in Lark, of answers that may contain calls.

    ``marks`` may appear in the text if they are special tokens. None if calls can't be told from text, or if ``form``
    can't enforce the schemas.
    """
    spelling = LarkSpelling(tokenizer)
    rules = form.rules(functions, spelling, many=True) if form.open else None
    if rules is None:
        return None
    opening, *rest = spelling.text(form.open)
    free = sorted({word for mark in marks for word in spelling.text(mark) if word.startswith("<[")} - {opening})
    begin = ["call: TEXT " + opening] if opening.startswith("<[") else ["call: begin", f"begin[lazy]: TEXT {opening}"]
    begin[0] = " ".join((begin[0], *rest, "WS calls"))
    return "\n".join(
        (
            "%llguidance {}",
            f"start: ({' | '.join(('call', *(['marked'] if free else [])))})* rest",
            "rest: TEXT",
            *([f"marked: TEXT ({' | '.join(free)})"] if free else []),
            *begin,
            *rules,
            r"TEXT: /(.|\n)*/",
            _WS,
        )
    )


def _made(form: CallGrammar, functions: Schemas, spelling: Spelling, *, many: bool) -> list[str] | None:
    """The rules of calls without text."""
    rules = form.rules(functions, spelling, many=many)
    if rules is None:
        return None
    more = " (WS call)*" if many and form.repeats else ""
    return [f"made: call{more}", " ".join(("call:", *spelling.text(form.open), "WS calls")), *rules]


def place(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A schema to embed at ``where`` in another one (``#/items``), with its internal references adjusted."""
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


class LarkSpelling:
    """See :class:`lsv.text.answer_parser.Spelling`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, text: str) -> list[str]:
        pieces, rest = list[str](), text
        for id in self._tokenizer.encode(text, add_special_tokens=False) if text else ():
            if id in self._tokenizer.special_ids:
                before, _, rest = rest.partition(self._tokenizer.token_text(id))
                pieces += [*self._some(before), f"<[{id}]>"]
        return [*pieces, *self._some(rest)]

    def _some(self, text: str) -> list[str]:
        return [self.plain(text)] if text else []

    def plain(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any]) -> str:
        return _json(schema)


class JsonCallGrammar:
    """The grammar of calls in a form that a plugin describes; see :class:`lsv.text.answer_parser.CallGrammar`."""

    repeats = True

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self.open = form.open

    def rules(self, functions: Schemas, spelling: Spelling, *, many: bool) -> list[str]:
        form = self._form
        headed = [_headed(form.head, name, schema, spelling) for name, schema in functions.items() if form.head]
        choices = headed if headed and not form.listed else [*headed, self._objects(functions, spelling, many=many)]
        end = ("WS", *spelling.text(form.close)) if form.close else ("WS",)
        return [" ".join(("calls: made_call", *end)), f"made_call: {' | '.join(choices)}"]

    def _objects(self, functions: Schemas, spelling: Spelling, *, many: bool) -> str:
        """A JSON object that is a call, or a list of such objects."""
        form = self._form
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
        most = {} if many else {"maxItems": 1}
        return spelling.json({"type": "array", "minItems": 1, **most, "items": call} if form.listed else call)


def _headed(head: str, name: str, schema: Mapping[str, Any], spelling: Spelling) -> str:
    """A call with its name before its arguments."""
    before, _, after = head.partition("{name}")
    beyond, index, end = after.partition("{index}")
    number = ("/[0-9]{1,4}/",) if index else ()
    return " ".join(
        (
            *spelling.text(before), spelling.plain(name), *spelling.text(beyond), *number, *spelling.text(end),
            spelling.json(schema),
        )
    )  # fmt: skip


def _json(schema: Mapping[str, Any], whitespace: str | None = None) -> str:
    options = _JSON if whitespace is None else {**_JSON, "whitespace_pattern": whitespace}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    return "%json " + text.replace("::=", r":\u003a=")  # back ends recognise another notation by it
