"""What a process that runs a checkpoint's code is told, and what it replies."""

from __future__ import annotations

import msgspec


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first command: the checkpoint's folder, and its class as ``module.Class``. Nothing of it runs yet."""

    folder: str
    reference: str
    code: str
    """The folder of its modules: the same, or that of another revision."""


class MakeConfig(msgspec.Struct, frozen=True, tag=True):
    """Make a config of what config.json holds (JSON)."""

    given: bytes


class Config(msgspec.Struct, frozen=True, tag=True):
    """All keys of the config that was made, as JSON."""

    made: bytes


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Load the tokenizer and say what it is."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the vocabulary."""

    id: int
    content: str
    special: bool


class Description(msgspec.Struct, frozen=True, tag=True):
    """A tokenizer: either ``fast``, tokenizer.json as text, which needs its code no more; or all but how it encodes."""

    fast: str = ""
    pieces: tuple[str, ...] = ()
    """By id, as they stand in the vocabulary; empty where there is no token."""
    texts: tuple[str, ...] = ()
    """By id, what each is decoded to alone."""
    added: tuple[AddedToken, ...] = ()
    named: dict[str, str] = {}
    """``bos_token`` and its like."""


class Encode(msgspec.Struct, frozen=True, tag=True):
    text: str
    special: bool
    """Whether to add special tokens."""


class Ids(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]


class Decode(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]
    skip: bool
    """Whether to leave special tokens out."""


class Text(msgspec.Struct, frozen=True, tag=True):
    text: str


Command = MakeConfig | Describe | Encode | Decode
Reply = Config | Description | Ids | Text
