"""Orders from one process to another: typed records, looked up by name in a table of the types the receiver knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from lsv_base.errors import LsvError, PluginError


def _spell(name: str) -> str:
    """The name of an order's type in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class OrderRecord(msgspec.Struct, frozen=True, tag=_spell, forbid_unknown_fields=True):
    """An order. Its type says what to do, its fields how, and its class variables what is true of every such order."""

    announces: ClassVar[str] = ""
    """The work that the order starts, for orders that may take as long as loading; empty for the others."""


class WorkerOrder(OrderRecord, frozen=True):
    """An order that every worker carries out while nothing is in flight."""


Known = TypeVar("Known", bound=OrderRecord)
Handler = TypeVar("Handler")


class OrderTable(Generic[Known, Handler]):
    """Maps the types of orders that a process knows to their handlers."""

    def __init__(
        self, knows: str, refusal: type[LsvError], handlers: Mapping[type[Known], Handler] | None = None
    ) -> None:
        """An order that is refused raises ``refusal``; ``knows`` introduces the list of known orders in its message."""
        self._knows, self._refusal = knows, refusal
        self._handlers: dict[type[Known], Handler] = {}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Known]] = {}
        self.add(handlers or {})

    def add(self, handlers: Mapping[type[Known], Handler]) -> None:
        """Declare orders and the handlers that carry them out. Raises ``PluginError`` for a name that is taken."""
        for kind, handler in handlers.items():
            name = name_of(kind)
            if name in self._decoders:
                raise PluginError(f"the order {name} of {kind.__module__} is known already: give it another name")
            self._decoders[name] = msgspec.msgpack.Decoder(kind)
            self._handlers[kind] = handler

    def read(self, name: str, body: bytes) -> Known:
        """Decode an order. Raises ``refusal`` for an unknown name and for a body that does not fit."""
        decoder = self._decoders.get(name)
        if decoder is None:
            raise self._unknown(name)
        try:
            return decoder.decode(body)
        except ValueError as error:  # msgspec's own errors, and text that is not UTF-8
            raise self._refusal(f"the order {name} is malformed: {error}; {self._list()}") from None

    def find(self, order: Known) -> Handler:
        """The handler of an order. Raises ``refusal`` for an unknown type."""
        handler = self._handlers.get(type(order))
        if handler is None:
            raise self._unknown(name_of(order))
        return handler

    def _unknown(self, name: str) -> LsvError:
        return self._refusal(f"unknown order {name!r}: {self._list()}")

    def _list(self) -> str:
        return f"{self._knows} {', '.join(self._decoders)}"


def name_of(order: OrderRecord | type[OrderRecord]) -> str:
    """The name that an order has in messages."""
    return str(order.__struct_config__.tag)


def encode_order(order: OrderRecord) -> tuple[str, bytes]:
    """The name and the body of an order, for ``OrderTable.read``."""
    return name_of(order), msgspec.msgpack.encode(order)
