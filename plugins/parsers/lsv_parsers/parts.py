"""Gathering the parts of an answer: pieces of one part are joined, and white space around calls is left out."""

from __future__ import annotations

from lsv.text.answer_parser import CallArguments, CallBegin, Part, Text, Thought

Kind = type[Text] | type[Thought] | type[CallArguments]


class Parts:
    """What a reader has found since it was asked last.

    White space is held until something else follows: beside calls and thoughts it is dropped.
    """

    def __init__(self) -> None:
        self.thinking = False
        """Whether thoughts are being read."""
        self._parts: list[Part] = []
        self._kind: Kind = Text
        self._pieces: list[str] = []
        self._spaces: list[str] = []
        self._fresh = False
        """Whether what was read last is a call or a thought."""
        self._has_text = False

    def text(self, text: str) -> None:
        if self._fresh:
            text = text.lstrip()
        shown = text.rstrip()
        if shown:
            self._fresh, self._has_text = False, True
            self._add(Text, "".join(self._spaces) + shown)
            self._spaces.clear()
        if len(shown) < len(text) and not self._fresh:
            self._spaces.append(text[len(shown) :])

    def thought(self, text: str) -> None:
        self._add(Thought, text)

    def border(self) -> None:
        """A call or a thought has begun, or has ended. White space between texts stays, should there be another."""
        if not self._has_text:
            self._spaces.clear()
        self._fresh = True

    def begin(self, name: str, id: str | None = None) -> None:
        self.border()
        self._join()
        self._parts.append(CallBegin(name, id))

    def arguments(self, text: str) -> None:
        self._add(CallArguments, text)

    def flush(self) -> list[Part]:
        """All that is certain."""
        self._join()
        found, self._parts = self._parts, []
        return found

    def end(self) -> list[Part]:
        """Also the white space at the end, unless it stands between text and a call."""
        if not self._fresh:
            self._add(Text, "".join(self._spaces))
        self._spaces.clear()
        return self.flush()

    def _add(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._join()
            self._kind = kind
        self._pieces.append(text)

    def _join(self) -> None:
        if self._pieces:
            self._parts.append(self._kind("".join(self._pieces)))
            self._pieces.clear()
