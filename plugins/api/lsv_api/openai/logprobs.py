"""Log probabilities in the three shapes that clients of the OpenAI API and of vLLM expect."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from lsv.request.outputs import PositionLogprobs, TokenLogprob
from lsv.text.tokenizer import Tokenizer
from lsv_api.records.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_new_decoder = codecs.getincrementaldecoder("utf-8")

LOWEST = -9999.0
"""Stands for minus infinity, which JSON can't say."""


class LogprobWriter:
    """Writes positions; ``as_ids`` shows tokens as ``token_id:17`` instead of their text."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, positions: Sequence[PositionLogprobs], top: int) -> ChatLogprobs:
        """``top`` most likely candidates beside each chosen token."""
        return ChatLogprobs([self._chat_position(position, top) for position in positions])

    def completion(self, top: int, place: TextPlace, *, skip_special: bool) -> CompletionColumns:
        """The empty lists of a completion. ``place`` is where the text of the first token begins."""
        return CompletionColumns(self, self._tokenizer, top, place, skip_special=skip_special)

    def token(self, entry: TokenLogprob) -> str:
        return self.name(entry.id, entry.text)

    def name(self, token: int, text: str) -> str:
        """What a token is called."""
        return f"token_id:{token}" if self._as_ids else text

    def _chat_position(self, position: PositionLogprobs, top: int) -> ChatLogprob:
        chosen = position[0]
        best = [TopLogprob(*self._shown(entry)) for entry in _most_likely(position, top)]
        return ChatLogprob(*self._shown(chosen), best)

    def _shown(self, entry: TokenLogprob) -> tuple[str, float, list[int]]:
        return self.token(entry), _finite(entry.logprob), list(self._tokenizer.token_bytes(entry.id))


class TextPlace:
    """Where the text of the next token begins, in characters. A character may have several tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.offset = 0
        self._tokenizer = tokenizer
        self._pieces = _new_decoder("replace")

    def pass_over(self, token: int, text: str) -> None:
        """Advance past a token with the text ``text``, which may contain partial characters."""
        begun = bool(self._pieces.getstate()[0])
        if begun or _REPLACEMENT in text:
            text = self._pieces.decode(self._tokenizer.token_bytes(token))
        self.offset += len(text)


class CompletionColumns:
    """Parallel lists over the tokens of a completion, ``top`` candidates a position."""

    def __init__(
        self, writer: LogprobWriter, tokenizer: Tokenizer, top: int, place: TextPlace, *, skip_special: bool
    ) -> None:
        self.shown = CompletionLogprobs([], [], [], [])
        self._place = place
        self._writer = writer
        self._tokenizer = tokenizer
        self._top = top
        self._skip_special = skip_special

    def echo(self, ids: Sequence[int], positions: Sequence[PositionLogprobs | None], text: str) -> None:
        """Add the prompt, of which ``text`` is shown. Nothing predicted its first token.

        Special tokens stand in that text only where its author wrote them.
        """
        for token, position in zip(ids, positions, strict=True):
            spelt = self._tokenizer.token_text(token)
            hidden = token in self._tokenizer.special_ids and not text.startswith(spelt, self._place.offset)
            self._add(token, spelt, position, hidden=hidden)

    def extend(self, positions: Sequence[PositionLogprobs]) -> None:
        """Add tokens of the answer."""
        for position in positions:
            token, spelt = position[0].id, position[0].text
            hidden = self._skip_special and token in self._tokenizer.special_ids
            self._add(token, spelt, position, hidden=hidden)

    def _add(self, token: int, spelt: str, position: PositionLogprobs | None, *, hidden: bool) -> None:
        name, shown = self._writer.token, self.shown
        shown.tokens.append(self._writer.name(token, spelt))
        shown.text_offset.append(self._place.offset)
        shown.token_logprobs.append(None if position is None else _finite(position[0].logprob))
        shown.top_logprobs.append(
            None
            if position is None
            else {name(entry): _finite(entry.logprob) for entry in (position[0], *_most_likely(position, self._top))}
        )
        if not hidden:
            self._place.pass_over(token, spelt)


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
    return [
        None
        if position is None
        else {str(entry.id): PromptLogprob(_finite(entry.logprob), entry.rank, entry.text) for entry in position}
        for position in positions
    ]


def _most_likely(position: PositionLogprobs, top: int) -> PositionLogprobs:
    """The ``top`` likeliest candidates in order. Where the chosen token is as likely as others, it goes before them."""
    chosen, best = position[0], position[1 : 1 + top]
    if chosen.rank > top or any(entry.id == chosen.id for entry in best):
        return best
    return (*best[: chosen.rank - 1], chosen, *best[chosen.rank - 1 :])[:top]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
