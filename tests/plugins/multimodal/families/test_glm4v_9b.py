"""GLM-4V-9B gives the inputs, places, embeddings, logits and tokens of its published definition:
``modeling_chatglm.py`` and ``visual.py``, which come with it, written plainly.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from safetensors.torch import load_file, save_file
from torch.nn import functional

from lsv import SamplingParams
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, seen_pixels

from .conftest import as_link, check_embeddings, parts_of

FAMILY = "glm4v_9b"
ADDED = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|begin_of_image|>", "<|end_of_image|>",
)  # fmt: skip
# the token between an image's beginning and its end is the one that ends texts
PAD, GMASK, SOP, USER, ASSISTANT, BOI, EOI = range(256, 263)
BEGIN, SEE = [GMASK, SOP], [BOI, PAD, EOI]
MARK = "<|begin_of_image|><|endoftext|><|end_of_image|>"
COUNT = 6
OVERRIDES = {"architectures": ["GLM4VForCausalLM"]}
# as tokenizers of the family have it, for texts alone; the other one is documented
TEMPLATE = (
    "[gMASK]<sop>{% for item in messages %}{% if item['content'] %}<|{{ item['role'] }}|>{{ item['metadata'] }}\n"
    "{{ item['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GUIDE = (Path(__file__).parents[4] / "docs" / "media.md").read_text(encoding="utf-8")
GIVEN = GUIDE.partition("### GLM-4V-9B")[2].partition("```jinja\n")[2].partition("\n```")[0]
VISION = {
    "dropout_prob": 0.0, "hidden_act": "gelu", "in_channels": 3, "num_hidden_layers": 2, "hidden_size": 32,
    "patch_size": 7, "num_heads": 2, "intermediate_size": 48, "layer_norm_eps": 1e-06, "num_positions": 17,
    "image_size": 28, "scaling_factor": 8,
}  # fmt: skip
CONFIG = {
    "architectures": ["ChatGLMModel"], "model_type": "chatglm",
    "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig", "AutoModel": "modeling_chatglm.ChatGLM"},
    "add_bias_linear": False, "add_qkv_bias": True, "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True, "ffn_hidden_size": 96, "fp32_residual_connection": False, "hidden_dropout": 0.0,
    "hidden_size": 64, "kv_channels": 16, "layernorm_epsilon": 1.5625e-07, "multi_query_attention": True,
    "multi_query_group_num": 2, "num_attention_heads": 4, "num_layers": 2, "original_rope": True,
    "padded_vocab_size": 320, "vocab_size": 320, "post_layer_norm": True, "rmsnorm": True, "rope_ratio": 1,
    "seq_length": 8192, "use_cache": True, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "eos_token_id": [PAD], "pad_token_id": PAD, "boi_token_id": BOI, "eoi_token_id": EOI, "vision_config": VISION,
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    size, inner, eva, wide = 64, 96, 32, 48
    found: dict[str, tuple[int, ...]] = {
        "embedding.word_embeddings.weight": (320, size), "encoder.final_layernorm.weight": (size,),
        "output_layer.weight": (320, size), "rotary_pos_emb.inv_freq": (4,),
        "vision.patch_embedding.proj.weight": (eva, 3, 7, 7), "vision.patch_embedding.proj.bias": (eva,),
        "vision.patch_embedding.cls_embedding": (1, eva), "vision.patch_embedding.position_embedding.weight": (17, eva),
        "vision.conv.weight": (size, eva, 2, 2), "vision.conv.bias": (size,),
        "vision.linear_proj.linear_proj.weight": (size, size), "vision.linear_proj.norm1.weight": (size,),
        "vision.linear_proj.norm1.bias": (size,), "vision.linear_proj.gate_proj.weight": (inner, size),
        "vision.linear_proj.dense_h_to_4h.weight": (inner, size), "vision.boi": (1, 1, size),
        "vision.linear_proj.dense_4h_to_h.weight": (size, inner), "vision.eoi": (1, 1, size),
    }  # fmt: skip
    for layer in range(2):
        at, seen = f"encoder.layers.{layer}", f"vision.transformer.layers.{layer}"
        found |= {f"{at}.{norm}.weight": (size,) for norm in ("input_layernorm", "post_attention_layernorm")}
        found |= {
            f"{at}.self_attention.query_key_value.weight": (128, size),
            f"{at}.self_attention.query_key_value.bias": (128,),
            f"{at}.self_attention.dense.weight": (size, size),
            f"{at}.mlp.dense_h_to_4h.weight": (2 * inner, size), f"{at}.mlp.dense_4h_to_h.weight": (size, inner),
        }  # fmt: skip
        linears = {
            "attention.query_key_value": (3 * eva, eva), "attention.dense": (eva, eva), "mlp.fc1": (wide, eva),
            "mlp.fc2": (eva, wide), "input_layernorm": (eva,), "post_attention_layernorm": (eva,),
        }  # fmt: skip
        found |= {f"{seen}.{name}.weight": shape for name, shape in linears.items()}
        found |= {f"{seen}.{name}.bias": shape[:1] for name, shape in linears.items()}
    return {f"transformer.{name}": shape for name, shape in found.items()}


def publish(path: Path, **changes: Any) -> Path:
    """A tiny checkpoint as THUDM writes it; what its tokenizer merges is single bytes."""
    torch.manual_seed(0)
    save_file(
        {
            name: torch.normal(float(len(shape) == 1 and not name.endswith("bias")), 0.2, shape)
            for name, shape in shapes().items()
        },
        path / "model.safetensors",
    )
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256))
    (path / "tokenizer.model").write_text("\n".join(lines))
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLM4Tokenizer", None]}, "image_size": 28,
        "added_tokens_decoder": {256 + place: {"content": name, "special": True} for place, name in enumerate(ADDED)},
        "chat_template": TEMPLATE, "eos_token": "<|endoftext|>", "tokenizer_class": "ChatGLM4Tokenizer",
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


class Reference:
    """The published model over a checkpoint, in float32 and without a cache."""

    def __init__(self, folder: Path, shown: Mapping[int, Prompt]) -> None:
        at = "transformer."
        self.t = {name.removeprefix(at): value for name, value in load_file(folder / "model.safetensors").items()}
        self.shown = shown

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.t[f"{name}.weight"], self.t.get(f"{name}.bias"))

    def norm(self, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
        weight = self.t[f"{name}.weight"]
        return functional.layer_norm(x, weight.shape, weight, self.t[f"{name}.bias"], eps)

    def rms(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1.5625e-07) * self.t[f"{name}.weight"]

    def embeddings(self, media: Any) -> torch.Tensor:
        """visual.py: the beginning, four blocks of patches and the end."""
        pixels, at = torch.from_numpy(seen_pixels(media)), "vision.patch_embedding"
        x = functional.conv2d(pixels, self.t[f"{at}.proj.weight"], self.t[f"{at}.proj.bias"], stride=7)
        x = torch.cat((self.t[f"{at}.cls_embedding"], x.flatten(2).transpose(1, 2)[0]))
        x = x + self.t[f"{at}.position_embedding.weight"]
        for layer in range(2):
            at = f"vision.transformer.layers.{layer}"
            q, k, v = self.linear(f"{at}.attention.query_key_value", x).reshape(17, 3, 2, 16).unbind(1)
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(16)
            attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
            x = x + self.norm(f"{at}.input_layernorm", self.linear(f"{at}.attention.dense", attended), 1e-6)
            inner = functional.gelu(self.linear(f"{at}.mlp.fc1", x))
            x = x + self.norm(f"{at}.post_attention_layernorm", self.linear(f"{at}.mlp.fc2", inner), 1e-6)
        grid = x[1:].view(1, 4, 4, 32).permute(0, 3, 1, 2)
        merged = functional.conv2d(grid, self.t["vision.conv.weight"], self.t["vision.conv.bias"], stride=2)
        at = "vision.linear_proj"
        x = self.linear(f"{at}.linear_proj", merged.flatten(2).transpose(1, 2)[0])
        x = functional.gelu(self.norm(f"{at}.norm1", x, 1e-5))
        x = functional.silu(self.linear(f"{at}.gate_proj", x)) * self.linear(f"{at}.dense_h_to_4h", x)
        x = self.linear(f"{at}.dense_4h_to_h", x)
        return torch.cat((self.t["vision.boi"][0], x, self.t["vision.eoi"][0])) / 8

    def places(self, placed: Prompt, length: int) -> torch.Tensor:
        """modeling_chatglm.py: where the three tokens of a picture stand, the middle one as often as it has blocks."""
        first = placed.media[0].start if placed.media else length
        plain = torch.arange(length)
        return torch.cat((plain[: first + 1], plain[first + 1 : first + 2].repeat(COUNT - 2), plain[first + 2 :]))[
            :length
        ]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        placed = self.shown[number]
        x = self.t["embedding.word_embeddings.weight"][list(ids)]
        for media in placed.media:
            x[media.start : media.stop] = self.embeddings(media)
        places = self.places(placed, len(ids))
        angles = (places[:, None] / 10000.0 ** (torch.arange(0, 8, 2) / 8))[:, None]
        for layer in range(2):
            at = f"encoder.layers.{layer}"
            mixed = self.linear(f"{at}.self_attention.query_key_value", self.rms(f"{at}.input_layernorm", x))
            q, k, v = (part.unflatten(-1, (-1, 16)) for part in mixed.split([64, 32, 32], dim=-1))
            attended = _attend(_turn(q, angles), _turn(k, angles), v)
            x = x + self.linear(f"{at}.self_attention.dense", attended)
            inner = self.linear(f"{at}.mlp.dense_h_to_4h", self.rms(f"{at}.post_attention_layernorm", x))
            gate, up = inner.chunk(2, dim=-1)
            x = x + self.linear(f"{at}.mlp.dense_4h_to_h", functional.silu(gate) * up)
        return self.linear("output_layer", self.rms("encoder.final_layernorm", x))


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The first half of the features of heads rotates, neighbours together."""
    a, b = x[..., :8].unflatten(-1, (4, 2)).unbind(-1)
    turned = torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
    return torch.cat((turned.flatten(-2), x[..., 8:]), dim=-1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / 4
    scores = scores.masked_fill(torch.ones(len(q), len(q), dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp(FAMILY))


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any) -> dict[int, Prompt]:
    """A picture first, later and last, and text alone, in which the token between an image's two stands, too."""
    shows = shower(folder, FAMILY)
    return {
        0: shows.place([*BEGIN, *SEE, *b"what is there, and what is beside it?"], [picture(60, 40)]),
        1: shows.place([*b"some text, then ", *SEE, *b"?"], [picture(20, 70, 1)]),
        2: shows.place([*b"nothing to see", PAD, *b"here"], []),
        3: shows.place([*b"at the end", *SEE], [picture(28, 28)]),
    }


@pytest.mark.row("F-665")
def test_places_embeddings_logits_and_tokens_equal_the_definition(
    folder: Path, catalog: Any, prompts: dict[int, Prompt]
) -> None:
    reference = Reference(folder, prompts)
    check_embeddings(load(engine_config(folder, FAMILY), catalog).model.encoder, prompts, reference.embeddings)
    for placed in prompts.values():
        assert all(media.count == COUNT for media in placed.media)
        if placed.positions is not None:
            places = np.frombuffer(placed.positions.data, np.int32).reshape(3, -1)
            assert places.tolist() == [reference.places(placed, len(placed.ids)).tolist()] * 3
            assert placed.positions.offset == -3
    check_shown(engine_config(folder, FAMILY), catalog, prompts, reference.logits)


@pytest.mark.row("F-665")
def test_pictures_are_squares(folder: Path, shower: Any, picture: Any) -> None:
    """As ``torchvision.transforms`` make them in the published code: PIL's bicubic, bytes to 0 … 1, CLIP's colours."""
    shows = shower(folder, FAMILY)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    for size in ((60, 40), (28, 28), (8, 8), (3, 200), (1, 1)):
        image = PilImage.fromarray(picture(*size).pixels).resize((28, 28), PilImage.Resampling.BICUBIC)
        expected = ((np.asarray(image) / 255 - mean) / std).transpose(2, 0, 1)[None]
        (media,) = shows.place(SEE, [picture(*size)]).media
        np.testing.assert_allclose(seen_pixels(media), expected, rtol=0, atol=1e-5)
        assert shows.processor.resized(*size) == (28, 28)


@pytest.mark.row("F-665", "F-242")
@pytest.mark.parametrize("overrides", [{}, OVERRIDES])
def test_it_is_told_from_checkpoints_of_text_alone(folder: Path, engine: Any, overrides: Any, tmp_path: Path) -> None:
    """By its ``vision_config``, or by what users of vLLM say."""
    config = engine(folder, hf_overrides=overrides).llm.llm_engine.client.config
    assert (config.architecture, config.model_offer) == ("GLM4VForCausalLM", FAMILY)
    assert config.pooler.task == "generate"
    stored = load_file(folder / "model.safetensors")
    save_file({name: stored[name] for name in stored if ".vision." not in name}, tmp_path / "model.safetensors")
    for name in ("tokenizer.model", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    text = {name: value for name, value in CONFIG.items() if name != "vision_config"}
    (tmp_path / "config.json").write_text(json.dumps(text))
    config = engine(tmp_path).llm.llm_engine.client.config
    assert (config.architecture, config.model_offer) == ("ChatGLMModel", "chatglm")


@pytest.mark.row("F-665")
def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    vision = {
        **VISION, "num_hidden_layers": 63, "hidden_size": 1792, "patch_size": 14, "num_heads": 16,
        "intermediate_size": 15360, "num_positions": 6401, "image_size": 1120,
    }  # fmt: skip
    config = {
        **CONFIG, "ffn_hidden_size": 13696, "hidden_size": 4096, "kv_channels": 128, "num_attention_heads": 32,
        "num_layers": 40, "padded_vocab_size": 151552, "eos_token_id": [151329, 151336, 151338],
        "pad_token_id": 151329, "boi_token_id": 151339, "eoi_token_id": 151340, "vision_config": vision,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = declare(engine_config(tmp_path, FAMILY), catalog)
    assert stored_bytes(declared) == 4 * 13_906_320_896
    assert declared.model.encoder.parts == 63


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vision_config": {"deepstack_visual_indexes": [1]}}, "keys EVA2-CLIP does not know"),
        ({"vision_config": {"num_positions": 16}}, "num_positions is 16, and this architecture has 17"),
        ({"vision_config": {"scaling_factor": 0}}, "scaling_factor must be positive, got 0.0"),
        ({"vision_config": None}, "vision_config must be dict, got None"),
        ({"future_layers": 3}, "keys Glm4v9b does not know .*future_layers"),
        ({"boi_token_id": 320}, "boi_token_id is 320, but the vocabulary ends at 320"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, FAMILY, overrides=overrides), catalog)


def test_what_it_does_not_take_is_refused(folder: Path, shower: Any, picture: Any, clip: Any) -> None:
    shows, one = shower(folder, FAMILY), picture(30, 40)
    for ids, shown, why in (
        ([*SEE, *SEE], [one, one], "takes one image a prompt, got 2"),
        ([*SEE, *SEE], [one], "takes one image a prompt, got 2"),
        ([*SEE], [one, one], "takes one image a prompt, got 2"),
        ([BOI, *b"?"], [one], r"the place of the image in a prompt must be <\|begin_of_image"),
        ([*b"?"], [one], "1 of 1 items have no place"),
        (SEE, [], "a place for an item of kind image where there is nothing"),
        (SEE, [clip(2, 30, 40)], "takes images, no audio and no video"),
    ):
        with pytest.raises(BadRequest, match=why):
            shows.place(ids, shown)
    with pytest.raises(BadRequest, match="no option max_pixels: it takes none"):
        shows.place(SEE, [one], max_pixels=400)


@pytest.mark.row("F-665")
def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, prompts: dict[int, Prompt], picture: Any, check_engine: Callable[..., Any]
) -> None:
    shows = shower(folder, FAMILY)
    shown = [
        *prompts.values(),
        shows.place([*BEGIN, *SEE, *b"what is there, and what is beside it?"], [picture(40, 60)]),
    ]
    roomy, expected = check_engine(folder, shown, 5, length=128, longest=256, step=8, tokens=48)
    assert expected[0] != expected[-1]
    text = f"{MARK}what is there, and what is beside it?"
    prompt = {"prompt": text, "multi_modal_data": {"image": picture(60, 40).pixels}}
    assert roomy.ask(prompt, 48) == expected[0]


@pytest.mark.row("F-665", "F-185")
def test_chats_have_a_place_for_the_picture(folder: Path, engine: Any, picture: Any) -> None:
    """By the template of the checkpoint, which takes text alone, and by one that is given."""
    one, start, image = engine(folder), [*BEGIN, USER, 10], [BOI, *[PAD] * 4, EOI]
    link = {"type": "image_url", "image_url": {"url": as_link(picture(16, 16))}}
    for parts, template, expected in (
        ([link, "Hi"], None, [*image, *b"\nHi"]),
        ([link, f"{MARK}Hi"], None, [*image, *b"Hi"]),
        ([link, "Hi"], GIVEN, [*image, *b"Hi"]),
        (["Hi"], None, [*b"Hi"]),
    ):
        params = SamplingParams(temperature=0.0, max_tokens=2)
        (answer,) = one.llm.chat([{"role": "user", "content": parts_of(parts)}], params, chat_template=template)
        assert list(answer.prompt_token_ids) == [*start, *expected, ASSISTANT]
    with pytest.raises(BadRequest, match="takes one image a prompt, got 2"):
        one.llm.chat([{"role": "user", "content": [link, link]}], SamplingParams(max_tokens=2))
