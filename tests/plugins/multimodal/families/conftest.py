"""Tiny checkpoints of families that see, their processors, and pictures and prompts to show them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig
from lsv.media.items import Prepared
from lsv.media.processor import Audio, Content, Image, Video
from lsv.offers import ProcessorOffer, load_object
from lsv.plugins.catalog import Catalog
from lsv.request.media import Media
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.resolve.locate import read_config
from lsv_models import plugin as models
from lsv_multimodal import plugin as processors
from lsv_multimodal.families.qwen2_vl import read_array
from lsv_multimodal.families.whisper.audio import RATE
from lsv_multimodal.placement import place
from lsv_testing.catalog import catalog_of
from lsv_testing.model import load
from lsv_testing.shown import check_shown, encode
from lsv_testing.tiny import tiny

SMALL = {"min_pixels": 512, "max_pixels": 2048}


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return catalog_of(models, processors)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a tiny checkpoint of a family and shape, its tokenizer and its image processor."""
    made: dict[str, Path] = {}

    def make(family: str, **shape: Any) -> Path:
        key = f"{family}{sorted(shape.items())}"
        if key not in made:
            made[key] = tiny(family, tmp_path_factory.mktemp(family), tokenizer=True, **shape)
        return made[key]

    return make


class Shower:
    """A checkpoint's processor and placement: prompts with items in their places."""

    def __init__(self, folder: Path, name: str, catalog: Catalog) -> None:
        offer = catalog.find(ProcessorOffer, name)
        config = read_config(folder, {})
        self.folder = folder
        self.processor = catalog.load(offer)(folder, config)
        self.placement = load_object(offer.place)(folder, config)

    def place(self, ids: Sequence[int], contents: Sequence[Content], **options: Any) -> Prompt:
        """``ids`` with one placeholder for each of ``contents``."""
        return place(ids, [self._prepare(content, options) for content in contents], self.placement)

    def _prepare(self, content: Content, options: dict[str, Any]) -> Prepared:
        kinds = {Image: ("image", "pixels"), Video: ("video", "frames"), Audio: ("audio", "samples")}
        modality, attribute = kinds[type(content)]
        data = getattr(content, attribute)
        name = hashlib.sha256(repr((data.shape, sorted(options.items()))).encode() + data.tobytes()).digest()
        return Prepared(modality, name, self.processor.process(content, options))


@pytest.fixture(scope="session")
def shower(catalog: Catalog) -> Callable[[Path, str], Shower]:
    return lambda folder, name: Shower(folder, name, catalog)


@pytest.fixture(scope="session")
def picture() -> Callable[..., Image]:
    """A picture of noise and a slope, the same for the same arguments."""

    def make(width: int, height: int, seed: int = 0) -> Image:
        noise = np.random.default_rng(seed).integers(0, 100, (height, width, 3))
        slope = np.linspace(0, 155, width)[None, :, None] * [1, 0.5, 0.2]
        return Image((noise + slope).astype(np.uint8))

    return make


@pytest.fixture(scope="session")
def clip() -> Callable[..., Video]:
    """So many frames of noise, ``fps`` a second."""

    def make(frames: int, width: int, height: int, fps: float = 2.0) -> Video:
        pixels = np.random.default_rng(frames).integers(0, 256, (frames, height, width, 3), np.uint8)
        return Video(pixels, (np.arange(frames) / fps).astype(np.float32))

    return make


@pytest.fixture(scope="session")
def talkie(clip: Any) -> Callable[..., Video]:
    """A clip with its sound."""

    def make(frames: int, width: int, height: int, seconds: float, fps: float = 2.0) -> Video:
        return dataclasses.replace(clip(frames, width, height, fps), sound=sound(frames, seconds))

    return make


def as_link(picture: Image) -> str:
    """A data URL."""
    file = io.BytesIO()
    PilImage.fromarray(picture.pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def sound(seed: int, seconds: float = 1.3) -> Audio:
    """A tone and some noise, the same for the same arguments."""
    noise, time = np.random.default_rng(seed), np.arange(int(seconds * RATE)) / RATE
    tone = 0.4 * np.sin(2 * np.pi * (180 + 90 * seed) * time * (1 + time / 4))
    return Audio((tone + noise.normal(0, 0.05, len(time))).astype(np.float32), RATE)


def read(media: Media, name: str) -> Any:
    """An input of an item, in its shape."""
    return read_array(media, name).reshape(media.inputs[name].shape).copy()


def patches(media: Media) -> Any:
    """Those of an image or a video as transformers has them, each with all its frames: float32 [patches, features]."""
    factor, offset = read(media, "levels")[:, :, None, None]
    pixels = read(media, "pixel_values") * factor - offset
    return np.repeat(pixels, 2 // pixels.shape[2], axis=2).reshape(len(pixels), -1).astype(np.float32)


def parts_of(said: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """The content of a message: texts, and parts that are given as they are."""
    return [part if isinstance(part, dict) else {"type": "text", "text": part} for part in said]


def check_embeddings(encoder: Any, shown: Mapping[int, Prompt], expected: Callable[[Media], torch.Tensor]) -> None:
    """Those of all media of prompts."""
    for placed in shown.values():
        for media in placed.media:
            torch.testing.assert_close(encode(encoder, media.inputs), expected(media), atol=1e-4, rtol=1e-4)


class PicturesReference:
    """transformers' own processor and model over a checkpoint, whose prompts have a placeholder an embedding."""

    placeholder: int

    def __init__(self, folder: Path, architecture: str, processor: Any) -> None:
        import transformers

        self.processor = processor
        make = getattr(transformers, architecture).from_pretrained
        self.model = make(folder, dtype=torch.float32, attn_implementation="eager")
        self.inputs: dict[int, Any] = {}

    def read(self, number: int, text: str, pictures: Sequence[Image]) -> Any:
        images = [PilImage.fromarray(picture.pixels) for picture in pictures]
        self.inputs[number] = self.process(text, images)
        return self.inputs[number]

    def process(self, text: str, images: list[Any]) -> Any:
        return self.processor(images=images or None, text=text, return_tensors="pt")

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of the prompt and what came after it: there, a placeholder is a token like any other."""
        x = self.model.get_input_embeddings()(torch.tensor(ids))
        places = (self.inputs[number]["input_ids"][0] == self.placeholder).nonzero()[:, 0]
        if len(places):
            x[places] = self.embeddings(number)
        found: torch.Tensor = self.model(inputs_embeds=x[None], use_cache=False).logits[0]
        return found

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        """Those of all pictures of a prompt."""
        found = self.model.model.get_image_features(self.inputs[number]["pixel_values"])
        return found.pooler_output.flatten(0, 1)  # type: ignore[no-any-return]

    def check(self, config: EngineConfig, catalog: Catalog, shown: Mapping[int, Prompt]) -> None:
        """The logits of all prompts, and the embeddings of their pictures."""
        check_shown(config, catalog, shown, self.logits)
        encoder = load(config, catalog).model.encoder
        for number, placed in shown.items():
            if placed.media:
                ours = torch.cat([encode(encoder, media.inputs) for media in placed.media])
                torch.testing.assert_close(ours, self.embeddings(number), atol=1e-4, rtol=1e-4)


class GridReference:
    """transformers' own model over a checkpoint whose tokens stand in time, height and width."""

    def __init__(self, folder: Path, architecture: str, shown: Mapping[int, Prompt]) -> None:
        import transformers

        make = getattr(transformers, architecture).from_pretrained
        self.model = make(folder, dtype=torch.float32, attn_implementation="eager")
        self.shown = shown

    def positions(self, placed: Prompt) -> tuple[torch.Tensor, int]:
        """Those of a prompt [3, ids], and what is added to an index behind it."""
        raise NotImplementedError

    def embeddings(self, media: Media) -> torch.Tensor:
        raise NotImplementedError

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        placed = self.shown[number]
        x = self.model.get_input_embeddings()(torch.tensor(ids))
        for media in placed.media:
            x[media.start : media.stop] = self.embeddings(media)
        places, offset = self.positions(placed)
        behind = torch.arange(len(placed.ids), len(ids)).expand(3, -1) + offset
        places = torch.cat((places, behind), dim=1)[:, None]
        found: torch.Tensor = self.model(inputs_embeds=x[None], position_ids=places, use_cache=False).logits[0]
        return found

    def check(self, encoder: Any) -> None:
        """All positions, and the embeddings of all media."""
        for placed in self.shown.values():
            for media in placed.media:
                ours = encode(encoder, media.inputs)
                torch.testing.assert_close(ours, self.embeddings(media), atol=1e-4, rtol=1e-4)
            if placed.positions is not None:
                theirs, offset = self.positions(placed)
                ours = np.frombuffer(placed.positions.data, np.int32).reshape(3, -1)
                assert ours.tolist() == theirs.tolist()
                assert placed.positions.offset == offset <= 0


class DeepReference(GridReference):
    """The same of a family whose embeddings have beside them what goes into the first layers."""

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        placed, model = self.shown[number], self.model.model
        x, mask = model.get_input_embeddings()(torch.tensor(ids)), torch.zeros(len(ids), dtype=torch.bool)
        deeper = []
        for media in placed.media:
            first, *others = self.embeddings(media).split(x.shape[1], dim=1)
            x[media.start : media.stop], mask[media.start : media.stop] = first, True
            deeper.append(others)
        places, offset = self.positions(placed)
        behind = torch.arange(len(placed.ids), len(ids)).expand(3, -1) + offset
        given: dict[str, Any] = {}
        if deeper:
            levels = [torch.cat(level) for level in zip(*deeper, strict=True)]
            given = {"visual_pos_masks": mask[None], "deepstack_visual_embeds": levels}
        states = model.language_model(
            inputs_embeds=x[None], position_ids=torch.cat((places, behind), dim=1)[:, None], use_cache=False, **given
        ).last_hidden_state
        found: torch.Tensor = self.model.lm_head(states)[0]
        return found


def deep_features(made: Any) -> torch.Tensor:
    """What transformers' tower makes of one image, with what goes deeper: [count, width]."""
    return torch.cat([made.pooler_output[0], *(features[0] for features in made.deepstack_features)], dim=1)


def show_pairs(
    shows: Shower, see: Callable[[str], list[int]], picture: Callable[..., Image], clip: Callable[..., Video]
) -> dict[int, Prompt]:
    """Mixed sizes, two pictures, text alone, a clip of pairs of frames and a picture, a slow clip; ``see`` gives the
    tokens that stand for an item.
    """
    one, whole = see("image"), see("video")
    return {
        0: shows.place([*b"see", *one, *b"here"], [picture(60, 40)], **SMALL),
        1: shows.place([*one, *one, *b"?"], [picture(28, 28), picture(20, 70, 1)], **SMALL),
        2: shows.place([*b"nothing to see"], []),
        3: shows.place([*whole, *b"and", *one], [clip(5, 40, 24), picture(24, 24)], **SMALL),
        4: shows.place([*b"watch", *whole], [clip(4, 24, 32, fps=0.1)], **SMALL),
    }


class PairsReference(GridReference):
    """The same of a family whose videos are pairs of frames, each in a place of its own."""

    def positions(self, placed: Prompt) -> tuple[torch.Tensor, int]:
        kinds = torch.zeros(len(placed.ids), dtype=torch.int)
        for media in placed.media:
            kinds[media.start : media.stop] = 1 if media.modality == "image" else 2
        found, offset = self.model.model.get_rope_index(
            input_ids=torch.tensor([placed.ids]),
            mm_token_type_ids=kinds[None],
            image_grid_thw=_grids(placed, "image"),
            video_grid_thw=_grids(placed, "video"),
        )
        return found[:, 0], int(offset)


def _grids(placed: Prompt, modality: str) -> torch.Tensor | None:
    """Those of a clip's pairs of frames as so many clips of one pair: their tokens stand apart."""
    found = [read(media, "grid") for media in placed.media if media.modality == modality]
    return torch.tensor(np.array(found)) if found else None


def check_pairs(placed: Prompt, made: Video) -> None:
    """That a prompt's media are those of a clip of five frames, of 6 x 8 patches of 4 x 4."""
    frames = [made.frames[index] for index in (0, 1, 2, 3, 4, 4)]
    for number, media in enumerate(placed.media):
        assert (media.modality, media.count, read(media, "grid").tolist()) == ("video", 12, [1, 6, 8])
        pair = np.stack(frames[2 * number : 2 * number + 2]).transpose(0, 3, 1, 2)
        # frames, channels, rows of merged patches, of patches, of pixels, and columns of these
        cut = pair.reshape(2, 3, 3, 2, 4, 4, 2, 4).transpose(2, 5, 3, 6, 1, 0, 4, 7)
        assert np.array_equal(read(media, "pixel_values"), cut.reshape(48, 3, 2, 16))
    assert len({media.hash for media in placed.media}) == 3


class Engine:
    """An LLM that is shown prompts in place, as an API server would."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.llm = LLM(str(folder), dtype="float32", **{"max_model_len": 256, **options})

    def answer(self, prompts: Sequence[Prompt], tokens: int = 8) -> list[list[int]]:
        """Greedy tokens for all prompts together."""
        client = self.llm.llm_engine.client
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for number, placed in enumerate(prompts):
            client.add(RequestSpec(prompts=(placed,), sampling=params, request_id=str(number)))
        answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        while client.unfinished:
            for news in client.step():
                assert news.error is None, news.error
                if news.chunk is not None:
                    answers[news.request_id] += news.chunk.ids
        return list(answers.values())

    def ask(self, prompt: dict[str, Any], tokens: int) -> list[int]:
        """Greedy tokens for one prompt as a user gives it."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        return list(self.llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.fixture
def engine() -> Any:
    made: list[Engine] = []

    def make(folder: Path, **options: Any) -> Engine:
        made.append(Engine(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.llm.close()


@pytest.fixture
def check_engine(engine: Any) -> Callable[..., tuple[Engine, list[list[int]]]]:
    """Checks that prompts have the same answers alone and together, in steps of ``step`` tokens, twice with the prefix
    cache, and in so ``few`` blocks that some are preempted, none of which is longer than ``length``. Gives the engine
    with the cache, and the answers.
    """

    def check(
        folder: Path,
        prompts: Sequence[Prompt],
        few: int,
        *,
        length: int,
        longest: int | None = None,
        step: int = 32,
        tokens: int = 40,
        **options: Any,
    ) -> tuple[Engine, list[list[int]]]:
        plain = engine(folder, enable_prefix_caching=False)
        expected = [plain.answer([prompt], tokens)[0] for prompt in prompts]
        assert plain.answer(prompts, tokens) == expected
        options |= {"max_num_batched_tokens": step}
        roomy = engine(folder, max_model_len=longest, **options)
        for _ in range(2):
            assert roomy.answer(prompts, tokens) == expected
        assert roomy.llm.stats.prefix_hits_total > 0
        tight = engine(folder, num_gpu_blocks_override=few, max_model_len=length, **options)
        assert tight.answer(prompts, tokens) == expected
        assert tight.llm.stats.preemptions_total > 0
        return roomy, expected

    return check
