"""Phi-3-vision, whose code is not in transformers: its inputs, embeddings, logits and tokens are those of CLIP and
Phi-3 there, put together by the published rules.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, processors
from torch import nn

from lsv import SamplingParams
from lsv.media.processor import Image
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import seen_pixels
from lsv_testing.tiny import SHAPE, bytes_tokenizer, draw_weights

from .conftest import PicturesReference

SIZE, SIDE = 28, 4
IMAGE = 259
SPECIALS = ("<bos>", "<eos>", "<pad>", "<|image|>", "<|user|>", "<|end|>", "<|assistant|>")
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.2, 0.3]
FACTORS = {"short_factor": [1.0 + n / 8 for n in range(8)], "long_factor": [1.0 + n for n in range(8)]}
SU = {"rope_scaling": {"type": "su", **FACTORS}, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_scaling": {"type": "longrope", **FACTORS},
    "original_max_position_embeddings": 512, "max_position_embeddings": 2048,
}  # fmt: skip
TEXTS = {
    0: ("<|user|>\n<|image_1|>\nWhat is it?<|end|>\n<|assistant|>\n", [(60, 40)]),
    1: ("<|image_1|>\n<|image_2|> or <|image_3|>", [(28, 28), (33, 90), (1, 1)]),
    2: ("<|user|>\nnothing to see<|end|>\n<|assistant|>\n", []),
    3: ("wide: <|image_1|>", [(120, 31)]),
}
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
VISION = "model.vision_embed_tokens."


def make_parts(config: dict[str, Any]) -> tuple[nn.Module, nn.Module, nn.Module]:
    """transformers' tower and language model, and what stands between them."""
    import transformers

    tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**config["vision_config"]))
    original = config["original_max_position_embeddings"]
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **FACTORS}
    keys = {name: config[name] for name in (*SHAPE, "max_position_embeddings")}
    language = transformers.Phi3ForCausalLM._from_config(
        transformers.Phi3Config(**keys, original_max_position_embeddings=original, rope_parameters=rope),
        attn_implementation="eager",
    )
    wide = 4 * config["vision_config"]["hidden_size"]
    between = nn.Sequential(nn.Linear(wide, keys["hidden_size"]), nn.GELU(), nn.Linear(*[keys["hidden_size"]] * 2))
    between.register_parameter("glb_GN", nn.Parameter(torch.zeros(1, 1, wide)))
    between.register_parameter("sub_GN", nn.Parameter(torch.zeros(1, 1, 1, wide)))
    return tower.eval(), language.eval(), between


def publish(path: Path, *, crops: int = 4, table: str = "model.embed_tokens", **changes: Any) -> Path:
    """A tiny checkpoint as Microsoft writes them; ``table`` is what it calls the embedding."""
    config = {
        **SHAPE, "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v",
        "auto_map": {"AutoModelForCausalLM": "modeling_phi3_v.Phi3VForCausalLM"}, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "embd_layer": {
            "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
            "use_hd_transform": True, "with_learnable_separator": True,
        },
        "img_processor": {
            "image_dim_out": 32, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
            "num_img_tokens": SIDE**2 // 4,
        },
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": SIZE, "patch_size": SIZE // SIDE,
        },
        "rms_norm_eps": 1e-5, "sliding_window": 2048, "tie_word_embeddings": False, **SU, **changes,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    colours = {"image_mean": MEAN, "image_std": STD}
    settings = {"image_processor_type": "Phi3VImageProcessor", "num_crops": crops, "num_img_tokens": 144, **colours}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    write_tokenizer(path)
    torch.manual_seed(0)
    parts = make_parts(config)
    for part in parts:
        draw_weights(part, 0.2)
    tower, language, between = (part.state_dict() for part in parts)
    stored = {
        **{_tower_name(name): value for name, value in tower.items()},
        **{name.replace("model.embed_tokens", table): value for name, value in language.items()},
        **{VISION + ("" if name.endswith("GN") else "img_projection.") + name: x for name, x in between.items()},
    }
    save_file({name: value.clone() for name, value in stored.items()}, path / "model.safetensors")
    return path


def write_tokenizer(path: Path) -> None:
    """A token a byte. It puts one before each text, and takes space behind an image away."""
    tokenizer = bytes_tokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True, rstrip=name == "<|image|>") for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 256)])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def _tower_name(name: str) -> str:
    return f"{VISION}img_processor.vision_model.{name.removeprefix('vision_model.')}"


class Reference(PicturesReference):
    """The published rules, one square, one line and one block at a time."""

    placeholder = IMAGE

    def __init__(self, folder: Path, crops: int) -> None:
        config, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
        self.tower, self.model, self.between = make_parts(config)
        self.tower.load_state_dict({name: stored[_tower_name(name)] for name in self.tower.state_dict()})
        for name, value in self.between.state_dict().items():
            value.copy_(stored[VISION + ("" if name.endswith("GN") else "img_projection.") + name])
        stored["model.embed_tokens.weight"] = stored.get(f"{VISION}wte.weight", stored.get("model.embed_tokens.weight"))
        self.model.load_state_dict({name: stored[name] for name in self.model.state_dict()})
        self.tokenizer, self.crops = Tokenizer.from_file(str(folder / "tokenizer.json")), crops
        self.inputs: dict[int, Any] = {}

    def process(self, text: str, images: list[Any]) -> Any:
        """Texts between images are tokenised each for itself."""
        texts = [self.tokenizer.encode(one).ids for one in re.split(r"<\|image_\d+\|>", text)]
        pictures, ids = [self.cut(image) for image in images], list(texts[0])
        for (rows, columns, _), behind in zip(pictures, texts[1:], strict=True):
            blocks = (rows * columns + 1) * (SIDE // 2) ** 2
            ids += [IMAGE] * (blocks + 1 + (rows + 1) * SIDE // 2) + behind
        return {"input_ids": torch.tensor([ids]), "pictures": pictures}

    def cut(self, image: Any) -> tuple[int, int, torch.Tensor]:
        """Rows and columns of squares, and how the tower sees these behind the whole image."""
        tall = image.width < image.height
        image = image.transpose(PilImage.Transpose.TRANSPOSE) if tall else image
        ratio, columns = image.width / image.height, 1
        while (columns + 1) * math.ceil((columns + 1) / ratio) <= self.crops:
            columns += 1
        image = image.resize((columns * SIZE, int(columns * SIZE / ratio)), PilImage.Resampling.BILINEAR)
        rows = math.ceil(image.height / SIZE)
        white = PilImage.new("RGB", (image.width, rows * SIZE), (255, 255, 255))
        white.paste(image, (0, int((rows * SIZE - image.height) / 2)))
        if tall:
            white, rows, columns = white.transpose(PilImage.Transpose.TRANSPOSE), columns, rows
        seen = torch.from_numpy(np.array(white)).permute(2, 0, 1).float() / 255
        seen = (seen - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        whole = nn.functional.interpolate(seen[None], size=(SIZE, SIZE), mode="bicubic")[0]
        squares = [
            seen[:, row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
            for row in range(rows)
            for column in range(columns)
        ]
        return rows, columns, torch.stack((whole, *squares))

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        found = []
        for rows, columns, pixels in self.inputs[number]["pictures"]:
            patches = self.tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
            lines = [*self.lines(patches[1:], rows, columns), self.between.glb_GN[0], *self.lines(patches[:1], 1, 1)]
            found.append(self.between(torch.cat(lines)))
        return torch.cat(found)

    def lines(self, patches: torch.Tensor, rows: int, columns: int) -> list[torch.Tensor]:
        """Each with its blocks of 2 x 2 patches, and what separates it from the next."""
        grid = torch.cat([
            torch.cat([patches[row * columns + column].view(SIDE, SIDE, -1) for column in range(columns)], dim=1)
            for row in range(rows)
        ])  # fmt: skip
        return [
            torch.cat((
                *(grid[y : y + 2, x : x + 2].reshape(1, -1) for x in range(0, columns * SIDE, 2)),
                self.between.sub_GN[0, 0],
            ))
            for y in range(0, rows * SIDE, 2)
        ]  # fmt: skip


@pytest.mark.row("F-651")
@pytest.mark.parametrize(
    ("crops", "changes"),
    [(4, {"table": f"{VISION}wte"}), (6, LONGROPE)],
    ids=["3, its embedding under another name", "3.5, short factors"],
)
def test_inputs_embeddings_logits_and_tokens_equal_the_published_rules(
    crops: int, changes: dict[str, Any], catalog: Any, shower: Any, picture: Any, tmp_path: Path
) -> None:
    folder = publish(tmp_path, crops=crops, **changes)
    reference, shows, shown = Reference(folder, crops), shower(folder, "phi3v"), {}
    for number, (text, sizes) in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(sizes)]
        theirs = reference.read(number, text, pictures)
        text = spell(text, shows.placement) if pictures else text
        ids = reference.tokenizer.encode(text, add_special_tokens=not pictures).ids
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == theirs["input_ids"][0].tolist()
        for media, (rows, columns, squares) in zip(placed.media, theirs["pictures"], strict=True):
            assert np.frombuffer(media.inputs["layout"].data, np.int64).tolist() == [rows, columns]
            np.testing.assert_allclose(seen_pixels(media), squares[1:].numpy(), atol=1e-6)
    layouts = [picture[:2] for theirs in reference.inputs.values() for picture in theirs["pictures"]]
    assert {np.sign(rows - columns) for rows, columns in layouts} == {-1, 0, 1}, "wide, square and tall"
    reference.check(engine_config(folder, "phi3v"), catalog, shown)


# as published, but for keys without a meaning and the factors of its 48 pairs
PHI_3_VISION = {
    "architectures": ["Phi3VForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0,
    "embd_layer": {
        "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp", "use_hd_transform": True,
        "with_learnable_separator": True,
    },
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
    "img_processor": {
        "image_dim_out": 1024, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
        "num_img_tokens": 144,
    },
    "max_position_embeddings": 131072, "model_type": "phi3_v", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.03] * 48, "short_factor": [1.05] * 48, "type": "su"}, "rope_theta": 10000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 32064, "_attn_implementation": "flash_attention_2",
}  # fmt: skip
LANGUAGE = 2 * 32064 * 3072 + 3072 + 32 * ((4 * 3072 + 3 * 8192) * 3072 + 2 * 3072)
CLIP = 1024 * (1 + 577 + 3 * 14 * 14 + 2) + 23 * (1024 * (4 * 1024 + 4 + 2 * 4096 + 1 + 4) + 4096)
BETWEEN = 2 * 4096 + (4096 + 1) * 3072 + (3072 + 1) * 3072


def test_a_published_config_is_understood(catalog: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PHI_3_VISION))
    declared = declare(engine_config(tmp_path, "phi3v"), catalog)
    assert declared.model.encoder.parts == 23, "of 24"
    assert stored_bytes(declared) == 4 * (LANGUAGE + CLIP + BETWEEN)


def test_pictures_at_their_published_size(shower: Any, picture: Any, tmp_path: Path) -> None:
    folder = publish(tmp_path)
    (folder / "config.json").write_text(json.dumps(PHI_3_VISION))
    shows = shower(folder, "phi3v")
    counted = {crops: len(shows.place([IMAGE], [picture(1770, 1180)], num_crops=crops).ids) for crops in (4, 16)}
    assert counted == {4: 757, 16: 1921}


@torch.inference_mode()
def test_the_largest_item_has_as_many_embeddings_as_are_taken(catalog: Any, tmp_path: Path) -> None:
    encoder = load(engine_config(publish(tmp_path), "phi3v"), catalog).model.encoder
    for most, crops in ((13, 1), (16, 1), (17, 2), (79, 17)):
        inputs = encoder.largest(most)
        state = encoder.begin(inputs)
        for part in range(encoder.parts):
            state = encoder.advance(state, part)
        assert len(inputs["pixel_values"]) == crops
        assert most - 4 < len(state) <= most


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"img_processor": {"name": "siglip"}}, "name is 'siglip', and this architecture has 'clip_vision_model'"),
        ({"img_processor": {"image_dim_out": 1152}}, "image_dim_out is 1152, and this architecture has 32"),
        ({"img_processor": {"num_img_tokens": 256}}, "num_img_tokens is 256, and this architecture has 4"),
        ({"img_processor": {"type_feature": "cls_patch"}}, "type_feature is 'cls_patch'"),
        ({"img_processor": {"layer_idx": -5}}, "img_processor.layer_idx must be one of the tower's 3, got -5"),
        ({"img_processor": {"image_size": 448}}, "img_processor of Phi-3-vision does not know .*image_size"),
        ({"embd_layer": {"hd_transform_order": "glb_sub"}}, "embd_layer.hd_transform_order must be 'sub_glb'"),
        ({"embd_layer": {"use_hd_transform": None}}, "embd_layer.use_hd_transform must be True, got None"),
        ({"vision_config": {"patch_size": 4}}, "has 7 patches, which make no pairs"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "model_type is 'siglip_vision_model'"),
        ({"residual_scale": 2.0}, "keys Phi3V does not know .*residual_scale"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, catalog: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(publish(tmp_path), "phi3v", overrides=overrides), catalog)


def test_images_are_numbered_as_they_are_given(shower: Any, picture: Any, tmp_path: Path) -> None:
    placement = shower(publish(tmp_path), "phi3v").placement
    assert spell("<|image_1|>\n<|image_2|>?", placement) == "<bos><|image|><bos>\n<|image|><bos>?"
    assert spell("nothing to see", placement) == "nothing to see"
    assert spell("<|image|>\n<|image_2|>?", placement) == spell("<|image_1|>\n<|image|>?", placement)
    for text, mark, expected in (
        ("<|image_2|> <|image_1|>", 2, 1), ("<|image_1|> <|image_1|>", 1, 2), ("<|image_7|>", 7, 1),
        ("<|image_1|> <|image_3|>", 3, 2),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=rf"has <\|image_{mark}\|> where <\|image_{expected}\|> is expected"):
            spell(text, placement)
    with pytest.raises(BadRequest, match=r"where <\|image_1\|> is expected"):
        spell(f"<|image_{'9' * 5000}|>", placement)


def test_pictures_and_options_it_can_not_take(shower: Any, picture: Any, clip: Any, tmp_path: Path) -> None:
    shows = shower(publish(tmp_path), "phi3v")
    with pytest.raises(BadRequest, match="900 x 4 is too thin"):
        shows.place([IMAGE], [picture(900, 4)])
    with pytest.raises(BadRequest, match="no option max_pixels: it takes num_crops"):
        shows.place([IMAGE], [picture(30, 40)], max_pixels=9)
    with pytest.raises(BadRequest, match="no video"):
        shows.place([IMAGE], [clip(4, 30, 40)])
    for crops in (0, 17, 2.0, True, None):
        with pytest.raises(BadRequest, match=f"num_crops must be a whole number from 1 to 16, got {crops}"):
            shows.place([IMAGE], [picture(30, 40)], num_crops=crops)
    with pytest.raises(BadRequest, match="the media do not fit the prompt"):
        shows.place([IMAGE], [])
    counted = {crops: len(shows.place([IMAGE], [picture(50, 50)], num_crops=crops).ids) for crops in (1, 4, 16)}
    assert counted == {1: 13, 4: 27, 16: 79}, "more than the checkpoint says, up to 16"
    for size in ((1, 1), (3, 7), (200, 1), (1, 200)):
        for crops in (1, 16):
            shows.place([IMAGE], [picture(*size)], num_crops=crops)


def test_files_that_are_not_there_or_wrong(shower: Any, tmp_path: Path) -> None:
    folder = publish(tmp_path)
    settings, tokens = folder / "preprocessor_config.json", folder / "tokenizer.json"
    for crops in (0, "4", True):
        settings.write_text(json.dumps({"num_crops": crops}))
        with pytest.raises(CheckpointError, match=f"num_crops must be a positive whole number, got {crops!r}"):
            shower(folder, "phi3v")
    settings.unlink()
    with pytest.raises(CheckpointError, match=r"no image processor: preprocessor_config\.json is missing"):
        shower(folder, "phi3v")
    settings.write_text("{}")
    text = tokens.read_text()
    tokens.write_text(text.replace("<|image|>", "<|picture|>"))
    with pytest.raises(CheckpointError, match=r"the tokenizer has no token <\|image\|>"):
        shower(folder, "phi3v")
    tokens.unlink()
    (folder / "added_tokens.json").write_text(json.dumps({"<|image|>": IMAGE}))
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        shower(folder, "phi3v")


def as_link(picture: Image) -> str:
    file = io.BytesIO()
    PilImage.fromarray(picture.pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_engine_in_chunks_with_prefixes_and_preemption(
    shower: Any, picture: Any, check_engine: Any, tmp_path: Path
) -> None:
    folder = publish(tmp_path)
    shows, tokenizer = shower(folder, "phi3v"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    pictures = [picture(60, 40), picture(33, 90, 1)]

    def show(text: str, chosen: Any) -> Any:
        return shows.place(tokenizer.encode(spell(text, shows.placement), add_special_tokens=False).ids, chosen)

    asked = "<|user|>\n<|image_1|>\nWhat?<|end|>\n<|assistant|>\n"
    both = "<|image_1|>\n<|image_2|>\n?"
    prompts = [
        show(asked, pictures[:1]), show(both, pictures), show("nothing to see", []),
        show(asked.replace("What", "Where"), pictures[:1]), show(asked, pictures[1:]),
    ]  # fmt: skip
    roomy, expected = check_engine(folder, prompts, 9, length=128)
    assert expected[0] != expected[4]
    shown = {"image": [one.pixels for one in pictures]}
    assert roomy.ask({"prompt": both, "multi_modal_data": shown}, 40) == expected[1]
    parts = [{"type": "image_url", "image_url": {"url": as_link(pictures[0])}}, {"type": "text", "text": "What?"}]
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    (answer,) = roomy.llm.chat([{"role": "user", "content": parts}], sampling)
    assert list(answer.prompt_token_ids) == list(prompts[0].ids), "its own template takes texts alone"
    assert list(answer.outputs[0].token_ids) == expected[0]
