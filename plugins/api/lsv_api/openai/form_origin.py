"""Where the form of an answer comes from: a refused form is named by the field that the client sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from lsv.errors import BadRequest

_FIELD = "structured_outputs"
"""What the engine calls every form."""
_UNFOLLOWED = " can't be followed: "
_GRAMMAR_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")
_PLACE = re.compile(r"#?(?:/items)?/anyOf/(?P<index>\d+)/properties/(?:parameters|arguments)")
"""Where the schema of a function stands among those of all functions."""


class FormOrigin(msgspec.Struct, frozen=True):
    """The field that asked for a form; for forms made of tools, the functions whose parameters it holds."""

    field: str = _FIELD
    functions: Sequence[tuple[int, str]] = ()
    """Their places in ``tools``, and their names."""
    instead: str = "simplify it, or leave it out"
    """What the client can do."""
    written: bool = False
    """Whether the engine follows a grammar that this server has written, of which the client knows nothing."""

    def of(self, functions: Iterable[str], only: str | None = None) -> FormOrigin:
        """The same for the parameters of these functions, all those of ``tools``, or of ``only`` one of them."""
        listed = tuple((index, name) for index, name in enumerate(functions) if only in (None, name))
        return msgspec.structs.replace(self, functions=listed)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors about the form that are raised inside name the client's own field."""
        try:
            yield
        except BadRequest as error:
            if error.param != _FIELD:
                raise
            raise self.rename(error) from None

    def rename(self, error: BadRequest) -> BadRequest:
        """The error, in the name of the field that the client sent, with what to do."""
        message = error.message.removeprefix(f"{_FIELD}: ")
        _, unfollowed, why = message.partition(_UNFOLLOWED)
        if not unfollowed:
            return BadRequest(error.message.replace(_FIELD, self.field, 1), param=self.field)
        if self.written:
            message, why = f"the form{_UNFOLLOWED}{_summarise(why)}", _summarise(why)
        if not self.functions:
            return BadRequest(f"{self.field}: {message}; {self.instead}", param=self.field)
        found, why = self._find_function(why)
        if found is None:
            what, param = f"the parameters of one of {', '.join(name for _, name in self.functions)}", self.field
        else:
            index, name = found
            what, param = f"the parameters of {name}", f"{self.field}[{index}].function.parameters"
        return BadRequest(f"{self.field}: {what}{_UNFOLLOWED}{why}; {self.instead}", param=param)

    def _find_function(self, why: str) -> tuple[tuple[int, str] | None, str]:
        """Which function a message is about, and the message with paths in that function's own schema."""
        place = _PLACE.search(why)
        if place is not None and int(place["index"]) < len(self.functions):
            return self.functions[int(place["index"])], _PLACE.sub("#", why)
        return (self.functions[0], why) if len(self.functions) == 1 else (None, why)


def _summarise(why: str) -> str:
    """A back end's message without the place in the grammar, which its further lines show."""
    return _GRAMMAR_PLACE.sub("", why.partition("\n")[0])


NO_FORM = FormOrigin()
"""Of answers that may be anything."""
