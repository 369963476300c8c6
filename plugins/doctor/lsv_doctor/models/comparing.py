"""Answers of the engine beside the reference: every position's log probabilities, and the greedy tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

TOLERANCE = 1e-4
"""Of the largest log probability, and of one at least: float32 has no more digits."""
TIE = 1e-4
"""Two tokens whose log probabilities differ by less are equally likely."""
NEVER = -1e30
"""The log probability of a token that is never sampled: an embedding may have rows that the matrix of logits lacks."""

Positions = Sequence[Mapping[int, Any] | None] | None


Expected = Callable[[Sequence[int], Sequence[int], int], torch.Tensor]
"""The reference's log probabilities after each of some tokens, given what its encoder reads and how many of the tokens
are the prompt."""


def find_difference(answers: Sequence[Any], expected: Expected, stops: Collection[int] = ()) -> str:
    """The first answer that is not the reference's, in words; empty when all are.

    ``answers`` are finished ``RequestOutput``s with log probabilities. What comes after one of the tokens ``stops``,
    which the reference does not take for text, is left out; a prompt may begin with one.
    """
    for number, answer in enumerate(answers):
        if answer.error:
            return f"a prompt of {len(answer.prompt_token_ids)} fails: {answer.error}"
        ids, start = [*answer.prompt_token_ids, *answer.outputs[0].token_ids], len(answer.prompt_token_ids)
        end = next((place for place, token in enumerate(ids) if place and token in stops), len(ids))
        ids = ids[: end + 1]
        wanted = expected(ids[:-1], answer.encoder_prompt_token_ids or (), start)
        for position, found in _positions(answer):
            if position + 1 < len(ids) and (why := _differs(found, wanted[position])):
                return f"prompt {number} of {start}, position {position}: {why}"
        for position, token in enumerate(ids[start:], start - 1):
            gap = float(wanted[position].max() - wanted[position][token])
            if gap > TIE:
                return (
                    f"prompt {number} of {start}: token {position - start + 2} is {gap:.1e} less likely than the best"
                )
    return ""


def _positions(answer: Any) -> Iterator[tuple[int, Mapping[int, Any]]]:
    """Positions and the log probabilities of the token after each."""
    for position, found in enumerate((answer.prompt_logprobs or ())[1:]):
        if found:
            yield position, found
    yield from enumerate(answer.outputs[0].logprobs or (), len(answer.prompt_token_ids) - 1)


def _differs(found: Mapping[int, Any], wanted: torch.Tensor) -> str:
    ids = torch.tensor(list(found))
    given = torch.tensor([one.logprob for one in found.values()])
    inside = ids < len(wanted)
    if bool((given[~inside] > NEVER).any()):
        return f"there is a token {int(ids.max())}, of {len(wanted)}"
    ids, given = ids[inside], given[inside]
    gaps = (given - wanted[ids]).abs()
    worst = int(gaps.nan_to_num(float("inf")).argmax())
    largest = float(wanted[wanted.isfinite()].abs().max())
    if bool(gaps[worst] <= TOLERANCE * max(1.0, largest)):
        return ""
    return f"log probability of {int(ids[worst])} is {float(given[worst]):.4f}, not {float(wanted[ids[worst]]):.4f}"
