"""Log probabilities in the three shapes that clients of the OpenAI API and of vLLM expect."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.request.outputs import PositionLogprobs, TokenLogprob
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

    def __init__(self, as_ids: bool) -> None:
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
        best = [
            TopLogprob(self.token(entry), _finite(entry.logprob), _bytes(entry))
            for entry in _most_likely(position, top)
        ]
        return ChatLogprob(self.token(chosen), _finite(chosen.logprob), _bytes(chosen), best)


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
    return [
        None
        if position is None
        else {str(entry.id): PromptLogprob(_finite(entry.logprob), entry.rank, entry.text) for entry in position}
        for position in positions
    ]


def _most_likely(position: PositionLogprobs, top: int) -> list[TokenLogprob]:
    """The ``top`` best candidates in order; the chosen token is among them only if its rank is."""
    by_rank = {entry.rank: entry for entry in position if entry.rank <= top}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _bytes(entry: TokenLogprob) -> list[int]:
    return list(entry.text.encode("utf-8"))
