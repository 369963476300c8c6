"""What form an answer must have: a JSON schema, a regular expression, one of some texts, a grammar, or a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from lsv.request.structural_tag import read_structural_tag
from lsv_base.errors import BadRequest

MAX_SIZE = 256 << 10
"""Characters of what an answer must follow."""
MAX_CHOICES = 10_000

Form = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
"""The ways to say what an answer must be."""

_FORMS: tuple[Form, ...] = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of ``json``, ``json_object``, ``regex``, ``choice``, ``grammar`` and ``structural_tag``: what the
    whole answer must be.

    ``json`` takes a JSON schema as text, as a mapping, or as a pydantic model; it is kept as text, as is
    ``structural_tag``. Checked on
    construction: raises ``BadRequest`` that names the field. Whether a back end can follow it is found out in the
    engine.
    """

    json: str | None = None
    """A JSON schema."""
    regex: str | None = None
    """A regular expression that the whole answer matches."""
    choice: tuple[str, ...] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A context-free grammar, in the notations that the back end reads (llguidance: Lark and GBNF)."""
    structural_tag: str | None = None
    """Text in which some marks begin parts of a form, see ``lsv.request.structural_tag``."""
    json_object: bool = False
    """The answer is any JSON object."""
    whitespace_pattern: str | None = None
    """A regular expression of the whitespace between the parts of a JSON text."""
    backend: str | None = None
    """The name of the back end; None or ``"auto"`` takes the engine's default."""

    def __post_init__(self) -> None:
        given_as: dict[str, Any] = {
            "json": _as_text("json", self.json),
            "structural_tag": _as_text("structural_tag", self.structural_tag),
            "choice": _as_choices(self.choice),
        }
        for name, value in given_as.items():
            msgspec.structs.force_setattr(self, name, value)
        given = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise _refuse(f"takes exactly one of {', '.join(_FORMS)}, got {found}")
        for name in ("json", "regex", "grammar", "structural_tag", "whitespace_pattern", "backend"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise _refuse(f"{name} must be a string, got {value!r:.100}")
        if self.text == "":
            raise _refuse(f"{self.form} is empty: give a form for the answer, or leave structured_outputs out")
        if not isinstance(self.json_object, bool):
            raise _refuse(f"json_object must be true or false, got {self.json_object!r:.100}")
        if self.whitespace_pattern is not None and self.form not in ("json", "json_object"):
            raise _refuse(f"whitespace_pattern needs a JSON schema or json_object, not {self.form}")
        size = len(self.text) + len(self.whitespace_pattern or "")
        if size > MAX_SIZE:
            raise _refuse(f"{self.form} has {size} characters, over the limit of {MAX_SIZE}: simplify it")
        if self.structural_tag is not None:
            read_structural_tag(self.structural_tag)

    @property
    def form(self) -> Form:
        """The name of the given form."""
        return next(name for name in _FORMS if getattr(self, name) not in (None, False))

    @property
    def text(self) -> str:
        """What the answer must follow, as one text: choices as a JSON list, any JSON object as its schema."""
        if self.choice is not None:
            return msgspec.json.encode(self.choice).decode()
        return (
            self.json
            or self.regex
            or self.grammar
            or self.structural_tag
            or ('{"type": "object"}' if self.json_object else "")
        )


GuidedDecodingParams = StructuredOutputsParams
"""The older name of the same."""


def _as_text(name: str, value: Any) -> Any:
    """A schema or a structural tag as text, whose properties keep their order."""
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if isinstance(value, Mapping | bool):
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError, OverflowError) as cause:
            raise _refuse(f"{name} is not {'a JSON schema' if name == 'json' else 'valid JSON'}: {cause}") from None
    return value


def _as_choices(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise _refuse(f"choice must be a list of strings, got {value!r:.100}")
    if not value or any(not isinstance(text, str) or not text for text in value):
        raise _refuse("choice must have at least one string, and no empty strings")
    if len(value) > MAX_CHOICES:
        raise _refuse(f"choice has {len(value)} strings, over the limit of {MAX_CHOICES}")
    return tuple(dict.fromkeys(value))


def _refuse(why: str) -> BadRequest:
    return BadRequest(f"structured_outputs: {why}", param="structured_outputs")
