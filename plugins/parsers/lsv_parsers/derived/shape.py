"""How a family writes calls, in the texts that its chat template puts around names and values."""

from __future__ import annotations

from dataclasses import dataclass

from lsv_parsers.derived.atoms import before, literal_start, unlist


@dataclass(frozen=True)
class JsonArguments:
    """``{"city": "Bern"}``."""

    encoded: bool = False
    """Whether the object is written as the text of a JSON string."""


@dataclass(frozen=True)
class WrittenArguments:
    """Arguments one by one: ``<parameter=city>Bern</parameter>``, ``city="Bern"``, ``city:<|"|>Bern<|"|>``."""

    key_begin: str
    value_begin: str
    """Stands between a key and a value."""
    text_begin: str
    """Stands between a key and a text: the same, or with a quote mark at its end, or with another attribute."""
    value_end: str
    quote: str
    """What stands around texts, if anything."""
    between: str
    """Stands between two arguments."""


@dataclass(frozen=True)
class ObjectKeys:
    """Calls that are JSON objects: ``{"function": {"name": …, "arguments": …}}``."""

    head: str
    """How the object begins, which is the end of ``CallShape.begin``."""
    tail: str
    """How it ends, which is the beginning of ``CallShape.end``."""
    name: str = ""
    """The key of the name; empty where the name is the key of the arguments."""
    arguments: str = ""
    wrapper: str = ""
    """The key of the object that holds both, where there is one."""
    others: tuple[str, ...] = ()
    """Keys that stand beside them, as of ids."""


@dataclass(frozen=True)
class CallShape:
    """Calls are ``open``, then one or more times ``begin``, the name, ``head_end``, arguments and ``end``, with
    ``between`` in the midst, and then ``close``. Texts hold ``atoms.ID`` and ``atoms.INDEX`` where these stand.
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
    """Whether the name stands before the arguments."""
    repeats: bool = True
    """Whether the template writes more than one call in an answer."""


def opening(shape: CallShape) -> str:
    """The mark that calls begin with, without the white space around it; empty where there is none."""
    begin = shape.begin if shape.keys is None else before(shape.begin, shape.keys.head)
    return unlist(shape.open) or unlist(literal_start(begin))
