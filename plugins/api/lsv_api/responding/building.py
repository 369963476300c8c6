"""The items of an answer, built from what each chunk of it adds."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import UNSET

from lsv_api.records.responses import ChatLogprob, Delta, ToolCallDelta
from lsv_api.responding.items import make_item_id, open_input, seal_thoughts
from lsv_api.responding.records import (
    ItemStatus,
    OutputItem,
    ResponseCustomCall,
    ResponseFunctionCall,
    ResponseMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseReasoningText,
)
from lsv_api.responding.tools import Home


class Began:
    """An item begins."""


class Ended:
    """The last item is whole."""


class Added(NamedTuple):
    """The last item grows by this text."""

    text: str


Step = Began | Ended | Added


class ItemBuilder:
    """Builds the items of one answer. The last one of ``items`` grows; ``text`` is what it has so far.

    Calls of ``custom`` tools are known by their input, which is shown once it is whole, because the model writes it in
    JSON. Calls of functions that have ``homes`` name their namespaces. With ``seal`` thoughts are added in the form in
    which clients send them back. Calls beyond ``most_calls`` are left out.
    """

    def __init__(
        self,
        *,
        custom: Container[str] = (),
        homes: Mapping[str, Home] = MappingProxyType({}),
        seal: bool = False,
        most_calls: int | None = None,
    ) -> None:
        self.items: list[OutputItem] = []
        self.logprobs: list[ChatLogprob] = []
        self._custom = custom
        self._homes = homes
        self._seal = seal
        self._most_calls = most_calls
        self._pieces: list[str] = []
        self._open: type[OutputItem] | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def last(self) -> OutputItem:
        return self.items[-1]

    @property
    def index(self) -> int:
        return len(self.items) - 1

    def lengthen(self, delta: Delta) -> str | None:
        """Take in a delta that does nothing but lengthen the last item: its text, or None for any other delta."""
        if self._open is ResponseMessage:
            text = delta.content
        elif self._open is ResponseReasoningItem:
            text = delta.reasoning
        else:
            return None
        if not text:
            return None
        self._pieces.append(text)
        return text

    def add(self, delta: Delta) -> Iterator[Step]:
        """Take a delta in, step by step; each step is to be looked at before the next one."""
        if delta.content:
            if self._open is not ResponseMessage:
                content = [ResponseOutputText(text="")]
                yield from self._begin(
                    ResponseMessage(id=make_item_id("message"), status="in_progress", content=content)
                )
            yield self._grow(delta.content)
        elif delta.reasoning:
            if self._open is not ResponseReasoningItem:
                thoughts = [ResponseReasoningText(text="")]
                yield from self._begin(
                    ResponseReasoningItem(id=make_item_id("reasoning"), status="in_progress", content=thoughts)
                )
            yield self._grow(delta.reasoning)
        elif delta.tool_calls:
            for call in delta.tool_calls:
                yield from self._add_call(call)

    def end(self, status: ItemStatus = "completed") -> Iterator[Step]:
        """Complete the last item, if one is open: with the status ``incomplete`` where it was cut off."""
        if self._open is ResponseCustomCall:
            self._pieces = [open_input(self.text)]
            yield Added(self.text)
        if self._open is not None:
            self._complete(status)
            yield Ended()

    def _add_call(self, call: ToolCallDelta) -> Iterator[Step]:
        if self._most_calls is not None and call.index >= self._most_calls:
            return
        if call.id:
            yield from self._begin(self._make_call(call.id, call.function.name or ""))
        if call.function.arguments:
            added = self._grow(call.function.arguments)
            if self._open is ResponseFunctionCall:
                yield added

    def _make_call(self, id: str, name: str) -> OutputItem:
        if name in self._custom:
            return ResponseCustomCall(id=make_item_id("custom_tool_call"), call_id=id, name=name, input="")
        home = self._homes.get(name)
        return ResponseFunctionCall(
            id=make_item_id("function_call"),
            status="in_progress",
            call_id=id,
            name=name if home is None else home.name,
            namespace=UNSET if home is None else home.namespace,
            arguments="",
        )

    def _begin(self, item: OutputItem) -> Iterator[Step]:
        yield from self.end()
        self.items.append(item)
        self._open = type(item)
        self._pieces = []
        self.logprobs = []
        yield Began()

    def _grow(self, text: str) -> Added:
        self._pieces.append(text)
        return Added(text)

    def _complete(self, status: ItemStatus) -> None:
        """Give the last item what it has gathered."""
        item, text = self.last, self.text
        self._open = None
        if isinstance(item, ResponseCustomCall):
            item.input = text
            return
        item.status = status
        if isinstance(item, ResponseFunctionCall):
            item.arguments = text
        elif isinstance(item, ResponseMessage):
            item.content = [ResponseOutputText(text=text, logprobs=self.logprobs)]
        else:
            item.content = [ResponseReasoningText(text=text)]
            if self._seal:
                item.encrypted_content = seal_thoughts(text)
