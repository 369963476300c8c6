"""Qwen2.5-Omni's images, video and sounds, and a video with its sound: what stands where, and when.

Source: Xu et al. 2025 (Qwen2.5-Omni), section 2.2 (TMRoPE).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.errors import BadRequest
from lsv.media.processor import SOUND, Audio, Content, Processed, Video
from lsv.request.media import Media
from lsv_multimodal.families.image_processor import check_options, pack
from lsv_multimodal.families.qwen2_vl import Qwen2VLPlacement, Qwen2VLProcessor, read_array, token_of
from lsv_multimodal.families.whisper.audio import HOP, RATE, log_mel, mel_filters, read_extractor

_SECONDS = 300
"""Of the longest sound."""
_BEYOND = 3
"""Frames behind a sound in which it can still be heard."""
_AUDIO = 151646
_MARKS = {"vision_start": 151652, "vision_end": 151653, "audio_start": 151647, "audio_end": 151648}


@dataclasses.dataclass(frozen=True, slots=True)
class Tempo:
    """How time becomes places: ``second`` of them a second. Of a video with its sound, what is seen and what is heard
    take turns of ``turn`` places.
    """

    second: int
    turn: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Tempo:
        second = int(config.get("position_id_per_seconds", 25))
        return cls(second, int(second * config.get("seconds_per_chunk", 2)))

    def times(self, frames: npt.NDArray[Any], pace: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The places of ``frames`` that are a ``pace`` in seconds apart, in single precision as in training."""
        return frames.astype(np.float32) * pace.astype(np.float32) * np.float32(self.second)

    def turns(self, seen: npt.NDArray[Any], heard: int) -> list[npt.NDArray[np.int64]]:
        """The turns of embeddings ``seen`` at these places, numbered from 0 on, and of those ``heard``, behind them."""
        pictures = np.split(np.arange(len(seen)), self._ends(seen))
        sounds = np.split(np.arange(heard) + len(seen), self._ends(np.arange(heard)))
        pairs = itertools.zip_longest(pictures, sounds)
        return [turn for pair in pairs for turn in pair if turn is not None]

    def _ends(self, places: npt.NDArray[Any]) -> list[int]:
        """Where each turn ends: at the first place beyond it. In a gap over several turns each ends one further on."""
        ends: list[int] = []
        for index, place in enumerate(places.tolist()):
            if place >= (len(ends) + 1) * self.turn:
                ends.append(index)
        return ends


class OmniPlacement(Qwen2VLPlacement):
    """A sound stands in line. In a video with its sound all embeddings stand at their times, and of the marks around it
    two and two share a place: those of what is seen and of what is heard.
    """

    _paced = True

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self.placeholders = {**self.placeholders, "audio": token_of(config, "audio", _AUDIO)}
        self._tempo = Tempo.read(config)
        marks = {name: int(config.get(f"{name}_token_id", default)) for name, default in _MARKS.items()}
        self._shared = {
            (marks["vision_start"], marks["audio_start"]),
            (marks["audio_end"], marks["vision_end"]),
        }

    def steps(self, ids: Sequence[int], media: Sequence[Media]) -> npt.NDArray[np.int64]:
        steps = super().steps(ids, media)
        for item in media:
            for index in (item.start - 1, item.stop + 1) if "order" in item.inputs else ():
                if tuple(ids[max(0, index - 1) : index + 1]) in self._shared:
                    steps[index] = 0
        return steps

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
        sizes = self.sizes(item)
        last = self._tempo.turns(self.cells(item, sizes)[0], item.count - math.prod(sizes))[-1]
        return int(places[:, -len(last) :].max()) + 1


class OmniProcessor(Qwen2VLProcessor):
    """Sounds of up to five minutes. ``use_audio_in_video`` adds the sound of a video to what is seen of it; one without
    sound is taken as ever.
    """

    rate = RATE
    _tempo = 1.0  # frames are told apart in seconds
    _options = (*Qwen2VLProcessor._options, SOUND)

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._tokens["audio"] = token_of(config, "audio", _AUDIO)
        self._bounds = tuple(int(config.get(f"{name}_token_id", _MARKS[name])) for name in ("audio_start", "audio_end"))
        self._longest = int(read_extractor(folder).get("chunk_length", _SECONDS)) * RATE
        self._filters = mel_filters(int(config["audio_config"].get("num_mel_bins", 128)))
        self._time = Tempo.read(config)

    def frame_pixels(self, folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
        return usual  # whatever a file about video says, as in transformers' processor of the family

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        if not isinstance(options.get(SOUND), bool | None):
            raise BadRequest(f"{SOUND} must be true or false, got {options[SOUND]!r:.40}", param="mm_processor_kwargs")
        if not isinstance(content, Audio):
            return super().process(content, options)
        check_options(options, self._options)
        features = self._listen(content)
        count = _embeddings(features)
        if not count:
            raise BadRequest("the audio is too short: it must last at least 30 ms")
        return Processed({"features": pack(features)}, (self._tokens["audio"],) * count, 0, count)

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        made = super()._process_video(video, options)
        features = self._listen(video.sound) if video.sound and options.get(SOUND) else None
        heard = 0 if features is None else _embeddings(features)
        return made if features is None or not heard else self._add_sound(made, features, heard)

    def _add_sound(self, made: Processed, features: npt.NDArray[np.float32], heard: int) -> Processed:
        """A video with its sound: marks of the sound around both, by turns."""
        frames, pace = (read_array(made, name) for name in ("grid", "pace"))
        seen = np.repeat(np.arange(frames[0]), made.count // frames[0])
        order = np.concatenate(self._time.turns(self._time.times(seen, pace), heard))
        kinds = np.where(order < made.count, self._tokens["video"], self._tokens["audio"]).tolist()
        start, end = self._bounds
        inputs = {**made.inputs, "features": pack(features), "order": pack(order)}
        return Processed(inputs, (start, *kinds, end), 1, len(order))

    def _listen(self, sound: Audio) -> npt.NDArray[np.float32]:
        """What is heard of a sound in silence: float32 [bins, frames]."""
        if len(sound.samples) > self._longest:
            raise BadRequest(
                f"the audio lasts {len(sound.samples) / RATE:.1f} s, and the model hears {self._longest / RATE:g} s"
            )
        frames = math.ceil(len(sound.samples) / HOP)
        samples = np.zeros(min(self._longest, (frames + _BEYOND) * HOP))
        samples[: len(sound.samples)] = sound.samples
        return log_mel(samples, self._filters)[:, :frames]


def _embeddings(features: npt.NDArray[np.float32]) -> int:
    """How many the tower makes of a spectrum: one of two positions, each of which is two frames."""
    return int(features.shape[1] + 1) // 2 // 2


def _heard(count: int) -> npt.NDArray[Any]:
    return np.tile(np.arange(count), (3, 1))
