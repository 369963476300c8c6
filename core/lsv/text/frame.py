"""The special tokens that a tokenizer puts around a text, which truncation keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lsv.request.params import Side
from lsv_base.errors import BadRequest

_PROBES = ("a", "0", ".")
"""Texts that reveal where special tokens end and text begins. Several, because a vocabulary may lack some."""


class Frame(msgspec.Struct, frozen=True):
    """The tokens that a tokenizer adds before and after a text."""

    head: tuple[int, ...] = ()
    """Before the text, such as BOS or CLS."""

    tail: tuple[int, ...] = ()
    """After the text, such as EOS or SEP."""

    bos: int | None = None
    """The tokenizer's BOS, which chat templates write themselves if the tokenizer adds none."""

    def truncate(self, ids: Sequence[int], keep: int, side: Side) -> tuple[int, ...]:
        """Keep at most ``keep`` ids: special tokens at both ends stay, text is dropped on ``side``.

        Raises ``BadRequest`` if the special tokens leave no room for text.
        """
        ids = tuple(ids)
        if len(ids) <= keep:
            return ids
        first, last = self._lengths(ids)
        room = keep - first - last
        if room < 1:
            raise BadRequest(
                f"truncating this prompt to {keep} tokens leaves no text besides {first + last} special tokens: "
                f"keep at least {first + last + 1}",
                param="truncate_prompt_tokens",
            )
        stop = len(ids) - last
        text = ids[first : first + room] if side == "right" else ids[stop - room : stop]
        return (*ids[:first], *text, *ids[stop:])

    def split(self, ids: Sequence[int], most: int) -> list[tuple[int, ...]]:
        """The ids in pieces of at most ``most``, each with the special tokens of both ends; text is in one piece only.

        Raises ``BadRequest`` if the special tokens leave no room for text.
        """
        ids = tuple(ids)
        if len(ids) <= most:
            return [ids]
        first, last = self._lengths(ids)
        room, stop = most - first - last, len(ids) - last
        if room < 1:
            raise BadRequest(f"{first + last} special tokens leave no room for text in pieces of {most} tokens")
        starts = range(first, stop, room)
        return [(*ids[:first], *ids[start : min(start + room, stop)], *ids[stop:]) for start in starts]

    def _lengths(self, ids: tuple[int, ...]) -> tuple[int, int]:
        """How many special tokens a prompt has at the beginning and at the end."""
        first = len(self.head) if ids[: len(self.head)] == self.head else 0
        if not first and self.bos is not None and ids[:1] == (self.bos,):
            first = 1
        last = len(self.tail)
        return first, last if last and ids[first:][-last:] == self.tail else 0


def find_frame(encode: Callable[[str, bool], Sequence[int]], bos: int | None) -> Frame:
    """Find the frame of a tokenizer. ``encode`` takes a text and whether to add special tokens."""
    for probe in _PROBES:
        text, framed = tuple(encode(probe, False)), tuple(encode(probe, True))
        for start in range(len(framed) - len(text) + 1 if text else 0):
            if framed[start : start + len(text)] == text:
                return Frame(framed[:start], framed[start + len(text) :], bos)
    return Frame(bos=bos)
