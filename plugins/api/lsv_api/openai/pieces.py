"""Texts that are longer than the context: read in pieces, of whose vectors one is made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import mul

import msgspec

from lsv.engine.admission import Admission
from lsv.engine.client import Vector
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest


class Pieces(msgspec.Struct, frozen=True):
    """What the engine reads of the texts of a request."""

    prompts: Sequence[Prompt]
    counts: Sequence[int]
    """How many of ``prompts`` each text has become."""

    @classmethod
    def cut(cls, prompts: Sequence[Prompt], admission: Admission, most: int) -> Pieces:
        """Cut the prompts that do not fit the context. Raises ``BadRequest`` for one that is longer than the operator
        allows, and for more than ``most`` pieces.
        """
        longest = admission.pooler.longest
        for prompt in prompts:
            if longest is not None and len(prompt.ids) > longest:
                raise BadRequest(
                    f"input: a text has {len(prompt.ids)} tokens, and at most {longest} are read (max_embed_len of "
                    "--pooler-config): shorten it",
                    param="input",
                )
        cut = [admission.frame.split(prompt.ids, admission.longest_text) for prompt in prompts]
        if (total := sum(map(len, cut))) > most:
            raise BadRequest(
                f"input: these texts are {total} pieces of at most {admission.longest_text} tokens, and at most {most} "
                "prompts are taken (--api-max-prompts): send fewer or shorter texts",
                param="input",
            )
        whole = [Prompt(ids=ids) for pieces in cut for ids in pieces]
        return cls(whole, [len(pieces) for pieces in cut])

    def join(self, vectors: Sequence[Vector], *, normalize: bool) -> list[Vector]:
        """A vector for each text: the mean of its pieces' vectors, weighted by their tokens.

        ``vectors`` are not scaled; those returned have unit length if ``normalize``. For a model that pools by the mean
        this is the mean over all tokens, each of which has seen its own piece.
        """
        rows = iter(zip(vectors, (len(prompt.ids) for prompt in self.prompts), strict=True))
        means = (_mean(islice(rows, count)) for count in self.counts)
        return [_unit(mean) if normalize else mean for mean in means]


def _mean(weighted: Iterator[tuple[Vector, int]]) -> Vector:
    vectors, weights = zip(*weighted, strict=True)
    total = sum(weights)
    return tuple(sum(map(mul, column, weights)) / total for column in zip(*vectors, strict=True))


def _unit(vector: Vector) -> Vector:
    length = math.hypot(*vector) or 1.0
    return tuple(value / length for value in vector)
