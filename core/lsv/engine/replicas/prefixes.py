"""What a replica holds of a prompt, as far as the prompts tell that were sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from lsv.kv.prefix import block_hash, media_in, pack_extras
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec

Chain = tuple[bytes, ...]
"""The names of a prompt's full blocks, in order."""


def name_blocks(request: RequestSpec, block_size: int) -> tuple[Chain, ...]:
    """The chain of each prompt. Names are made as the cache makes them, but with the adapter's name for its hash: they
    are only compared with each other.
    """
    adapter = request.adapter.encode()
    return tuple(tuple(_chain(prompt, block_size, request.salt, adapter)) for prompt in request.prompts)


def _chain(prompt: Prompt, size: int, salt: bytes, adapter: bytes) -> Iterator[bytes]:
    parent = b""
    for start in range(0, len(prompt.ids) - size + 1, size):
        extras = pack_extras(salt=salt, media=media_in(prompt.media, start, start + size), adapter=adapter)
        parent = block_hash(parent, prompt.ids[start : start + size], extras)
        yield parent


class HeldBlocks:
    """The blocks that were sent last, as many as the replica's cache has room for."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def count(self, chain: Chain) -> int:
        """How many blocks from the beginning are held."""
        return next((place for place, name in enumerate(chain) if name not in self._names), len(chain))

    def add(self, chains: Sequence[Chain], room: int) -> None:
        """These have been sent. Of all, at most ``room`` blocks stay; of a prompt, the first ones longest."""
        for chain in chains:
            for name in reversed(chain):
                self._names[name] = None
                self._names.move_to_end(name)
        while len(self._names) > room:
            self._names.popitem(last=False)

    def clear(self) -> None:
        """The replica's cache is empty."""
        self._names.clear()
