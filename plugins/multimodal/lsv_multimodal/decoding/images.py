"""Encoded images to pixels: RGB, upright, opaque. Runs where decoding may fail: in a media worker, or offline."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image as PilImage
from PIL import UnidentifiedImageError

from lsv.media.options import Limits
from lsv.media.processor import Image
from lsv_base.errors import BadRequest

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Decoders that strangers may reach; of the others some start programs (EPS) or have a history of faults."""

_WHITE = (255, 255, 255, 255)
_ROWS = 128
"""Rows that are converted at a time: a large image then needs memory for its own form and for RGB, and little more."""
_LARGE = 16_000_000
"""Pixels beyond which an image may be reduced before it is resized."""
_SPARE = 3
"""How many times as long as they will be the sides of a reduced image stay, so that resizing finds all it can show."""
_ORIENTATION = 0x0112

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Resized = Callable[[int, int], tuple[int, int]]


def decode_image(data: bytes, limits: Limits, resized: Resized | None = None) -> Image:
    """The first frame of an image, smaller by a whole number where it is large and will be ``resized`` to little.

    Raises ``BadRequest`` in our own words: those of decoders show memory addresses.
    """
    image = _open(data, limits)
    factor = _reduction(*image.size, resized)
    image.draft(None, (image.width // factor, image.height // factor))  # JPEG: by 2, 4 or 8 while it is decoded
    _check_memory(image, limits)
    try:
        image.load()
        return Image(pixels_of(image, _reduction(*image.size, resized)))
    except (BadRequest, MemoryError):
        raise
    except Exception:
        raise BadRequest("the image is damaged or cut off: it can't be decoded to its end") from None


def measure_image(data: bytes, limits: Limits, resized: Resized | None = None) -> int:
    """Decoded size of an image in bytes, by its header. Raises ``BadRequest``."""
    width, height = _open(data, limits).size
    factor = _reduction(width, height, resized)
    return -(-width // factor) * -(-height // factor) * 3


def check_size(width: int, height: int, limits: Limits) -> None:
    """Raises ``BadRequest`` for more pixels than an image or frame may have, or none."""
    if width * height > limits.pixels:
        raise BadRequest(f"{width} x {height} pixels are over the limit of {limits.pixels:,} (--max-image-pixels)")
    if width < 1 or height < 1:
        raise BadRequest(f"{width} x {height} is not a size of an image")


def pixels_of(image: PilImage.Image, factor: int = 1) -> Pixels:
    """uint8 [height, width, 3]: turned as EXIF says, laid on white where transparent, 16-bit grey scaled to 8 bits.

    With a ``factor`` every pixel is the mean of so many by so many.
    """
    rows = factor * max(1, _ROWS // factor)
    pixels = np.empty((-(-image.height // factor), -(-image.width // factor), 3), np.uint8)
    for top in range(0, image.height, rows):
        strip = _to_rgb(image.crop((0, top, image.width, min(top + rows, image.height))))
        shown = np.asarray(strip.reduce(factor) if factor > 1 else strip)
        pixels[top // factor : top // factor + len(shown)] = shown
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


_TURNS: Mapping[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].transpose(1, 0, 2),
    8: lambda pixels: np.rot90(pixels),
}
"""How an image is turned upright, by its orientation in EXIF."""


def _open(data: bytes, limits: Limits) -> PilImage.Image:
    """Open an image, reading only its header. Raises ``BadRequest``, also for too many pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PilImage.DecompressionBombWarning)  # our own limits apply instead
        image = _read_header(data, limits)
    check_size(*image.size, limits)
    return image


def _read_header(data: bytes, limits: Limits) -> PilImage.Image:
    try:
        return PilImage.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise BadRequest("this is not an image in a supported format: send PNG, JPEG, WebP, GIF or BMP") from None
    except PilImage.DecompressionBombError:
        raise BadRequest(f"the image is over the limit of {limits.pixels:,} pixels (--max-image-pixels)") from None
    except MemoryError:
        raise
    except Exception:
        raise BadRequest("the image is damaged: its header can't be read") from None


def _to_rgb(image: PilImage.Image) -> PilImage.Image:
    if image.mode.startswith("I;16"):
        image = PilImage.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = PilImage.alpha_composite(PilImage.new("RGBA", image.size, _WHITE), image)
    return image.convert("RGB")


def _reduction(width: int, height: int, resized: Resized | None) -> int:
    """How many times shorter the sides of an image may be made before it is resized."""
    if resized is None or width * height <= _LARGE:
        return 1
    wide, high = resized(width, height)
    return max(1, min(width // (_SPARE * wide), height // (_SPARE * high)))


def _check_memory(image: PilImage.Image, limits: Limits) -> None:
    """Raises ``BadRequest`` for an image that, decoded and as RGB, would need more memory than there is for it."""
    size = image.width * image.height * (_BYTES.get(image.mode, 4) + 3)
    if size > limits.memory:
        raise BadRequest(
            f"decoding {image.width} x {image.height} pixels takes {size >> 20} MiB, over the limit of "
            f"{limits.memory >> 20} (--media-memory-mb)"
        )


_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2}
"""Bytes of a pixel in PIL's memory; 4 in all other modes."""
