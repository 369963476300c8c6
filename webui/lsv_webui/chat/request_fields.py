"""The settings of a visitor, as fields of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lsv.errors import BadRequest


class Number(NamedTuple):
    """A sampling field of the API; left empty, the server chooses."""

    field: str
    label: str
    whole: bool = False

    def read(self, text: str) -> float | int:
        """The number entered. Raises ``BadRequest``."""
        try:
            return int(text) if self.whole else float(text.replace(",", "."))
        except ValueError:
            kind = "a whole number" if self.whole else "a number"
            raise BadRequest(f"{self.label} under Settings must be {kind}, not {text!r}.") from None


NUMBERS = (
    Number("temperature", "Temperature"),
    Number("max_tokens", "Longest answer", whole=True),
    Number("top_p", "Top p"),
    Number("top_k", "Top k", whole=True),
    Number("repetition_penalty", "Repetition penalty"),
    Number("seed", "Seed", whole=True),
)


class RequestFields(NamedTuple):
    """A visitor's settings, in the order of ``Controls.inputs``."""

    model: str | None
    key: str
    system: str
    schema: str
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> RequestFields:
        model, *rest = values
        key, system, schema, *numbers = (text or "" for text in rest)
        return cls(model, key.strip(), system, schema, tuple(numbers))

    def as_json(self) -> dict[str, Any]:
        """The request fields; empty settings are left out. Raises ``BadRequest`` for a value that can't be parsed."""
        found: dict[str, Any] = {"model": self.model} if self.model else {}
        for number, text in zip(NUMBERS, self.numbers, strict=True):
            if text.strip():
                found[number.field] = number.read(text.strip())
        if self.schema.strip():
            found["response_format"] = _response_format(self.schema)
        return found


def _response_format(schema: str) -> dict[str, Any]:
    try:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}
    except ValueError as error:
        raise BadRequest(f"The JSON schema under Settings is not JSON: {error}") from None
