"""What the outputs of a request hold while its answers grow."""

from __future__ import annotations

from enum import Enum

from lsv_base.errors import BadRequest


class RequestOutputKind(Enum):
    """Chosen by ``SamplingParams.output_kind``; names and values are vLLM's."""

    CUMULATIVE = 0
    """Each output holds the answers so far."""

    DELTA = 1
    """Each output holds what is new since the one before."""

    FINAL_ONLY = 2
    """There is one output, with the whole answers."""


def check_output_kind(kind: object, *, ranked: bool) -> None:
    """Raises ``BadRequest`` for another type, and for DELTA if answers are ``ranked``, because their order changes."""
    if not isinstance(kind, RequestOutputKind):
        raise BadRequest(f"output_kind must be a RequestOutputKind, got {kind!r:.100}", param="output_kind")
    if ranked and kind is RequestOutputKind.DELTA:
        raise BadRequest(
            "output_kind DELTA can't be combined with best_of above n or beam search, which rank answers at the end",
            param="output_kind",
        )
