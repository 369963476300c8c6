"""Stop strings in the text of a beam, which forks with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from lsv.request.params import SamplingParams
from lsv.text.detokenize import make_detokenizer
from lsv.text.stops import StopFinder, Stopped, StopStrings
from lsv.text.tokenizer import Tokenizer


class StopWatch:
    """Reads a beam's tokens as its client will read the answer."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._text = make_detokenizer(tokenizer, prompt, params)
        self._finder = StopFinder(StopStrings(params.stop))

    def push(self, token: int, *, early: bool) -> bool:
        """Whether the token completes a stop string; one within ``early`` text does not count."""
        return isinstance(self._finder.push(self._text.push(token), early=early), Stopped)

    def fork(self) -> StopWatch:
        """One of its own for a beam that goes on from here."""
        forked = copy.copy(self)
        forked._text, forked._finder = self._text.fork(), copy.copy(self._finder)
        return forked
