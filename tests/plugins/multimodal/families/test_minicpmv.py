"""MiniCPM-V as it is published gives the inputs, embeddings, logits and tokens of its parts put together from
transformers' and torch's own: language models, SigLIP over images of any shape, the slicing of MiniCPM-V 4.6, and
``torch.nn.MultiheadAttention``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lsv import SamplingParams
from lsv.media.processor import Image
from lsv_base.errors import BadRequest, CheckpointError
from lsv_models.senses.towers.navit import stretch
from lsv_multimodal.families.minicpmv import choose_grid
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.tiny import SHAPE, draw_weights, write_tokenizer
from lsv_testing.tiny_seeing import Seeing

from .conftest import PicturesReference, as_link, read, sound

OFFER = "minicpmv"
LANGUAGES = {"2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
SPECIALS = (
    "<unk>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<|im_end|>", "<|endoftext|>",
)  # fmt: skip
UNKNOWN, IMAGE, IMAGE_END, SLICE, SLICE_END, _, _, TURN_END, TEXT_END = range(259, 268)
SIZE, EDGE, SCALE, QUERIES = 256, 8, 32, 5
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64,
    "patch_size": EDGE,
}  # fmt: skip
MEAN, STD = [0.5, 0.4, 0.6], [0.5, 0.25, 0.3]
MARK = "(<image>./</image>)"
TEXTS = {0: f"see {MARK}\nhere", 1: f"{MARK}\n{MARK}\n?", 2: "nothing to see", 3: f"wide: {MARK}", 4: f"tall {MARK}"}
# small ones, which are scaled up; some that are sliced, in one row, in one column and in several of both
SIZES = {0: [(20, 12)], 1: [(90, 70), (33, 30)], 2: [], 3: [(120, 31)], 4: [(31, 170)]}
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}\n{% endfor %}"


class PlainResampler(nn.Module):
    """One that is written after the paper, over one image at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(QUERIES, SIZE))
        self.kv_proj = nn.Linear(VISION["hidden_size"], SIZE, bias=False)
        self.attn = nn.MultiheadAttention(SIZE, SIZE // 128, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(SIZE, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(torch.empty(SIZE, SIZE))

    def forward(self, seen: torch.Tensor, height: int, width: int) -> torch.Tensor:
        rates = 1 / 10000 ** (np.arange(SIZE // 4) / (SIZE // 4))
        places = torch.tensor(
            np.array(
                [
                    [turn(place * rates) for place in (column, row) for turn in (np.sin, np.cos)]
                    for row in range(height)
                    for column in range(width)
                ]
            )
        ).float()
        values = self.ln_kv(self.kv_proj(seen))
        found, _ = self.attn(self.ln_q(self.query)[None], (values + places.flatten(1))[None], values[None])
        return self.ln_post(found[0]) @ self.proj  # type: ignore[no-any-return]


class Parts:
    """The parts of a tiny model, with random weights."""

    def __init__(self, version: str) -> None:
        import transformers
        from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

        kind = LANGUAGES[version]
        text = {**SHAPE, "hidden_size": SIZE, "tie_word_embeddings": False}
        config = transformers.CONFIG_MAPPING[kind](**text, **({"head_dim": 16} if kind == "qwen3" else {}))
        vision = transformers.models.idefics2.configuration_idefics2.Idefics2VisionConfig(**VISION)
        vision._attn_implementation = config._attn_implementation = "eager"
        torch.manual_seed(0)
        self.version, self.config = version, config
        self.llm: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.vpm: Any = Idefics2VisionTransformer(vision).eval()
        self.resampler = PlainResampler().eval()
        for part in (self.llm, self.vpm, self.resampler):
            draw_weights(part, 0.1)

    def write(self, path: Path, **changes: Any) -> Path:
        """A checkpoint of the parts as OpenBMB writes it."""
        path.mkdir(parents=True, exist_ok=True)
        own = {
            "architectures": ["MiniCPMV"], "model_type": "minicpmv", "batch_vision_input": True,
            "drop_vision_last_layer": False, "image_size": SCALE, "patch_size": EDGE, "query_num": QUERIES,
            "slice_config": {"max_slice_nums": 9, "patch_size": EDGE, "model_type": "minicpmv"}, "slice_mode": True,
            "auto_map": {"AutoModel": "modeling_minicpmv.MiniCPMV"}, "use_image_id": True,
            "version": float(self.version), "vision_config": {**VISION, "model_type": "siglip"},
        }  # fmt: skip
        (path / "config.json").write_text(json.dumps({**self.config.to_dict(), **own, **changes}))
        slicing = {
            "image_processor_type": "MiniCPMVImageProcessor", "max_slice_nums": 9, "scale_resolution": SCALE,
            "patch_size": EDGE, "image_feature_size": QUERIES, "use_image_id": self.version != "2.5",
            "norm_mean": MEAN, "norm_std": STD, "version": 2.6,
        }  # fmt: skip
        (path / "preprocessor_config.json").write_text(json.dumps(slicing))
        write_tokenizer(path, Seeing({}, "", {}, specials=SPECIALS))
        settings = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
        parts = {"llm": self.llm, "vpm": self.vpm, "resampler": self.resampler}
        tensors = {
            f"{place}.{name}": value.contiguous()
            for place, part in parts.items()
            for name, value in part.state_dict().items()
        }
        save_file(tensors, path / "model.safetensors")
        return path


def make_slicer(**options: Any) -> Any:
    """The slicing of 4.6, which has two by two patches for one of ours."""
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    shape = {"patch_size": EDGE // 2, "downsample_mode": "4x", "image_mean": MEAN, "image_std": STD}
    return MiniCPMV4_6ImageProcessorPil(**{**shape, **options})


class Reference(PicturesReference):
    placeholder = UNKNOWN

    def __init__(self, parts: Parts, folder: Path) -> None:
        import transformers

        self.parts, self.model, self.inputs = parts, parts.llm, {}
        self.slicer = make_slicer(scale_resolution=SCALE)
        self.seen: dict[int, torch.Tensor] = {}
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)

    def process(self, text: str, images: list[Any]) -> Any:
        pixels: list[torch.Tensor] = []
        for number, image in enumerate(images):
            made = self.slicer([image])
            start = 0
            for height, width in made["target_sizes"]:
                stop = start + height * width
                quarters = torch.tensor(np.asarray(made["pixel_values"]))[0, :, :, start * EDGE // 2 : stop * EDGE // 2]
                shape = (3, EDGE // 2, height, width, EDGE // 2)
                pixels.append(quarters.reshape(shape).permute(0, 2, 1, 3, 4).reshape(3, height * EDGE // 2, -1))
                start = stop
            text = text.replace(MARK, self.write(number, *made["grids"][0]), 1)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return {"pixel_values": pixels, "input_ids": torch.tensor([ids])}

    def write(self, number: int, rows: int, columns: int) -> str:
        """What stands in the prompt for an image, as the published processors write it."""
        seen = "<unk>" * QUERIES
        whole = f"<image>{seen}</image>"
        if self.parts.version == "2.5":
            lines = "\n".join([whole * columns] * rows)
            return whole + (f"<slice>{lines}</slice>" if rows else "")
        return f"<image_id>{number}</image_id>{whole}" + "\n".join([f"<slice>{seen}</slice>" * columns] * rows)

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        if number not in self.seen:
            self.seen[number] = torch.cat([self.embed(pixels) for pixels in self.inputs[number]["pixel_values"]])
        return self.seen[number]

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """The embeddings of an image or a slice [3, height, width]."""
        height, width = (side // EDGE for side in pixels.shape[1:])
        if self.parts.version == "2.5":
            patches = pixels.reshape(3, height, EDGE, width, EDGE).permute(0, 2, 1, 3, 4)
            pixels = patches.reshape(3, EDGE, height * width * EDGE)
        mask = torch.ones(1, pixels.shape[1] // EDGE, pixels.shape[2] // EDGE, dtype=torch.bool)
        seen = self.parts.vpm(pixel_values=pixels[None], patch_attention_mask=mask).last_hidden_state
        return self.parts.resampler(seen[0], height, width)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Parts, Path]]:
    """The parts of a version, and the folder of their checkpoint."""
    made: dict[str, tuple[Parts, Path]] = {}

    def make(version: str) -> tuple[Parts, Path]:
        if version not in made:
            parts = Parts(version)
            made[version] = parts, parts.write(tmp_path_factory.mktemp("minicpmv"))
        return made[version]

    return make


def show(shows: Any, reference: Reference, text: str, pictures: Sequence[Image], **options: Any) -> Any:
    ids = reference.tokenizer.encode(spell(text, shows.placement), add_special_tokens=False)
    return shows.place(ids, pictures, **options)


@pytest.mark.row("F-652", "F-662")
@pytest.mark.parametrize("version", ["2.5", "2.6", "4.0", "4.5"])
def test_inputs_embeddings_logits_and_tokens_equal_the_parts(
    version: str, make: Any, catalog: Any, shower: Any, picture: Any
) -> None:
    parts, folder = make(version)
    reference, shows, shown = Reference(parts, folder), shower(folder, OFFER), {}
    for number, text in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        theirs = reference.read(number, text, pictures)
        shown[number] = placed = show(shows, reference, text, pictures)
        assert list(placed.ids) == theirs["input_ids"][0].tolist()
        assert len(placed.media) == len(theirs["pixel_values"])
        for media, pixels in zip(placed.media, theirs["pixel_values"], strict=True):
            np.testing.assert_allclose(seen(media), pixels.numpy(), atol=1e-5)
    assert [len(placed.media) for placed in shown.values()] == [1, 8, 0, 5, 7]
    reference.check(engine_config(folder, OFFER), catalog, shown)


def seen(media: Any) -> Any:
    """The pixels of an image or a slice as a tower sees them [3, height, width]."""
    factor, offset = read(media, "levels")[:, :, None, None]
    height, width = read(media, "grid").tolist()
    patches = (read(media, "pixel_values") * factor - offset).reshape(height, width, 3, EDGE, EDGE)
    return patches.transpose(2, 0, 3, 1, 4).reshape(3, height * EDGE, width * EDGE)


def test_sizes_and_slices_are_those_of_its_successor(make: Any, shower: Any, picture: Any) -> None:
    """Of images from thin to square to thin, and from small ones to far too large ones."""
    _, folder = make("2.6")
    shows, slicer = shower(folder, OFFER), make_slicer(scale_resolution=SCALE)
    for width in (1, 5, 16, 31, 32, 33, 45, 46, 64, 100, 155):
        for height in (1, 7, 32, 47, 64, 91, 150, 199):
            for most in (1, 2, 5, 9):
                image = picture(width, height)
                (*media,) = shows.place([IMAGE], [image], max_slice_nums=most).media
                made = slicer([image.pixels], max_slice_nums=most, input_data_format="channels_last")
                grids = [read(one, "grid").tolist() for one in media]
                assert [[2 * side for side in grid] for grid in grids] == made["target_sizes"].tolist()
                grid = choose_grid((width, height), SCALE, most)
                assert made["grids"] == [[0, 0] if grid is None else [grid[1], grid[0]]]
                assert len(media) == 1 + (grid[0] * grid[1] if grid else 0) <= 1 + most


# as published, but for keys without a meaning
LLAMA3_V_2_5 = {
    "_name_or_path": "openbmb/MiniCPM-Llama3-V-2_5", "version": "2.5", "architectures": ["MiniCPMV"],
    "attention_bias": False, "batch_vision_input": True, "drop_vision_last_layer": False, "hidden_act": "silu",
    "hidden_size": 4096, "image_size": 448, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "mm_use_im_start_end": True, "model_type": "minicpmv", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "patch_size": 14, "query_num": 96, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 500000.0, "slice_config": {"max_slice_nums": 9, "patch_size": 14, "model_type": "minicpmv"},
    "slice_mode": True, "tie_word_embeddings": False, "vocab_size": 128256,
    "vision_config": {
        "hidden_size": 1152, "image_size": 980, "intermediate_size": 4304, "model_type": "idefics2",
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
    },
}  # fmt: skip
V_4_5 = {
    "_name_or_path": "openbmb/MiniCPM-V-4_5", "version": 4.5, "architectures": ["MiniCPMV"], "attention_bias": False,
    "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151748,
    "batch_vision_input": True, "batch_3d_resampler": True, "drop_vision_last_layer": False, "image_size": 448,
    "model_type": "minicpmv", "patch_size": 14, "query_num": 64,
    "slice_config": {"max_slice_nums": 9, "patch_size": 14, "model_type": "minicpmv"}, "slice_mode": True,
    "vision_config": {**LLAMA3_V_2_5["vision_config"], "model_type": "siglip"},  # type: ignore[dict-item]
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (LLAMA3_V_2_5, 8_537_092_336),
        (V_4_5, 17_391_790_560 // 2),
        ({**V_4_5, "vision_config": None}, 17_391_790_560 // 2),
        ({**LLAMA3_V_2_5, "version": None}, 8_537_092_336),
    ],
)
def test_published_configs_are_understood(config: dict[str, Any], weights: int, catalog: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = declare(engine_config(tmp_path, OFFER), catalog)
    assert declared.model.encoder.parts == 28
    assert stored_bytes(declared) == 4 * weights


def test_a_tower_without_its_last_layer(make: Any, catalog: Any, tmp_path: Path) -> None:
    """Also where the file still has it, and where config.json says nothing of it."""
    parts, folder = make("2.6")
    whole = load(engine_config(folder, OFFER), catalog).model
    shorter = load(engine_config(parts.write(tmp_path, drop_vision_last_layer=None), OFFER), catalog).model
    assert (whole.encoder.parts, shorter.encoder.parts) == (4, 3)
    assert set(whole.state_dict()) - set(shorter.state_dict()) == {
        name for name in whole.state_dict() if name.startswith("encoder.tower.layers.2.")
    }


@pytest.mark.parametrize(("height", "width"), [(4, 5), (25, 3), (1, 300)])
def test_places_are_those_of_idefics2(height: int, width: int) -> None:
    """Also where a tower is no multiple of the grid."""
    from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
    from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionEmbeddings

    embeddings = Idefics2VisionEmbeddings(Idefics2VisionConfig(hidden_size=1, image_size=70, patch_size=1))
    for parameter in embeddings.patch_embedding.parameters():
        parameter.data.zero_()
    embeddings.position_embedding.weight.data = torch.arange(4900.0)[:, None]
    found = embeddings(torch.zeros(1, 3, height, width), torch.ones(1, height, width, dtype=torch.bool))
    assert stretch((height, width), 70).tolist() == found[0, :, 0].long().tolist()


def test_the_largest_item_is_as_large_as_slices_are(make: Any, catalog: Any, shower: Any, picture: Any) -> None:
    _, folder = make("2.6")
    encoder, shows = load(engine_config(folder, OFFER), catalog).model.encoder, shower(folder, OFFER)
    largest = len(encoder.largest(64)["pixel_values"])
    sizes = [(90, 70), (33, 33), (17, 200), (170, 20)]
    found = [len(read(one, "pixel_values")) for size in sizes for one in shows.place([IMAGE], [picture(*size)]).media]
    assert max(found) <= largest <= 2 * max(found)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"version": 2}, "served in the versions 2.5, 2.6, 4.0, 4.5, got 2.0, whose tower and resampler are others"),
        ({"version": None, "hidden_size": 2304}, "got 2.0"),
        ({"version": "4.6"}, "got 4.6$"),
        ({"slice_mode": False}, "slice_mode is False, and this architecture has True"),
        ({"patch_size": 14}, "patch_size is 14, and this architecture has 8"),
        ({"hidden_size": 192}, "hidden_size must be a multiple of 128: they are 3 and 192"),
        ({"drop_vision_last_layer": True, "vision_config": {"num_hidden_layers": 1}}, "they are 0 and 256"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "is SigLIP's, got model_type='clip_vision_model'"),
        ({"vision_config": {"rope_theta": 1e4}}, "siglip_vision_model does not know"),
        ({"scale_emb": 12}, "does not know .*: scale_emb"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, make: Any, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(make("2.6")[1], OFFER, overrides=overrides), catalog)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slice_mode": False}, "slice_mode must be true"),
        ({"norm_std": [0.5, 0, 0.5]}, "norm_std not zero"),
        ({"norm_mean": 0.5}, r"Expected `array`, got `float` - at `\$.norm_mean`"),
        ({"scale_resolution": 0}, "must be positive"),
        ({"image_feature_size": 64}, "patch_size and image_feature_size are 8 and 64, those of the model are 8 and 5"),
        ({"im_start": "<picture>"}, "the tokenizer has no token <picture>"),
    ],
)
def test_preprocessing_that_it_can_not_follow(
    changes: dict[str, Any], why: str, make: Any, shower: Any, tmp_path: Path
) -> None:
    folder = make("2.6")[0].write(tmp_path)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=why):
        shower(folder, OFFER)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json is missing"):
        shower(folder, OFFER)


def test_pictures_and_options_it_can_not_take(make: Any, shower: Any, picture: Any, clip: Any) -> None:
    shows = shower(make("2.6")[1], OFFER)
    with pytest.raises(BadRequest, match="900 x 4 is too thin"):
        shows.place([IMAGE], [picture(900, 4)])
    with pytest.raises(BadRequest, match="no option use_image_id: it takes max_slice_nums, fps, num_frames"):
        shows.place([IMAGE], [picture(30, 40)], use_image_id=False)
    with pytest.raises(BadRequest, match=r"MiniCPM-V 2\.5 takes images, no video"):
        shower(make("2.5")[1], OFFER).place([SLICE], [clip(4, 30, 40)])
    with pytest.raises(BadRequest, match="takes images, no audio"):
        shows.place([IMAGE], [sound(0)])
    with pytest.raises(BadRequest, match="max_slice_nums may be at most 9, got 10"):
        shows.place([IMAGE], [picture(30, 40)], max_slice_nums=10)
    with pytest.raises(BadRequest, match="max_slice_nums must be a positive whole number, got 0"):
        shows.place([IMAGE], [picture(30, 40)], max_slice_nums=0)


@pytest.mark.parametrize("slices", [1, 4])
def test_a_video_is_its_frames_without_numbers(
    slices: int, make: Any, catalog: Any, shower: Any, picture: Any, clip: Any
) -> None:
    """And without slices, where nobody asks for them."""
    parts, folder = make("4.5")
    reference, shows, still, video = Reference(parts, folder), shower(folder, OFFER), picture(20, 16), clip(3, 60, 70)
    asked = {"max_slice_nums": slices} if slices > 1 else {}
    found = show(shows, reference, f"{MARK}\n(<video>./</video>)\nwhat?", [still, video], **asked)
    frames = [Image(frame) for frame in video.frames]
    number = shows.placement.spell(MARK)
    ids = reference.tokenizer.encode(f"{number}\n{'<image>' * 3}\nwhat?", add_special_tokens=False)
    expected = shows.place(ids, [still, *frames], max_slice_nums=slices)
    assert found.ids == expected.ids
    assert [media.inputs for media in found.media] == [media.inputs for media in expected.media]
    assert len(found.media) == 4 if slices == 1 else len(found.media) > 4
    names = {media.hash for media in found.media}
    assert len(names) == len(found.media), "each part is known by a name of its own"


def test_engine_in_chunks_with_prefixes_and_preemption(make: Any, shower: Any, picture: Any, check_engine: Any) -> None:
    parts, folder = make("2.6")
    reference, shows = Reference(parts, folder), shower(folder, OFFER)
    pictures = [picture(60, 40), picture(20, 30, 1)]
    texts = ((f"see {MARK}here", 1), (f"{MARK}{MARK}?", 2), ("nothing to see", 0), (f"see {MARK}there", 1))
    prompts = [show(shows, reference, text, pictures[:count]) for text, count in texts]
    prompts.append(show(shows, reference, texts[0][0], pictures[1:]))
    roomy, expected = check_engine(folder, prompts, 12, length=160)
    assert expected[0] != expected[4]
    shown = {"image": [one.pixels for one in pictures]}
    assert roomy.ask({"prompt": texts[1][0], "multi_modal_data": shown}, 40) == expected[1]
    with pytest.raises(BadRequest, match="embeddings have no marks written between them"):
        roomy.ask({"prompt": texts[0][0], "multi_modal_data": {"image": np.zeros((5, SIZE), np.float32)}}, 1)
    links = [{"type": "image_url", "image_url": {"url": as_link(one)}} for one in pictures]
    chat = [
        {"role": "user", "content": [links[0], {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [links[1]]},
    ]
    (answer,) = roomy.llm.chat(chat, SamplingParams(temperature=0.0, max_tokens=2))
    written = show(shows, reference, f"user: {MARK}\nwhat?\nassistant: a\nuser: {MARK}\n", pictures)
    assert list(answer.prompt_token_ids) == list(written.ids), "numbered through the conversation"


@pytest.mark.row("F-652")
def test_answers_end_where_its_versions_end_them(make: Any, engine: Any) -> None:
    """Files of the first versions name one token of two."""
    ends = engine(make("2.6")[1]).llm.get_tokenizer().eos_ids
    assert {TURN_END, TEXT_END} < set(ends)
