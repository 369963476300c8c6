"""Encoded pictures to pixels: RGB, upright, opaque. Runs where decoding may fail: in a side process, or offline."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lsv.errors import BadRequest
from lsv.media.options import Limits
from lsv.media.processor import Picture

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Decoders that strangers may reach; of the others some start programs (EPS) or have a history of faults."""

_WHITE = (255, 255, 255, 255)


def decode_picture(data: bytes, limits: Limits) -> Picture:
    """The first frame of a picture. Raises ``BadRequest``, in words of ours: those of decoders name addresses."""
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise BadRequest("this is no picture in a known format: PNG, JPEG, WebP, GIF and BMP are taken") from None
    except Image.DecompressionBombError:
        raise BadRequest(f"the picture is over the limit of {limits.pixels:,} pixels") from None
    except Exception:
        raise BadRequest("the picture is damaged: its header can't be read") from None
    check_size(*image.size, limits)
    try:
        image.load()
        return Picture(pixels_of(image))
    except BadRequest:
        raise
    except Exception:
        raise BadRequest("the picture is damaged or cut off: it can't be decoded to its end") from None


def check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise BadRequest(f"{width} x {height} pixels are over the limit of {limits.pixels:,}")
    if width < 1 or height < 1:
        raise BadRequest(f"{width} x {height} is no size of a picture")


def pixels_of(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3]: turned as EXIF says, laid on white where transparent, 16-bit grey scaled to 8 bits."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
    return np.asarray(image.convert("RGB"))
