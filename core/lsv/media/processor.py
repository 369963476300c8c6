"""The seam to families that take media: how an item becomes the encoder's inputs, and where it stands in a prompt.

Processors run in side processes, which may be killed; placements run where prompts are made. Neither needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lsv.request.media import Array, Media, Modality, Positions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Picture:
    """uint8 [height, width, 3], RGB, upright, without transparency."""

    pixels: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Sound:
    """float32 [samples] in -1 … 1, one channel; ``rate`` samples a second."""

    samples: npt.NDArray[np.float32]
    rate: int


@dataclass(frozen=True, slots=True)
class Clip:
    """uint8 [frames, height, width, 3], RGB; ``times`` float32 [frames] in seconds from the beginning."""

    frames: npt.NDArray[np.uint8]
    times: npt.NDArray[np.float32]


Content = Picture | Sound | Clip


class Processed(msgspec.Struct, frozen=True):
    """What a processor makes of one item.

    ``tokens`` take the place of the item's placeholder in the prompt; of these, ``count`` from ``start`` on get the
    embeddings that the encoder makes of ``inputs``. A ``cross`` item has no placeholder and no tokens: layers attend to
    its ``count`` embeddings from every token.
    """

    inputs: Mapping[str, Array]
    tokens: tuple[int, ...]
    start: int
    count: int
    cross: bool = False


class Processor(Protocol):
    """Made by ``ProcessorOffer.load``, a ``(folder, config) -> Processor``, in a side process.

    ``folder`` is the checkpoint's, ``config`` its config.json. It may import transformers and PIL.
    """

    rate: int
    """Samples a second it wants sounds in; 0 where it takes none."""

    def prepare(self, content: Content, options: Mapping[str, Any]) -> Processed:
        """Raises ``BadRequest`` for an option that it does not know or content that the model can't take.

        ``options`` are those of ``--mm-processor-kwargs`` and of the request; ``fps`` and ``num_frames`` have chosen a
        clip's frames and are not among them.
        """
        ...


class Placement(Protocol):
    """Made by ``ProcessorOffer.place``, a ``(config) -> Placement``, where prompts are made; light.

    ``placeholders`` are the ids of which the templated prompt has one for each item of a modality that has a place.
    """

    placeholders: Mapping[Modality, int]

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        """Where the tokens of an expanded prompt stand; None where that is one after the other."""
        ...


def expand(
    ids: Sequence[int], items: Sequence[tuple[Modality, bytes, Processed]], placement: Placement
) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    """The prompt with every placeholder replaced by its item's tokens, and the media with their places in it.

    ``items`` are (modality, hash, processed) in the order of their placeholders. Raises ``ValueError`` where
    placeholders and items do not match one to one.
    """
    expanded: list[int] = []
    media = [
        Media(hash, modality, 0, processed.count, processed.inputs, cross=True)
        for modality, hash, processed in items
        if processed.cross
    ]
    coming = (item for item in items if not item[2].cross)
    modalities = {token: modality for modality, token in placement.placeholders.items()}
    for token in ids:
        if token not in modalities:
            expanded.append(token)
            continue
        item = next(coming, None)
        if item is None or item[0] != modalities[token]:
            what = "nothing" if item is None else f"an item of kind {item[0]}"
            raise ValueError(f"the prompt has a place for an item of kind {modalities[token]} where there is {what}")
        modality, hash, processed = item
        media.append(Media(hash, modality, len(expanded) + processed.start, processed.count, processed.inputs))
        expanded += processed.tokens
    left = sum(1 for _ in coming)
    if left:
        raise ValueError(f"{left} of {len(items)} items have no place in the prompt")
    return tuple(expanded), tuple(media)
