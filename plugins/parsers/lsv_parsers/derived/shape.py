"""The shape of a family's calls: the texts around names and values in its chat template."""

from __future__ import annotations

from dataclasses import dataclass

from lsv_parsers.derived.atoms import before, literal_start, unlist


@dataclass(frozen=True)
class JsonArguments:
    """``{"city": "Bern"}``."""

    encoded: bool = False
    """Whether the object is encoded as a JSON string."""


@dataclass(frozen=True)
class WrittenArguments:
    """Arguments one by one: ``<parameter=city>Bern</parameter>``, ``city="Bern"``, ``city:<|"|>Bern<|"|>``."""

    key_begin: str
    value_begin: str
    """The text between a key and a value."""
    text_begin: str
    """The text between a key and a text: the same, or with a quote at its end, or with another attribute."""
    value_end: str
    quote: str
    """The quote around texts, if any."""
    between: str
    """The text between two arguments."""


@dataclass(frozen=True)
class ObjectKeys:
    """Calls that are JSON objects: ``{"function": {"name": …, "arguments": …}}``."""

    head: str
    """The beginning of the object, which is the end of ``CallShape.begin``."""
    tail: str
    """The end of the object, which is the beginning of ``CallShape.end``."""
    name: str = ""
    """The key of the name; empty if the name is the key of the arguments."""
    arguments: str = ""
    wrapper: str = ""
    """The key of an inner object with both, if any."""
    others: tuple[str, ...] = ()
    """Further keys, such as for ids."""


@dataclass(frozen=True)
class CallShape:
    """Calls are ``open``, one or more calls separated by ``between``, and ``close``.

    A call is ``begin``, the name, ``head_end``, the arguments and ``end``. Texts have ``atoms.ID`` and ``atoms.INDEX``
    for ids and numbers.
    """

    open: str
    begin: str
    head_end: str
    arguments: JsonArguments | WrittenArguments
    end: str
    between: str
    close: str
    keys: ObjectKeys | None = None
    name_first: bool = True
    """Whether the name precedes the arguments."""
    repeats: bool = True
    """Whether the template writes more than one call in an answer."""


def opening(shape: CallShape) -> str:
    """The mark that calls begin with, without surrounding white space; empty if there is none."""
    begin = shape.begin if shape.keys is None else before(shape.begin, shape.keys.head)
    return unlist(shape.open) or unlist(literal_start(begin))
