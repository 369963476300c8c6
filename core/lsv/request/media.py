"""What of a prompt goes to the encoder: images, audio and video from preprocessing, and text that is encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Modality = Literal["image", "audio", "video"]

EMBEDDINGS = "embeddings"
"""The name of the input that holds an item's embeddings, if the caller computed them: the encoder is skipped then."""

MEDIA_REFUSED = "this model can't read the "
"""How the reason begins if the model's encoder refuses an item: the client's fault, not the engine's."""


Mutual = Literal["", "items", "prompts"]
"""Whose tokens see one another, later ones included: nothing's, those of each item of media, those of a prompt."""

Span = tuple[int, int]
"""Tokens of a sequence: the index of the first one, and that behind the last."""


class Stored(msgspec.Struct, frozen=True):
    """Bytes in memory that another process shares; ``lsv.media.shared`` reads them."""

    path: str
    """Where to open the memory, as long as its owner has not closed it."""

    offset: int
    """Where they begin, in bytes."""

    size: int
    """How many there are."""


class Array(msgspec.Struct, frozen=True):
    """Numbers on their way: ``data`` holds an array of ``shape`` in row order, in the byte order of this machine.

    ``dtype`` is spelt as torch does (``"float32"``). Between processes, long data travel by reference.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | Stored

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return self.data.size if isinstance(self.data, Stored) else len(self.data)


class Media(msgspec.Struct, frozen=True):
    """One item of a prompt. Its embeddings take the places of the ``count`` tokens from ``start`` on; those of a
    ``cross`` item take none.
    """

    hash: bytes
    """32 bytes that name the embeddings: they cover the content, how it was prepared and for which model."""
    modality: Modality | Literal["text"]
    start: int
    """Index of its first token in the prompt; of a ``cross`` item that of the first token that attends to it."""
    count: int
    """How many embeddings it has."""
    inputs: Mapping[str, Array] = {}
    """What the model's encoder takes, by name."""
    cross: bool = False
    """Whether its embeddings are not in the prompt: the cross-attention layers attend to them, from every token on
    that is at ``start`` or behind it."""

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def size(self) -> int:
        """Bytes of the inputs."""
        return sum(array.size for array in self.inputs.values())


def keep_apart(media: tuple[Media, ...], salt: bytes) -> tuple[Media, ...]:
    """The items under names of one tenant, so that timing does not reveal the media of other tenants."""
    if not salt:
        return media
    prefix = len(salt).to_bytes(4, "little") + salt
    return tuple(msgspec.structs.replace(item, hash=hashlib.sha256(prefix + item.hash).digest()) for item in media)


def spans_of(media: Iterable[Media]) -> tuple[Span, ...]:
    """Where in a prompt items are."""
    return tuple((item.start, item.stop) for item in media if not item.cross)


def cross_item(media: Iterable[Media]) -> Media | None:
    """The item that the cross-attention layers attend to, if there is one."""
    return next((item for item in media if item.cross), None)


class Positions(msgspec.Struct, frozen=True):
    """Where the tokens of a prompt stand along each axis of a rotary embedding with several: int32 [axes, prompt].

    The token at index i behind the prompt stands at ``i + offset`` on every axis.
    """

    axes: int
    data: bytes
    offset: int
