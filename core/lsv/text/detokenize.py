"""Token ids become text as they come."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from lsv.request.params import SamplingParams
from lsv.text.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 6
"""Tokens of the prompt that the first ones of the answer are decoded after."""
_LONGEST_WINDOW = 24
_MOST_PENDING = 3
"""An unfinished UTF-8 character has at most three bytes, so no more replacement characters of a run can change."""


class Detokenizer:
    """Decodes one answer token by token at constant cost per token.

    Most tokens have a text of their own. Others are decoded in a short window, because their text depends on their
    neighbours: characters spread over several tokens, the space before the first one.

    The texts of all ``push`` and the final ``flush`` together are what decoding the whole answer (after the prompt's
    last tokens) would give, with one exception. Where unknown characters are spelt as byte tokens, as by Llama 2,
    and a run of them ends in bytes that are no UTF-8, the whole run is replaced by U+FFFD when it is decoded at once;
    here the characters before these bytes have been shown by then, and stay.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> None:
        self._decode: Callable[[Sequence[int]], str] = lambda ids: tokenizer.decode(ids, skip_special_tokens)
        self._plain = tokenizer.plain_texts
        self._dropped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._known = tokenizer.vocab_size  # models' vocabularies may be larger; what is beyond has no text
        self._window = [token for token in prompt[-_CONTEXT:] if not self._is_silent(token)]
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            self._window, text = [], ""
        self._fresh = len(self._window)  # where the tokens since the last character border begin
        self._shown = len(text)
        self._is_settled = bool(text) or not tokenizer.trims_first  # a plain token now adds its own text, no more
        self._last: int | None = None  # the last token, if it was plain; the window is out of date then

    def push(self, token: int) -> str:
        """The text that is certain once ``token`` is known; empty inside a character."""
        if self._is_settled:
            text = self._plain[token]
            if text is not None:
                self._last = token
                return text
        return "" if self._is_silent(token) else self._decode_with(token)

    def _decode_with(self, token: int) -> str:
        """``push`` for any token."""
        if self._last is not None:
            self._window, self._last = [self._last], None
            self._shown, self._fresh = len(self._decode(self._window)), 1
        self._window.append(token)
        text = self._decode(self._window)
        new = self._advance(text, len(text.rstrip(_REPLACEMENT)))
        self._is_settled = bool(new) and self._shown == len(text)
        if self._is_settled:
            self._cut(self._fresh, pending=0)
            self._fresh = len(self._window)
        elif len(self._window) > _LONGEST_WINDOW:
            new += self._advance(text, len(text) - _MOST_PENDING)
            self._cut(self._border(text), pending=len(text) - self._shown)
            self._fresh = 0
        return new

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        if self._last is not None:
            return ""
        new = self._decode(self._window)[self._shown :]
        self._shown += len(new)
        return new

    def fork(self) -> Detokenizer:
        """Another one at the same place, for an answer that goes on differently from here."""
        forked = copy.copy(self)
        forked._window = self._window.copy()
        return forked

    def _is_silent(self, token: int) -> bool:
        return token in self._dropped or token >= self._known

    def _advance(self, text: str, certain: int) -> str:
        """Show the window's text up to ``certain``."""
        new = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        return new

    def _cut(self, first: int, *, pending: int) -> None:
        """Forget the tokens before ``first``, whose text has been shown; the last ``pending`` characters have not."""
        if first:
            self._window = self._window[first:]
            self._shown = len(self._decode(self._window)) - pending

    def _border(self, text: str) -> int:
        """The last place where the window can be cut without changing its text or losing what is pending; 0 if none."""
        pending = len(text) - self._shown
        for cut in range(len(self._window) - 1, 0, -1):
            rest = self._decode(self._window[cut:])
            if len(rest) >= pending and self._decode(self._window[:cut]) + rest == text:
                return cut
        return 0


class UnspacedDetokenizer(Detokenizer):
    """The same, special tokens shown, without the spaces that some decoders put between two added tokens.

    Spaces that are such a token's own stay.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        super().__init__(tokenizer, prompt, skip_special_tokens=False)
        self._added = tokenizer.added_texts
        self._follows_added = False

    def push(self, token: int) -> str:
        text = super().push(token)
        own = self._added.get(token)
        if own is not None and self._follows_added and text.endswith(own) and text[: -len(own)].isspace():
            text = own
        self._follows_added = own is not None
        return text


def make_detokenizer(tokenizer: Tokenizer, prompt: Sequence[int], params: SamplingParams) -> Detokenizer:
    """The one that shows an answer to ``prompt`` as its parameters say."""
    if params.skip_special_tokens or params.spaces_between_special_tokens:
        return Detokenizer(tokenizer, prompt, skip_special_tokens=params.skip_special_tokens)
    return UnspacedDetokenizer(tokenizer, prompt)
