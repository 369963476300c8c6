"""What is held of all families that see and hear: references, and checks that go by transformers' code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from lsv.config import EngineConfig
from lsv.media.processor import SOUND, Content
from lsv.plugins.catalog import Catalog
from lsv.request.prompt import Prompt
from lsv_testing.model import engine_config, load

from .conftest import Engine, GridReference, Shower, patches, read, sound

START, END, IMAGE, VIDEO, SOUNDS, SOUND_ENDS, AUDIO = range(259, 266)
HEAR = [SOUNDS, AUDIO, SOUND_ENDS]
SMALL = {"min_pixels": 256, "max_pixels": 1024}
BOTH = {**SMALL, SOUND: True}


def see(placeholder: int) -> list[int]:
    return [START, placeholder, END]


class OmniReference(GridReference):
    def given(self, placed: Prompt) -> dict[str, Any]:
        """The media of a prompt as transformers takes them."""
        sounds = [read(media, "features") for media in placed.media if "features" in media.inputs]
        lengths = torch.tensor([sound.shape[1] for sound in sounds])
        longest = int(lengths.max()) if sounds else 0
        padded = [np.pad(sound, ((0, 0), (0, longest - sound.shape[1]))) for sound in sounds]
        heard = {
            "input_features": torch.tensor(np.array(padded)),
            "feature_attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
        } if sounds else {}  # fmt: skip
        seen: dict[str, Any] = {}
        for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            shown = [media for media in placed.media if media.modality == kind]
            if shown:
                seen[name] = torch.tensor(np.concatenate([patches(media) for media in shown]))
                seen[f"{kind}_grid_thw"] = torch.tensor(np.array([read(media, "grid") for media in shown]))
            if shown and kind == "video":
                seen["video_second_per_grid"] = torch.tensor([float(read(media, "pace")[0]) for media in shown])
        both = any("order" in media.inputs for media in placed.media)
        return {**heard, **seen, "use_audio_in_video": both}

    def positions(self, placed: Prompt) -> tuple[torch.Tensor, int]:
        given, ids = self.given(placed), torch.tensor([placed.ids])
        mask = given.get("feature_attention_mask")
        found, offset = self.model.model.get_rope_index(
            ids, given.get("image_grid_thw"), given.get("video_grid_thw"), torch.ones_like(ids),
            given["use_audio_in_video"], None if mask is None else mask.sum(1), given.get("video_second_per_grid"),
        )  # fmt: skip
        return found[:, 0], int(offset)

    @torch.inference_mode()
    def embeddings(self, media: Any) -> torch.Tensor:
        parts = []
        if "pixel_values" in media.inputs:
            parts.append(self.seen(torch.from_numpy(patches(media)), torch.from_numpy(read(media, "grid"))[None]))
        if "features" in media.inputs:
            features = torch.from_numpy(read(media, "features"))[None]
            mask = torch.ones(1, features.shape[2], dtype=torch.long)
            parts.append(self.heard(self.model.model.get_audio_features(features, mask).last_hidden_state))
        rows = torch.cat(parts)
        return rows[torch.from_numpy(read(media, "order"))] if "order" in media.inputs else rows

    def seen(self, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """The embeddings of an image or a video [count, width]."""
        return self.model.model.get_image_features(pixels, grid).pooler_output[0]  # type: ignore[no-any-return]

    def heard(self, rows: torch.Tensor) -> torch.Tensor:
        """What the tower makes of a sound, as wide as other embeddings."""
        return rows

    @torch.inference_mode()
    def whole(self, placed: Prompt) -> torch.Tensor:
        """The logits that transformers' own forward gives for a prompt and its media."""
        ids = torch.tensor([placed.ids])
        found = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **self.given(placed))
        return found.logits[0]  # type: ignore[no-any-return]


def check_turns(processor: Any, shows: Shower, film: Content, fps: float, **tempo: Any) -> None:
    """That a clip with its sound is laid out as transformers' ``processor`` writes it; ``tempo`` is what that is told
    of times and places.
    """
    placed = shows.place(see(VIDEO), [film], **{"min_pixels": 1536, "max_pixels": 2048, SOUND: True})
    theirs: Any = SimpleNamespace(
        audio_bos_token="<", audio_eos_token=">", video_token="v", audio_token="a",
        video_processor=SimpleNamespace(merge_size=2),
    )  # fmt: skip
    theirs.get_chunked_index = lambda *given: processor.get_chunked_index(theirs, *given)
    (media,) = placed.media
    grid = read(media, "grid")
    seen = {"video_grid_thw": [grid], "video_second_per_grid": [2 / fps]}
    heard = {"num_audio_tokens": [media.count - int(grid.prod()) // 4]}
    text = processor.replace_video_with_audio_token(theirs, seen, 0, heard, 0, **tempo)
    marks = {SOUNDS: "<", SOUND_ENDS: ">", VIDEO: "v", AUDIO: "a"}
    assert "".join(marks[id] for id in placed.ids[1:-1]) == text
    assert (placed.ids[media.start - 1], placed.ids[media.stop]) == (SOUNDS, SOUND_ENDS)


def check_silent(shows: Shower, silent: Content, sounding: Content, hardly: Content) -> None:
    """That clips are what is seen of them: without the option, without a sound, and with one too short to hear."""
    plain = shows.place(see(VIDEO), [silent], **SMALL)
    for content, options in ((sounding, SMALL), (silent, BOTH), (hardly, BOTH)):
        made = shows.place(see(VIDEO), [content], **options)
        assert (made.ids, made.positions) == (plain.ids, plain.positions)
        assert made.media[0].inputs == plain.media[0].inputs


def check_films(one: Engine, film: Callable[..., bytes]) -> tuple[bytes, list[int]]:
    """That answers about a film depend on its sound where that is asked for. Gives a film and the answer with it."""
    sounds = (sound(1, 1.6).samples, sound(7, 1.6).samples, None)
    low, high, silent = (film([10, 200, 90, 30], fps=2, kind="matroska", heard=heard) for heard in sounds)

    def ask(data: bytes, options: dict[str, Any]) -> list[int]:
        text = "watch<|vision_start|><|video_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": {"video": data}, "mm_processor_kwargs": options}, 8)

    answer = ask(low, BOTH)
    assert answer != ask(high, BOTH)
    assert ask(low, SMALL) == ask(high, SMALL) == ask(silent, SMALL) == ask(silent, BOTH) != answer
    return low, answer


def check_stored(
    known: EngineConfig, folder: Path, config: Mapping[str, Any], stored: dict[str, torch.Tensor], catalog: Catalog
) -> None:
    """That a checkpoint of another form, which is written to ``folder``, is the model that is ``known``."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")
    expected, found = (
        load(one, catalog).model.state_dict() for one in (known, engine_config(folder, known.model_offer))
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
