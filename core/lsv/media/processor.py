"""The seam to families that take media: how an item becomes the encoder's inputs, and where it stands in a prompt.

Processors run in worker processes, which may be killed; placements run where prompts are made. Neither needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from lsv.request.media import Array, Media, Modality, Positions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


SOUND = "use_audio_in_video"
"""The option that asks for the sound of a video, of processors that can use it: true or false."""


@dataclass(frozen=True, slots=True)
class Image:
    """uint8 [height, width, 3], RGB, upright, without transparency."""

    pixels: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Audio:
    """float32 [samples] in -1 … 1, one channel; ``rate`` samples a second."""

    samples: npt.NDArray[np.float32]
    rate: int


@dataclass(frozen=True, slots=True)
class Video:
    """uint8 [frames, height, width, 3], RGB; ``times`` float32 [frames] in seconds from the beginning.

    ``sound`` is what is heard meanwhile, where that was asked for (``SOUND``) and there is any.
    """

    frames: npt.NDArray[np.uint8]
    times: npt.NDArray[np.float32]
    sound: Audio | None = None


Content = Image | Audio | Video


class Processed(msgspec.Struct, frozen=True):
    """What a processor makes of one item."""

    inputs: Mapping[str, Array]
    """What the model's encoder takes, by name."""
    tokens: tuple[int, ...]
    """They replace the item's placeholder in the prompt."""
    start: int
    """The first of ``tokens`` that gets an embedding."""
    count: int
    """How many of ``tokens`` get the embeddings that the encoder makes of ``inputs``."""
    cross: bool = False
    """Cross-attention layers attend to its embeddings: from every token, where it has no placeholder and no ``tokens``,
    else from its placeholder on, which then is one of ``tokens`` (``Attended``)."""
    more: tuple[Processed, ...] = ()
    """What follows in the stead of the same placeholder, such as a video's later frames between texts of their own;
    each is encoded by itself."""

    @property
    def parts(self) -> tuple[Processed, ...]:
        """The item in its order; most are whole."""
        return (self, *self.more)


class Processor(Protocol):
    """Made by ``ProcessorOffer.load``, a ``(folder, config) -> Processor``, in a worker process.

    ``folder`` is the checkpoint's, ``config`` its config.json. It may import transformers and PIL.
    """

    rate: int
    """Samples a second that audio is resampled to; 0 where it takes none."""

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        """Raises ``BadRequest`` for an option that it does not know or content that the model can't take.

        ``options`` are those of ``--mm-processor-kwargs`` and of the request; ``fps`` and ``num_frames`` have chosen a
        video's frames and are not among them.
        """
        ...


@runtime_checkable
class Resizing(Protocol):
    """What a ``Processor`` adds that makes all images small: large ones then need not be decoded in full."""

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """The width and height that ``process`` resizes such an image to, before it cuts anything off."""
        ...


class Placement(Protocol):
    """Made by ``ProcessorOffer.place``, a ``(folder, config) -> Placement``, where prompts are made; light."""

    placeholders: Mapping[Modality, int]
    """The token of which the templated prompt has one for each item of a modality that has a place."""

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        """Where the tokens of a prompt with its items in place stand; None where they stand one after the other."""
        ...


@runtime_checkable
class Marking(Protocol):
    """What a ``Placement`` adds where the text of a prompt has something else for an item than a placeholder."""

    marks: Mapping[Modality, str]
    """What stands for an item in a text, and in messages for templates that take texts alone."""

    frames: bool
    """Whether ``spell`` writes the special tokens that the tokenizer would put around a text."""

    def spell(self, text: str) -> str:
        """A prompt's text as it is tokenised: with one placeholder, and what belongs around it, for each mark."""
        ...


@runtime_checkable
class Completing(Protocol):
    """What a ``Placement`` adds whose prompts with media are the family's own to lay out."""

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """A prompt with so many items, one or more, with the placeholders and the other tokens that it may lack.

        Raises ``BadRequest`` for more items than the family takes.
        """
        ...


@runtime_checkable
class Attended(Protocol):
    """What a ``Placement`` adds whose placeholders stay in the prompt: tokens from there on attend to the item."""

    attended: bool
    """Always true."""


@runtime_checkable
class Widened(Protocol):
    """What a ``Placement`` adds whose encoder makes rows wider than the states of the language model."""

    width: int
    """The numbers of each of the embeddings that a caller may give instead of an item."""
