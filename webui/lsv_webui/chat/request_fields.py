"""The settings of a visitor, as fields of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lsv_base.errors import BadRequest
from lsv_webui.api import Abilities
from lsv_webui.chat.tools import offered


class Number(NamedTuple):
    """A sampling field of the API; left empty, the server chooses."""

    field: str
    label: str
    whole: bool = False
    several: bool = False
    """Whether it takes whole numbers with commas between them."""

    def read(self, text: str) -> float | int | list[int]:
        """The number entered, or the numbers. Raises ``BadRequest``."""
        try:
            if self.several:
                return [int(part) for part in text.split(",") if part.strip()]
            return int(text) if self.whole else float(text.replace(",", "."))
        except ValueError:
            kind = "whole numbers" if self.several else "a whole number" if self.whole else "a number"
            raise BadRequest(f"{self.label} under Settings must be {kind}, not {text!r}.") from None


NUMBERS = (
    Number("temperature", "Temperature"),
    Number("max_tokens", "Longest answer", whole=True),
    Number("top_p", "Top p"),
    Number("top_k", "Top k", whole=True),
    Number("repetition_penalty", "Repetition penalty"),
    Number("seed", "Seed", whole=True),
    Number("stop_token_ids", "Stop at token ids", several=True),
)


class RequestFields(NamedTuple):
    """A visitor's settings, in the order of ``Controls.inputs``."""

    model: str | None
    key: str
    system: str
    schema: str
    tools: tuple[str, ...]
    thinks: bool
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> RequestFields:
        model, key, system, schema, tools, thinks, *numbers = values
        texts = ((key or "").strip(), system or "", schema or "")
        return cls(model, *texts, tuple(tools or ()), bool(thinks), tuple(text or "" for text in numbers))

    def within(self, abilities: Abilities) -> RequestFields:
        """Without what was entered for another server, whose panels are hidden here."""
        return self._replace(
            schema=self.schema if abilities.structures else "",
            tools=self.tools if abilities.calls else (),
            thinks=self.thinks and abilities.thinks,
        )

    def as_json(self) -> dict[str, Any]:
        """The request fields; empty settings are left out. Raises ``BadRequest`` for a value that can't be parsed."""
        found: dict[str, Any] = {"model": self.model} if self.model else {}
        for number, text in zip(NUMBERS, self.numbers, strict=True):
            if text.strip():
                found[number.field] = number.read(text.strip())
        if self.schema.strip():
            found["response_format"] = _response_format(self.schema)
        if self.tools:
            found["tools"] = offered(self.tools)
        if self.thinks:
            found["chat_template_kwargs"] = {"enable_thinking": True}
        return found


def _response_format(schema: str) -> dict[str, Any]:
    try:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}
    except ValueError as error:
        raise BadRequest(f"The JSON schema under Settings is not JSON: {error}") from None
