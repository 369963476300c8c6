"""MiniCPM-V's images and frames of videos: each whole, then a large one's slices, between marks of their own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from lsv.media.processor import Content, Image, Processed, Video
from lsv.request.media import EMBEDDINGS, Media, Modality, Positions
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.decoding.frames import SAMPLING
from lsv_multimodal.families.image_processor import check_counts, check_image, check_options, pack
from lsv_multimodal.families.named_tokens import find_token, load_tokenizer

_FILE = "preprocessor_config.json"
_IMAGE, _VIDEO = "(<image>./</image>)", "(<video>./</video>)"
_OPTION = "max_slice_nums"


class Preprocessing(msgspec.Struct, frozen=True):
    """What preprocessor_config.json says, by its names; the defaults are those of the published code."""

    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14
    image_feature_size: int = 64
    use_image_id: bool = False
    slice_mode: bool = True
    norm_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    norm_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    im_start: str = "<image>"
    im_end: str = "</image>"
    slice_start: str = "<slice>"
    slice_end: str = "</slice>"
    unk: str = "<unk>"
    im_id_start: str = "<image_id>"
    im_id_end: str = "</image_id>"

    @classmethod
    def read(cls, folder: Path) -> Preprocessing:
        """Raises ``CheckpointError`` where the file is missing, or says what is not served."""
        file = folder / _FILE
        given = read_object(file)
        if given is None:
            raise CheckpointError(f"{folder} has no image processor: {_FILE} is missing")
        try:
            found = msgspec.convert(given, cls)
        except msgspec.ValidationError as cause:
            raise CheckpointError(f"{file}: {cause}") from None
        if min(found.max_slice_nums, found.scale_resolution, found.patch_size, found.image_feature_size) < 1:
            raise CheckpointError(f"{file}: numbers of slices, tokens and pixels must be positive")
        if not found.slice_mode or not all(found.norm_std):
            raise CheckpointError(f"{file}: slice_mode must be true, and norm_std not zero")
        return found

    @property
    def levels(self) -> npt.NDArray[np.float32]:
        """What a pixel from 0 to 255 is multiplied by, and what is then taken from it: float32 [2, channels]."""
        mean, std = np.array(self.norm_mean), np.array(self.norm_std)
        return np.stack((1 / (255 * std), mean / std)).astype(np.float32)


class MiniCPMVPlacement:
    """One token of the prompt for every image: the one it begins with, behind the image's number where the checkpoint
    wants it. For a video there is one that no text has, and no number. In texts there are marks that are no tokens.
    """

    frames = False
    marks: Mapping[Modality, str] = {"image": _IMAGE, "video": _VIDEO}
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._form = Preprocessing.read(folder)
        starts: dict[Modality, str] = {"image": self._form.im_start, "video": self._form.slice_start}
        self.placeholders = {modality: find_token(folder, start) for modality, start in starts.items()}

    def spell(self, text: str) -> str:
        """Images are numbered through a prompt, from 0."""
        form, numbers = self._form, count()

        def write(mark: re.Match[str]) -> str:
            named = f"{form.im_id_start}{next(numbers)}{form.im_id_end}" if form.use_image_id else ""
            return f"{named}{form.im_start}"

        return re.sub(re.escape(_IMAGE), write, text).replace(_VIDEO, form.slice_start)

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        if any(EMBEDDINGS in item.inputs for item in media):
            raise BadRequest("embeddings have no marks written between them: give the image or the video")
        return None


class MiniCPMVProcessor:
    """An image at about the pixels of a square, and where it has more than that, as many slices of it, each of about as
    many pixels, in rows and columns that suit its shape. A video is its frames, whole ones. ``max_slice_nums`` may ask
    for fewer slices of an image than the checkpoint's, and for some of frames.
    """

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._form = form = Preprocessing.read(folder)
        vision = config.get("vision_config") or {}
        own = (form.patch_size, form.image_feature_size)
        model = (int(vision.get("patch_size", 14)), int(config.get("query_num", 64)))
        if own != model:
            raise CheckpointError(
                f"{folder / _FILE}: patch_size and image_feature_size are {own[0]} and {own[1]}, "
                f"those of the model are {model[0]} and {model[1]}"
            )
        self._levels = pack(form.levels)
        self._image, self._image_end = (find_token(folder, name) for name in (form.im_start, form.im_end))
        self._slice, self._slice_end = (find_token(folder, name) for name in (form.slice_start, form.slice_end))
        self._unknown = find_token(folder, form.unk)
        # the first form has all slices between one pair of marks, and each is an image of its own
        self._gathers = str(config.get("version") or "2.5") == "2.5"
        end, start = (form.im_end, form.im_start) if self._gathers else (form.slice_end, form.slice_start)
        tokenizer = load_tokenizer(folder, "line breaks between slices")
        self._break = tuple(tokenizer.encode(f"{end}\n{start}", add_special_tokens=False).ids[1:-1])

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options, (_OPTION, *SAMPLING))  # those have chosen the frames, and images have no use for them
        check_counts(options, (_OPTION,))
        own, most = self._form.max_slice_nums, options.get(_OPTION)
        if most is not None and most > own:
            raise BadRequest(f"{_OPTION} may be at most {own}, got {most}", param="mm_processor_kwargs")
        if not isinstance(content, Video):
            first, *more = self._see(content, most or own)
        elif self._gathers:
            raise BadRequest("MiniCPM-V 2.5 takes images, no video")
        else:
            first, *more = (part for frame in content.frames for part in self._see(Image(frame), most or 1))
        return msgspec.structs.replace(first, more=tuple(more))

    def _see(self, content: Content, most: int) -> list[Processed]:
        """An image whole, and in slices."""
        image = PilImage.fromarray(check_image(content))
        grid = choose_grid(image.size, self._form.scale_resolution, most)
        whole = self._show(self._resize(image, self._fit(*image.size)), (self._image,), self._image_end)
        return [whole] if grid is None else [whole, *self._slices(image, grid)]

    def _slices(self, image: PilImage.Image, grid: tuple[int, int]) -> list[Processed]:
        """Row by row, with line breaks between rows."""
        (columns, rows), first = grid, (self._slice,) if self._gathers else ()
        width, height = self._fit(*(_multiple(side, by) / by for side, by in zip(image.size, grid, strict=True)))
        pixels = self._resize(image, (columns * width, rows * height))
        start, end = (self._image, self._image_end) if self._gathers else (self._slice, self._slice_end)
        found = []
        for row in range(rows):
            for column in range(columns):
                part = pixels[row * height : (row + 1) * height, column * width : (column + 1) * width]
                before = () if column else self._break if row else first
                found.append(self._show(part, (*before, start), end))
        if self._gathers:
            found[-1] = msgspec.structs.replace(found[-1], tokens=(*found[-1].tokens, self._slice_end))
        return found

    def _show(self, pixels: npt.NDArray[np.uint8], before: tuple[int, ...], end: int) -> Processed:
        """An image or a slice [height, width, 3] of whole patches, between its marks."""
        edge, number = self._form.patch_size, self._form.image_feature_size
        height, width = (side // edge for side in pixels.shape[:2])
        patches = pixels.reshape(height, edge, width, edge, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, edge, edge)
        inputs = {"pixel_values": pack(patches), "levels": self._levels, "grid": pack(np.array((height, width)))}
        return Processed(inputs, (*before, *(self._unknown,) * number, end), len(before), number)

    def _fit(self, width: float, height: float) -> tuple[int, int]:
        """The width and height, in whole patches, at which an image has about the pixels of the square."""
        ratio, edge = width / height, self._form.patch_size
        height = int(self._form.scale_resolution / math.sqrt(ratio))
        return _multiple(int(height * ratio), edge), _multiple(height, edge)

    def _resize(self, image: PilImage.Image, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """uint8 [height, width, 3]"""
        return np.asarray(image.resize(size, PilImage.Resampling.BICUBIC))


def choose_grid(size: tuple[int, int], scale: int, most: int) -> tuple[int, int] | None:
    """The columns and rows of slices of an image: about as many as it has squares of ``scale``, at most ``most``, whose
    ratio is next to its own. None for an image of one.
    """
    width, height = size
    number = min(math.ceil(width * height / (scale * scale)), most)
    if number <= 1:
        return None
    numbers = [one for one in (number - 1, number, number + 1) if 1 < one <= most]
    grids = [(columns, one // columns) for one in numbers for columns in range(1, one + 1) if one % columns == 0]
    ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(ratio - math.log(grid[0] / grid[1])))


def _multiple(length: float, of: int) -> int:
    """The one next to a length, and at least one."""
    return max(round(length / of) * of, of)
