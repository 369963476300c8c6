"""Ultravox's sounds, of any length, and the token that stands for them in prompts.

Source: the code that fixie-ai publishes its checkpoints with (ultravox_processing.py), as of version 0.6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import CheckpointError
from lsv_multimodal.families.image_processor import check_options, pack
from lsv_multimodal.families.named_tokens import named_tokens
from lsv_multimodal.families.whisper.audio import HOP, RATE, check_audio, log_mel, mel_filters, read_extractor

_MARK = "<|audio|>"
_RESERVED = "<|reserved_special_token_0|>"
"""Of Llama 3, whose vocabulary most checkpoints have."""
_LEAST = 2
"""Frames of the shortest sound."""


class UltravoxPlacement:
    """One token of the prompt for every sound. In texts it is a mark, which most tokenizers know no token for."""

    frames = False
    marks: Mapping[Modality, str] = {"audio": _MARK}
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._spelled, token = _find_token(folder, config)
        self.placeholders = {"audio": token}

    def spell(self, text: str) -> str:
        return text.replace(_MARK, self._spelled)

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class UltravoxProcessor:
    """A sound as ``features`` float32 [bins, frames], which the tower hears half a minute at a time."""

    rate = RATE

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        read_extractor(folder)
        hearing = config.get("audio_config") or {}
        self._filters = mel_filters(int(hearing.get("num_mel_bins", 80)))
        self._context = 2 * int(hearing.get("max_source_positions", 1500))
        self._each = 2 * int(config.get("stack_factor", 8))
        self._token = _find_token(folder, config)[1]

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        sound = check_audio(content).samples
        frames = max(_LEAST, math.ceil(len(sound) / HOP))
        samples = np.zeros(frames * HOP, np.float32)
        samples[: len(sound)] = sound
        features = log_mel(samples, self._filters)
        pieces = (min(self._context, frames - first) for first in range(0, frames, self._context))
        count = sum(math.ceil(piece / self._each) for piece in pieces)
        return Processed({"features": pack(features)}, (self._token,) * count, 0, count)


def _find_token(folder: Path, config: Mapping[str, Any]) -> tuple[str, int]:
    """The text and the id of the token that stands for an embedding: the mark itself, the one that config.json names,
    or one that Llama 3 keeps free, the first that the tokenizer and the model have.

    Raises ``CheckpointError`` where there is none.
    """
    named, text = named_tokens(folder), config.get("text_config") or {}
    index = config.get("audio_token_index")
    chosen = [name for name, token in named.items() if token == index]
    size = text.get("vocab_size", math.inf)
    for name in (_MARK, *chosen, _RESERVED):
        if named.get(name, size) < size:
            return name, named[name]
    raise CheckpointError(
        f"{folder}: the tokenizer has none of {_MARK} and {_RESERVED}, one of which stands for a sound: name the id of "
        """another special token with --hf-overrides '{"audio_token_index": …}'"""
    )
