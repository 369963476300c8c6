"""Several checkpoints as one: the model's own, and those of its parts below their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lsv_runtime.weights.checkpoint import CheckpointSource, JoinedSource


class PartedSource(JoinedSource):
    """Tensors of ``own``, and of each of ``parts`` with the name of its place before theirs. What ``own`` has under any
    spelling that ``rename`` makes one is read there.
    """

    def __init__(
        self, own: CheckpointSource, parts: Mapping[str, CheckpointSource], rename: Callable[[str], str]
    ) -> None:
        places = {name: (own, name) for name in own.tensors()}
        self.added: dict[str, frozenset[str]] = {}
        """The names of the tensors that a part is read for, by its place, as ``rename`` gives them."""
        self.shadowed: dict[str, frozenset[str]] = {}
        """Those that ``own`` has instead."""
        taken = frozenset(map(rename, own.tensors()))
        for place, source in parts.items():
            renamed = {name: rename(f"{place}.{name}") for name in source.tensors()}
            self.shadowed[place] = taken.intersection(renamed.values())
            self.added[place] = frozenset(renamed.values()) - taken
            places |= {f"{place}.{name}": (source, name) for name, to in renamed.items() if to not in taken}
        super().__init__((own, *parts.values()), places)
