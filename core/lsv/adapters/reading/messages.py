"""Commands to the process that reads an adapter, and its replies."""

from __future__ import annotations

import msgspec


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first command: describes the files whose descriptors the process inherited."""

    folder: str
    weights: str
    """The name of the file with the weights."""
    pickled: bool
    """Whether torch saved that file."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Check the configuration and hash the files."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read all tensors. Replies: the layout, each tensor's data in pieces, then the hash of the files."""

    max_rank: int


class Stored(msgspec.Struct, frozen=True):
    """A stored tensor without its data."""

    dtype: str
    """Its name in torch."""
    shape: tuple[int, ...]


class Module(msgspec.Struct, frozen=True):
    """What an adapter has for one module of the model."""

    name: str
    tensors: dict[str, Stored]
    """By kind; ``copy`` replaces the whole weight. The data follows in this order."""
    scale: float = 1.0
    """Factor of the product of the two matrices."""
    base: tuple[int, ...] | None = None
    """The shape of the base weight, if the file has it too."""


class Layout(msgspec.Struct, frozen=True, tag=True):
    """All modules of an adapter. Their data follows in the same order."""

    modules: tuple[Module, ...]


class Piece(msgspec.Struct, frozen=True, tag=True):
    """The next bytes of a tensor. A piece never holds bytes of two tensors."""

    data: bytes


class Digest(msgspec.Struct, frozen=True, tag=True):
    """The last reply to a command: the sha256 of the adapter's files, as ``lsv.adapters.peft.digest`` computes it."""

    found: bytes


Command = Look | Read
Reply = Layout | Piece | Digest
