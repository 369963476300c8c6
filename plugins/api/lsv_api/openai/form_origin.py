"""Where the form of an answer comes from, so that errors name the field that the client sent."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from lsv_api.schema_check import SchemaCheck
from lsv_base.errors import BadRequest

FIELD = "structured_outputs"
"""The engine's name for every form."""
_SHOWN = 8
"""Limit on functions named in a message."""
_UNFOLLOWED = " can't be followed: "
_GRAMMAR_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")


class Function(msgspec.Struct, frozen=True):
    """A function of ``tools`` whose parameters a form holds."""

    place: int
    """Its place in ``tools``."""
    name: str
    schema: Mapping[str, Any]


class FormOrigin(msgspec.Struct, frozen=True):
    """The field that asked for a form. For forms made from tools, also the functions whose parameters it contains."""

    field: str = FIELD
    functions: Sequence[Function] = ()
    instead: str = "simplify it, or leave it out"
    """What the client can do instead."""
    written: bool = False
    """Whether the server wrote the grammar, which the client does not know."""

    def of(self, functions: Mapping[str, Mapping[str, Any]], followed: Container[str]) -> FormOrigin:
        """The same, with the functions of ``tools`` that are ``followed``."""
        listed = [
            Function(place, name, {**schema, "type": "object"})
            for place, (name, schema) in enumerate(functions.items())
            if name in followed
        ]
        return msgspec.structs.replace(self, functions=listed)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Make errors about the form, raised inside, name the client's own field."""
        try:
            yield
        except BadRequest as error:
            if error.param != FIELD:
                raise
            raise self.rename(error) from None

    def rename(self, error: BadRequest, check: SchemaCheck | None = None) -> BadRequest:
        """The error about the field that the client sent, with advice.

        ``check`` finds the function at fault, which takes a while.
        """
        message = error.message.removeprefix(f"{FIELD}: ")
        what, unfollowed, why = message.partition(_UNFOLLOWED)
        if not unfollowed:
            return BadRequest(error.message.replace(FIELD, self.field, 1), param=self.field)
        if self.functions:
            return self._refuse_functions(_summarise(why) if self.written else why, check)
        if self.written:
            what, why = "the form", _summarise(why)
        what = what.replace("this json", "the JSON schema")
        return BadRequest(f"{self.field}: {what}{_UNFOLLOWED}{why}; {self.instead}", param=self.field)

    def _refuse_functions(self, why: str, check: SchemaCheck | None) -> BadRequest:
        found = None if check is None else check.find_refused([one.schema for one in self.functions])
        if found is not None:
            function, why = self.functions[found[0]], found[1].partition(_UNFOLLOWED)[2] or why
        elif len(self.functions) == 1:
            function = self.functions[0]
        else:
            names = ", ".join(one.name for one in self.functions[:_SHOWN])
            names += f" and {left} more" if (left := len(self.functions) - _SHOWN) > 0 else ""
            return BadRequest(
                f"{self.field}: the parameters of {names} together{_UNFOLLOWED}{why}; {self.instead}", param=self.field
            )
        return BadRequest(
            f"{self.field}: the parameters of {function.name}{_UNFOLLOWED}{why}; {self.instead}",
            param=f"{self.field}[{function.place}].function.parameters",
        )


def _summarise(why: str) -> str:
    """A back end's message without the place in the grammar and the lines that show it."""
    return _GRAMMAR_PLACE.sub("", why.partition("\n")[0])


NO_FORM = FormOrigin()
"""The origin for answers of any form."""
