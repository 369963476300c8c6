"""What a process that reads an adapter is told, and what it replies."""

from __future__ import annotations

import msgspec


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first command: which files the descriptors are, which come before the channel's."""

    folder: str
    weights: str
    """The name of the file with the weights."""
    pickled: bool
    """Whether torch has saved that file."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Check the configuration and find the hash of the files."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read all tensors: reply with the layout, each tensor's data in pieces, and the hash of the files."""

    max_rank: int


class Stored(msgspec.Struct, frozen=True):
    """A stored tensor without its data."""

    dtype: str
    """Torch's name of it."""
    shape: tuple[int, ...]


class Module(msgspec.Struct, frozen=True):
    """What an adapter has for one module of the model."""

    name: str
    tensors: dict[str, Stored]
    """By kind; ``copy`` is one of the whole weight. Their data follow in this order."""
    scale: float = 1.0
    """What the product of its two matrices is multiplied by."""
    base: tuple[int, ...] | None = None
    """The shape of the base's weight, where that is stored, too."""


class Layout(msgspec.Struct, frozen=True, tag=True):
    """All that an adapter has, in the order in which its data follow."""

    modules: tuple[Module, ...]


class Piece(msgspec.Struct, frozen=True, tag=True):
    """The next bytes of a tensor. A piece never holds bytes of two tensors."""

    data: bytes


class Digest(msgspec.Struct, frozen=True, tag=True):
    """The sha256 of the adapter's files, as ``lsv.adapters.peft.digest`` has it; the last reply to a command."""

    found: bytes


Command = Look | Read
Reply = Layout | Piece | Digest
