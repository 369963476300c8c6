"""Perplexity of a text: each token is scored once, in a window that slides over the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.eval.asking import Span, log_likelihoods

if TYPE_CHECKING:
    from lsv import LLM
    from lsv.text.tokenizer import Tokenizer

_CONTEXT = 1024
"""Tokens of a window unless another number is asked for."""


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """``nll`` is the negative log-likelihood in nats of the ``tokens`` that were scored; ``bytes`` are theirs in UTF-8.

    ``perplexity`` is e^(nll / tokens); ``bits_per_byte`` does not depend on the tokenizer. ``parts`` is each window's
    share of ``nll``.
    """

    tokens: int
    bytes: int
    nll: float
    perplexity: float
    bits_per_byte: float
    context: int
    stride: int
    parts: Sequence[float] = ()


def spans(ids: Sequence[int], context: int, stride: int) -> Iterator[Span]:
    """Windows of at most ``context`` tokens, each ``stride`` tokens further than the one before.

    The first scores all its tokens but the first, later ones those that are new: a token has at least
    ``context - stride`` tokens before it wherever the text does.
    """
    done, stop = 1, min(context, len(ids))
    while done < len(ids):
        start = max(0, stop - context)
        yield Span(ids[start:stop], done - start)
        done, stop = stop, min(stop + stride, len(ids))


def choose_windows(asked: int | None, stride: int | None, longest: int) -> tuple[int, int]:
    """Context and stride, by default half a context. Raises ``ConfigError``; ``longest`` is the engine's longest
    request, of which one token is its answer's.
    """
    context = min(_CONTEXT, longest - 1) if asked is None else asked
    if context >= longest:
        raise ConfigError(
            f"context={context}: the longest request is {longest} tokens, so at most {longest - 1}", param="context"
        )
    chosen = max(1, context // 2) if stride is None else stride
    if chosen >= context:
        raise ConfigError(f"stride={chosen} must be less than context={context}", param="stride")
    return context, chosen


def measure_perplexity(
    llm: LLM, text: str, context: int, stride: int, done: Callable[[], None] = lambda: None
) -> Perplexity:
    """Perplexity over all tokens but the first, which nothing precedes; ``done`` is called after each window.

    Raises ``ConfigError`` for a text of less than two tokens.
    """
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise ConfigError(f"the text has {len(ids)} token(s): perplexity needs two at least", param="text")
    windows: dict[int, float] = {}
    for number, likelihood in log_likelihoods(llm, spans(ids, context, stride)):
        windows[number] = -likelihood
        done()
    parts = [windows[number] for number in range(len(windows))]
    nll, scored = math.fsum(parts), len(ids) - 1
    size = len(text.encode()) - _unscored_bytes(ids[0], tokenizer)
    return Perplexity(
        tokens=scored, bytes=size, nll=nll, perplexity=math.exp(nll / scored),
        bits_per_byte=nll / math.log(2) / size, context=context, stride=stride, parts=parts,
    )  # fmt: skip


def _unscored_bytes(first: int, tokenizer: Tokenizer) -> int:
    """Bytes of the text in its first token; none in one that the tokenizer put before it."""
    return 0 if first in tokenizer.special_ids else len(tokenizer.decode([first]).encode())
