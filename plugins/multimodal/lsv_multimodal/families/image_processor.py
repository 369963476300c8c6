"""transformers' image processors as families use them here: with PIL, one image at a time, numpy arrays out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Content, Image
from lsv.request.media import Array
from lsv_base.errors import BadRequest, CheckpointError

_THINNEST = 200
"""A longer side of so many shorter ones is not an image: scaled up to a tower's size it would fill the memory."""


def load_image_processor(folder: Path) -> Any:
    """The image processor a checkpoint names. Raises ``CheckpointError`` where there is none."""
    from transformers import AutoImageProcessor

    loader: Any = AutoImageProcessor
    try:
        return loader.from_pretrained(str(folder), backend="pil", local_files_only=True)
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{folder} has no image processor: preprocessor_config.json is missing") from cause


def check_squares(made: Sequence[int], size: int, what: str = "images", taker: str = "tower") -> None:
    """Raises ``CheckpointError`` where the two sides ``made`` by an image processor are not the ``size`` that the taker
    takes.
    """
    if tuple(made) != (size, size):
        raise CheckpointError(
            f"the image processor makes {what} of {made[0]} x {made[1]}, the {taker} takes {size} x {size}: mend "
            "preprocessor_config.json"
        )


def check_image(content: Content) -> npt.NDArray[np.uint8]:
    """The pixels of an image [height, width, 3]. Raises ``BadRequest`` for content or a form that towers can't take."""
    if not isinstance(content, Image):
        raise BadRequest("this model takes images, no audio and no video")
    height, width = content.pixels.shape[:2]
    if max(height, width) > _THINNEST * min(height, width):
        raise BadRequest(f"an image of {width} x {height} is too thin: at most {_THINNEST} times as long as wide")
    return content.pixels


def run(processor: Any, content: Content, **options: Any) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays made of one image. Raises ``BadRequest`` as ``check_image`` does."""
    pixels = check_image(content)
    made = processor(images=pixels, input_data_format="channels_last", return_tensors="np", **options)
    return dict(made)


def read_levels(processor: Any) -> npt.NDArray[np.float32]:
    """See ``make_levels``, of what an image processor does with pixels."""
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    if not processor.do_normalize:
        mean, std = np.zeros_like(mean), np.ones_like(std)
    return make_levels(mean, std, processor.rescale_factor if processor.do_rescale else 1.0)


def make_levels(mean: npt.ArrayLike, std: npt.ArrayLike, factor: float = 1 / 255) -> npt.NDArray[np.float32]:
    """What a pixel from 0 to 255 is multiplied by, and what is then taken from it: float32 [2, channels].

    The encoder does it: bytes travel faster than what they become.
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    return np.stack((factor / std, mean / std)).astype(np.float32)


def check_options(options: Mapping[str, Any], known: tuple[str, ...] = ()) -> None:
    """Raises ``BadRequest`` for options of the processor that are not known."""
    unknown = sorted(options.keys() - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadRequest(
            f"this model's processor has no option {', '.join(unknown)}: {takes}", param="mm_processor_kwargs"
        )


def check_counts(options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises ``BadRequest`` for one of the options that is given and no positive whole number."""
    for name in names:
        value = options.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadRequest(f"{name} must be a positive whole number, got {value!r:.40}", param="mm_processor_kwargs")


def pack(array: npt.NDArray[Any]) -> Array:
    """An array on its way to the encoder."""
    return Array(str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())
