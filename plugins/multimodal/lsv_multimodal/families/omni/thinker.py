"""What omni families have in common: a sound by itself, and a video with its sound as one item."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lsv.media.processor import SOUND, Audio, Content, Processed, Video
from lsv.request.media import Media
from lsv_base.errors import BadRequest
from lsv_multimodal.families.image_processor import check_options, pack
from lsv_multimodal.families.qwen2_vl import Qwen2VLPlacement, Qwen2VLProcessor, read_array, token_of
from lsv_multimodal.families.whisper.audio import HOP, RATE, mel_filters, read_extractor


@dataclasses.dataclass(frozen=True, slots=True)
class Tempo:
    """How time becomes places: ``second`` of them a second."""

    second: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Tempo:
        return cls(int(config.get("position_id_per_seconds", 25)))

    def times(self, frames: npt.NDArray[Any], pace: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The places of ``frames`` that are a ``pace`` in seconds apart, in single precision as in training."""
        return frames.astype(np.float32) * pace.astype(np.float32) * np.float32(self.second)


class OmniPlacement(Qwen2VLPlacement):
    """A sound stands in line. In a video with its sound all embeddings stand at their times."""

    tokens: ClassVar[Mapping[str, int]]
    """As those of ``OmniProcessor``."""
    _paced = True

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self.placeholders = {**self.placeholders, "audio": token_of(config, "audio", self.tokens["audio"])}
        self._tempo = Tempo.read(config)

    def grid(self, item: Media) -> npt.NDArray[Any]:
        if item.modality == "audio":
            return _heard(item.count)
        if "order" not in item.inputs:
            return super().grid(item)
        sizes, order = self.sizes(item), read_array(item, "order")
        heard = item.count - math.prod(sizes)
        if heard < 1 or not np.array_equal(np.sort(order), np.arange(item.count)):
            raise BadRequest(f"order must name each of {item.count} embeddings once: what is seen, then what is heard")
        return np.concatenate((self.cells(item, sizes), _heard(heard)), axis=1)[:, order]

    def times(self, frames: npt.NDArray[Any], pace: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return self._tempo.times(frames, pace)

    def behind(self, item: Media, places: npt.NDArray[Any]) -> int:
        """Text goes on behind the last turn of a video with its sound."""
        if "order" not in item.inputs:
            return super().behind(item, places)
        return int(places[:, -self.last(item, math.prod(self.sizes(item))) :].max()) + 1

    def last(self, item: Media, seen: int) -> int:
        """The embeddings of the last turn of a video with its sound, ``seen`` of which are of what is seen."""
        raise NotImplementedError


class OmniProcessor(Qwen2VLProcessor):
    """``use_audio_in_video`` adds the sound of a video to what is seen of it; one without sound is taken as ever."""

    tokens: ClassVar[Mapping[str, int]]
    """The placeholder of sounds, and the marks around one, where config.json leaves them out."""
    least: ClassVar[int]
    """Milliseconds of the shortest sound."""
    rate = RATE
    _tempo = 1.0  # frames are told apart in seconds
    _options = (*Qwen2VLProcessor._options, SOUND)

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._tokens["audio"] = token_of(config, "audio", self.tokens["audio"])
        self._bounds = tuple(
            int(config.get(f"{name}_token_id", self.tokens[name])) for name in ("audio_start", "audio_end")
        )
        self._longest = self.longest(read_extractor(folder)) * RATE
        self._filters = mel_filters(int(config["audio_config"].get("num_mel_bins", 128)))

    def frame_pixels(self, folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
        return usual  # whatever a file about video says, as in transformers' processors of these families

    def longest(self, extractor: Mapping[str, Any]) -> int:
        """Seconds of the longest sound; ``extractor`` is what a checkpoint says of its features."""
        raise NotImplementedError

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        if not isinstance(options.get(SOUND), bool | None):
            raise BadRequest(f"{SOUND} must be true or false, got {options[SOUND]!r:.40}", param="mm_processor_kwargs")
        if not isinstance(content, Audio):
            return super().process(content, options)
        check_options(options, self._options)
        features = self._listen(content)
        if features is None:
            raise BadRequest(f"the audio is too short: it must last at least {self.least} ms")
        count = self.count(features.shape[1])
        return Processed({"features": pack(features)}, (self._tokens["audio"],) * count, 0, count)

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        made = super()._process_video(video, options)
        features = self._listen(video.sound) if video.sound and options.get(SOUND) else None
        return made if features is None else self._add_sound(made, features)

    def _add_sound(self, made: Processed, features: npt.NDArray[np.float32]) -> Processed:
        """A video with its sound: marks of the sound around both, by turns."""
        frames, pace = (read_array(made, name) for name in ("grid", "pace"))
        seen = np.repeat(np.arange(frames[0]), made.count // frames[0])
        order = self.weave(seen, pace, self.count(features.shape[1]))
        kinds = np.where(order < made.count, self._tokens["video"], self._tokens["audio"]).tolist()
        start, end = self._bounds
        inputs = {**made.inputs, "features": pack(features), "order": pack(order)}
        return Processed(inputs, (start, *kinds, end), 1, len(order))

    def _listen(self, sound: Audio) -> npt.NDArray[np.float32] | None:
        """The features of a sound, None where it is too short for one embedding. Raises ``BadRequest``."""
        length = len(sound.samples)
        if length > self._longest:
            raise BadRequest(f"the audio lasts {length / RATE:.1f} s, and the model hears {self._longest / RATE:g} s")
        return self.listen(sound.samples) if self.count(self.frames(length)) else None

    def frames(self, samples: int) -> int:
        """How many frames a spectrum of so many samples has."""
        return samples // HOP

    def listen(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What is heard: float32 [bins, frames]."""
        raise NotImplementedError

    def count(self, frames: int) -> int:
        """How many embeddings the tower makes of so many frames."""
        raise NotImplementedError

    def weave(self, seen: npt.NDArray[Any], pace: npt.NDArray[Any], heard: int) -> npt.NDArray[np.int64]:
        """How what is seen, at so many times of ``pace`` seconds, and what is heard follow each other: the numbers of
        their embeddings, those of what is seen first, [seen + heard].
        """
        raise NotImplementedError


def _heard(count: int) -> npt.NDArray[Any]:
    return np.tile(np.arange(count), (3, 1))
