"""Which tokens may follow at all: xgrammar's masks have tokens without text, and bytes that are no UTF-8.

Its classes of characters take any bytes after the first one of a character: overlong forms, surrogates, and what is
beyond U+10FFFF. A text with these is read with other characters than were counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv.grammars.masks import WORD, Mask

_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
"""First bytes of characters after which not all second ones may come, with those that may (Unicode, table 3-7)."""
_NEVER = re.compile(rb"[\xc0\xc1\xf5-\xff]|\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")


class Tokens:
    """The tokens of one vocabulary, by what they stand for: nothing for special ones."""

    def __init__(self, texts: Sequence[bytes], eos: Iterable[int]) -> None:
        self.texts = texts
        self.eos = tuple(eos)
        usable = np.array([text != b"" and _NEVER.search(text) is None for text in texts])
        usable[list(self.eos)] = True
        first = np.array([text[0] if text else 0 for text in texts])
        self._after = {0: _pack(usable)}
        for lead, (low, high) in _SECOND.items():
            self._after[lead] = _pack(usable & ((first < 0x80) | (first > 0xBF) | ((first >= low) & (first <= high))))

    @property
    def words(self) -> int:
        """How many words a mask has."""
        return len(self._after[0])

    def after(self, last: int) -> Mask:
        """Those that may come after this byte."""
        return self._after.get(last, self._after[0])


def _pack(bits: npt.NDArray[np.bool_]) -> Mask:
    return np.packbits(np.pad(bits, (0, -len(bits) % WORD)), bitorder="little").view(np.uint32)
