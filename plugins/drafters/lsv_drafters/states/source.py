"""The weights of heads, and of the model that answers where heads use its embeddings or its matrix of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lsv_runtime.weights.checkpoint import CheckpointSource, JoinedSource, TensorInfo, read_region
from lsv_runtime.weights.regions import Region

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"


class Shared(JoinedSource):
    """``own`` tensors, renamed, and those of ``other`` that go by the common names, where ``own`` has none such."""

    def __init__(self, own: CheckpointSource, rename: Callable[[str], str], other: CheckpointSource) -> None:
        places = {rename(name): (own, name) for name in own.tensors()}
        for name, also in ((EMBED, ()), (HEAD, (EMBED,))):
            if name not in places and (found := _find(other, (name, *also))):
                places[name] = (other, found)
        super().__init__((own, other), places)


class WithAliases:
    """Another source: what it lacks goes by the first of the ``aliases`` that it has."""

    def __init__(self, source: CheckpointSource, aliases: Mapping[str, Sequence[str]]) -> None:
        self._source, held = source, source.tensors()
        lacking = {name: [one for one in others if one in held] for name, others in aliases.items() if name not in held}
        self._names = {name: others[0] for name, others in lacking.items() if others}
        self._infos = {**held, **{name: held[other] for name, other in self._names.items()}}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        return self._source.read(self._names.get(name, name), first, last)

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        return read_region(self._source, self._names.get(name, name), region)

    def close(self) -> None:
        self._source.close()


def _find(source: CheckpointSource, names: tuple[str, ...]) -> str | None:
    """The tensor that has one of these names, or ends with it below others; a tied head is the embedding."""
    every = sorted(source.tensors(), key=len)
    return next((one for name in names for one in every if one == name or one.endswith(f".{name}")), None)
