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

from lsv.request.media import Media
from lsv_multimodal.families.omni.thinker import OmniPlacement, OmniProcessor, Tempo
from lsv_multimodal.families.whisper.audio import HOP, log_mel

_SECONDS = 300
"""Of the longest sound."""
_BEYOND = 3
"""Frames behind a sound in which it can still be heard."""
_TOKENS = {"audio": 151646, "audio_start": 151647, "audio_end": 151648}
_MARKS = {**_TOKENS, "vision_start": 151652, "vision_end": 151653}


@dataclasses.dataclass(frozen=True, slots=True)
class TurnTempo(Tempo):
    """Of a video with its sound, what is seen and what is heard take turns of ``turn`` places."""

    turn: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TurnTempo:
        second = Tempo.read(config).second
        return cls(second, int(second * config.get("seconds_per_chunk", 2)))

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


class Qwen25OmniPlacement(OmniPlacement):
    """Of the marks around a video with its sound two and two share a place: those of what is seen and what is heard."""

    tokens = _TOKENS

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        marks = {name: int(config.get(f"{name}_token_id", default)) for name, default in _MARKS.items()}
        self._shared = {
            (marks["vision_start"], marks["audio_start"]),
            (marks["audio_end"], marks["vision_end"]),
        }
        self._turns = TurnTempo.read(config)

    def steps(self, ids: Sequence[int], media: Sequence[Media]) -> npt.NDArray[np.int64]:
        steps = super().steps(ids, media)
        for item in media:
            for index in (item.start - 1, item.stop + 1) if "order" in item.inputs else ():
                if tuple(ids[max(0, index - 1) : index + 1]) in self._shared:
                    steps[index] = 0
        return steps

    def last(self, item: Media, seen: int) -> int:
        return len(self._turns.turns(self.cells(item, self.sizes(item))[0], item.count - seen)[-1])


class Qwen25OmniProcessor(OmniProcessor):
    """Sounds of up to five minutes."""

    tokens = _TOKENS
    least = 30

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._turns = TurnTempo.read(config)

    def longest(self, extractor: Mapping[str, Any]) -> int:
        return int(extractor.get("chunk_length", _SECONDS))

    def frames(self, samples: int) -> int:
        return math.ceil(samples / HOP)

    def listen(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        frames = self.frames(len(samples))
        in_silence = np.zeros(min(self._longest, (frames + _BEYOND) * HOP))
        in_silence[: len(samples)] = samples
        return log_mel(in_silence, self._filters)[:, :frames]

    def count(self, frames: int) -> int:
        # one of two positions, each of which is two frames
        return (frames + 1) // 2 // 2

    def weave(self, seen: npt.NDArray[Any], pace: npt.NDArray[Any], heard: int) -> npt.NDArray[np.int64]:
        return np.concatenate(self._turns.turns(self._turns.times(seen, pace), heard))
