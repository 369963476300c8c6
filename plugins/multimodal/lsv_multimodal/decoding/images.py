"""Encoded images to pixels: RGB, upright, opaque. Runs where decoding may fail: in a media worker, or offline."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image as PilImage
from PIL import ImageOps, UnidentifiedImageError

from lsv.errors import BadRequest
from lsv.media.options import Limits
from lsv.media.processor import Image

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Decoders that strangers may reach; of the others some start programs (EPS) or have a history of faults."""

_WHITE = (255, 255, 255, 255)


def decode_image(data: bytes, limits: Limits) -> Image:
    """The first frame of an image. Raises ``BadRequest`` in our own words: those of decoders show memory addresses."""
    try:
        image = PilImage.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise BadRequest("this is not an image in a known format: PNG, JPEG, WebP, GIF and BMP are taken") from None
    except PilImage.DecompressionBombError:
        raise BadRequest(f"the image is over the limit of {limits.pixels:,} pixels") from None
    except Exception:
        raise BadRequest("the image is damaged: its header can't be read") from None
    check_size(*image.size, limits)
    try:
        image.load()
        return Image(pixels_of(image))
    except BadRequest:
        raise
    except Exception:
        raise BadRequest("the image is damaged or cut off: it can't be decoded to its end") from None


def check_size(width: int, height: int, limits: Limits) -> None:
    """Raises ``BadRequest`` for more pixels than an image or frame may have, or none."""
    if width * height > limits.pixels:
        raise BadRequest(f"{width} x {height} pixels are over the limit of {limits.pixels:,}")
    if width < 1 or height < 1:
        raise BadRequest(f"{width} x {height} is not a size of an image")


def pixels_of(image: PilImage.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3]: turned as EXIF says, laid on white where transparent, 16-bit grey scaled to 8 bits."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = PilImage.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = PilImage.alpha_composite(PilImage.new("RGBA", image.size, _WHITE), image)
    return np.asarray(image.convert("RGB"))
