"""Log probabilities in the three shapes that clients of the OpenAI API and of vLLM expect."""

from __future__ import annotations

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

LOWEST = -9999.0
"""Stands for minus infinity, which JSON can't say."""


class LogprobWriter:
    """Writes positions; ``as_ids`` shows tokens as ``token_id:17`` instead of their text."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._as_ids = as_ids

    def chat(self, positions: Sequence[PositionLogprobs], top: int) -> ChatLogprobs:
        """``top`` most likely candidates beside each chosen token."""
        return ChatLogprobs([self._chat_position(position, top) for position in positions])

    def completion(
        self, positions: Sequence[PositionLogprobs | None], prompt: Sequence[int], offset: int, top: int
    ) -> CompletionLogprobs:
        """Parallel lists; ``offset`` is where the first token's text begins in the choice's text.

        A position that is None stands for the first prompt token, ``prompt[0]``, which nothing predicted.
        """
        shown = CompletionLogprobs([], [], [], [])
        for position in positions:
            if position is None:
                self._add(shown, self._name(prompt[0], ""), None, None, offset)
                continue
            chosen = position[0]
            best = {self.token(entry): _finite(entry.logprob) for entry in (chosen, *_most_likely(position, top))}
            self._add(shown, self.token(chosen), _finite(chosen.logprob), best if top else None, offset)
            offset += len(chosen.text)
        return shown

    def token(self, entry: TokenLogprob) -> str:
        return self._name(entry.id, entry.text)

    def _name(self, token: int, text: str) -> str:
        return f"token_id:{token}" if self._as_ids else text

    @staticmethod
    def _add(
        shown: CompletionLogprobs,
        token: str,
        logprob: float | None,
        best: dict[str, float] | None,
        offset: int,
    ) -> None:
        shown.tokens.append(token)
        shown.token_logprobs.append(logprob)
        shown.top_logprobs.append(best)
        shown.text_offset.append(offset)

    def _chat_position(self, position: PositionLogprobs, top: int) -> ChatLogprob:
        chosen = position[0]
        best = [TopLogprob(*self._shown(entry)) for entry in _most_likely(position, top)]
        return ChatLogprob(*self._shown(chosen), best)

    def _shown(self, entry: TokenLogprob) -> tuple[str, float, list[int]]:
        return self.token(entry), _finite(entry.logprob), list(self._token_bytes(entry.id))


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
