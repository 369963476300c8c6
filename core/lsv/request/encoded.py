"""Prompts of models that encode text: what the encoder reads is an item beside the ids that the answer goes on from."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

from lsv.request.media import Array, Media, cross_item
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest

IDS = "ids"
"""The input of a model's encoder of text: int64 [count], the tokens to read."""
_DTYPE = "int64"


class EncodedText(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompts of a model that encodes text begin, as its checkpoint says."""

    start: int
    """The token that every decoder's prompt begins with."""

    forced: tuple[int, ...] = ()
    """What follows it where a request says nothing else, such as the target's language."""

    forbidden: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that no answer holds."""

    vocab_size: int
    """Token ids of the encoder are below it."""

    def place(
        self, encoder: Sequence[int], decoder: Sequence[int] | None = None, *, texts: tuple[str | None, str | None]
    ) -> Prompt:
        """The prompt of a text to encode and, where a request has one, the beginning of the answer.

        ``texts`` are those of encoder and decoder, where they were given as such. Raises ``BadRequest``.
        """
        if not encoder:
            raise BadRequest("encoder_prompt is empty: it needs at least one token", param="encoder_prompt")
        wrong = next((token for token in encoder if type(token) is not int or not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise BadRequest(
                f"encoder_prompt: {wrong!r:.50} is not a token id of the encoder (0 to {self.vocab_size - 1})",
                param="encoder_prompt",
            )
        return Prompt(
            ids=self._begin(decoder or ()), text=texts[1], media=(_item(encoder),), encoder_text=texts[0],
        )  # fmt: skip

    def complete(self, prompt: Prompt) -> Prompt:
        """A prompt whose tokens are all for the encoder, placed; one that has been placed as it is."""
        if cross_item(prompt.media) is not None:
            return prompt
        return self.place(prompt.ids, texts=(prompt.text, None))

    def _begin(self, decoder: Sequence[int]) -> tuple[int, ...]:
        ids = tuple(decoder)
        if ids[:1] != (self.start,):
            ids = (self.start, *ids)
        return (*ids, *self.forced) if len(ids) == 1 else ids


def encoded_ids(prompt: Prompt) -> tuple[int, ...] | None:
    """The tokens of a prompt that an encoder of text reads; None for one without."""
    item = cross_item(prompt.media)
    if item is None or item.modality != "text":
        return None
    data = item.inputs[IDS].data
    assert isinstance(data, bytes), "the data of a prompt's own item have been moved"
    return struct.unpack(f"={item.count}q", data)


def _item(ids: Sequence[int]) -> Media:
    data = struct.pack(f"={len(ids)}q", *ids)
    digest = hashlib.sha256(b"text" + data).digest()
    return Media(digest, "text", 0, len(ids), {IDS: Array(_DTYPE, (len(ids),), data)}, cross=True)
