"""dots.ocr gives the inputs, embeddings, logits and tokens of its published definition: its tower, written plainly from
the ``modeling_dots_vision.py`` that comes with it, before transformers' Qwen2.
"""

from __future__ import annotations

import json
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
from lsv_testing.shown import check_shown
from lsv_testing.tiny import SHAPE, draw_weights, write_tokenizer
from lsv_testing.tiny_seeing import Seeing

from .conftest import as_link, check_embeddings, parts_of, patches, read

FAMILY = "dots_ocr"
START, PAD, END = 259, 260, 261
SEE = [START, PAD, END]
MARK = "<|img|><|imgpad|><|endofimg|>"
# as published
TEMPLATE = """{%- for m in messages %}
    {%- if m.role == 'system' %}
        {{- '<|system|>' + m.content + '<|endofsystem|>\\n' }}
    {%- elif m.role == 'user' %}
        {{- '<|user|>' + m.content + '<|endofuser|>' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|assistant|>' + m.content }}
        {%- if not loop.last %}
            {{- '<|endofassistant|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if messages[-1].role != 'assistant' %}
    {{- '<|assistant|>' }}
{%- endif %}"""
SPECIALS = ("<|img|>", "<|imgpad|>", "<|endofimg|>", "<|user|>", "<|endofuser|>", "<|assistant|>")
PROCESSOR = {
    "min_pixels": 256, "max_pixels": 4096, "patch_size": 4, "temporal_patch_size": 1, "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "DotsVLProcessor",
}  # fmt: skip
VISION = {
    "embed_dim": 32, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_channels": 3, "patch_size": 4, "post_norm": True, "rms_norm_eps": 1e-05, "spatial_merge_size": 2,
    "temporal_patch_size": 1, "use_bias": False, "attn_implementation": "flash_attention_2", "init_merger_std": 0.02,
    "initializer_range": 0.02, "is_causal": False,
}  # fmt: skip
CONFIG = {
    "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr",
    "auto_map": {
        "AutoConfig": "configuration_dots.DotsOCRConfig",
        "AutoModelForCausalLM": "modeling_dots_ocr.DotsOCRForCausalLM",
    },
    **SHAPE, "attention_bias": True, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "max_window_layers": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": 512, "use_sliding_window": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "image_token_id": PAD, "video_token_id": 151656, "vision_config": VISION,
}  # fmt: skip


def publish(path: Path, *, bias: bool = False) -> Path:
    """A tiny checkpoint as rednote-hilab writes it."""
    import transformers

    torch.manual_seed(0)
    language = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**CONFIG, "torch_dtype": "float32"}))
    draw_weights(language, 0.2)
    tensors = {name: value.clone() for name, value in language.state_dict().items()}
    for name, shape in tower_shapes(bias).items():
        one = len(shape) == 1 and not name.endswith("bias")
        tensors[f"vision_tower.{name}"] = torch.normal(float(one), 0.2, shape)
    save_file(tensors, path / "model.safetensors")
    config = {**CONFIG, "vision_config": {**VISION, "use_bias": bias}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 264], "max_length": 32768}))
    write_tokenizer(path, Seeing({}, "", {}, specials=SPECIALS))
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return path


def tower_shapes(bias: bool) -> dict[str, tuple[int, ...]]:
    size, inner, wide, out = 32, 48, 4 * 32, 64
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.patchifier.proj.weight": (size, 3, 4, 4), "patch_embed.patchifier.proj.bias": (size,),
        "patch_embed.patchifier.norm.weight": (size,), "post_trunk_norm.weight": (size,),
        "merger.ln_q.weight": (size,), "merger.ln_q.bias": (size,),
        "merger.mlp.0.weight": (wide, wide), "merger.mlp.0.bias": (wide,),
        "merger.mlp.2.weight": (out, wide), "merger.mlp.2.bias": (out,),
    }  # fmt: skip
    linears = {
        "attn.qkv": (3 * size, size), "attn.proj": (size, size), "mlp.fc1": (inner, size), "mlp.fc3": (inner, size),
        "mlp.fc2": (size, inner),
    }  # fmt: skip
    for at in ("blocks.0", "blocks.1"):
        shapes |= {f"{at}.{norm}.weight": (size,) for norm in ("norm1", "norm2")}
        shapes |= {f"{at}.{name}.weight": shape for name, shape in linears.items()}
        shapes |= {f"{at}.{name}.bias": shape[:1] for name, shape in linears.items() if bias}
    return shapes


def see(t: Mapping[str, torch.Tensor], pixels: torch.Tensor, grid: Sequence[int]) -> torch.Tensor:
    """The published tower: pixels [patches, 3 * 4 * 4] in blocks of 2 x 2 -> [patches / 4, 64]."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))

    def rms(name: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * t[f"{name}.weight"]

    _, height, width = grid
    at = "patch_embed.patchifier"
    x = functional.conv2d(pixels.view(-1, 3, 4, 4), t[f"{at}.proj.weight"], t[f"{at}.proj.bias"])[:, :, 0, 0]
    x = rms(f"{at}.norm", x)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    rows, columns = (
        one.reshape(height // 2, 2, width // 2, 2).permute(0, 2, 1, 3).flatten()[:, None] for one in (rows, columns)
    )
    inverse = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    angles = torch.cat((rows * inverse, columns * inverse), dim=1).repeat(1, 2)[:, None]
    for layer in range(2):
        at = f"blocks.{layer}"
        q, k, v = linear(f"{at}.attn.qkv", rms(f"{at}.norm1", x)).view(-1, 3, 2, 16).unbind(1)
        q, k = (one * angles.cos() + torch.cat((-one[..., 8:], one[..., :8]), dim=-1) * angles.sin() for one in (q, k))
        scores = torch.einsum("qhd,khd->hqk", q, k) / 4
        x = x + linear(f"{at}.attn.proj", torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1))
        normed = rms(f"{at}.norm2", x)
        inner = functional.silu(linear(f"{at}.mlp.fc1", normed)) * linear(f"{at}.mlp.fc3", normed)
        x = x + linear(f"{at}.mlp.fc2", inner)
    x = functional.layer_norm(rms("post_trunk_norm", x), (32,), t["merger.ln_q.weight"], t["merger.ln_q.bias"], 1e-6)
    return linear("merger.mlp.2", functional.gelu(linear("merger.mlp.0", x.view(-1, 128))))


class Reference:
    """The published model over a checkpoint."""

    def __init__(self, folder: Path, shown: Mapping[int, Prompt]) -> None:
        import transformers

        tensors = load_file(folder / "model.safetensors")
        at = "vision_tower."
        self.tower = {name.removeprefix(at): value for name, value in tensors.items() if name.startswith(at)}
        config: Any = transformers.Qwen2Config(**{**CONFIG, "torch_dtype": "float32"})
        config._attn_implementation = "eager"
        self.language = transformers.Qwen2ForCausalLM(config).eval()
        self.language.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(at)})
        self.shown = shown

    def embeddings(self, media: Any) -> torch.Tensor:
        pixels = torch.from_numpy(patches(media)).unflatten(1, (3, 2, -1))[:, :, 0].flatten(1)
        return see(self.tower, pixels, read(media, "grid").tolist())

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        x = self.language.get_input_embeddings()(torch.tensor(ids))
        for media in self.shown[number].media:
            x[media.start : media.stop] = self.embeddings(media)
        found: torch.Tensor = self.language(inputs_embeds=x[None], use_cache=False).logits[0]
        return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp(FAMILY))


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any) -> dict[int, Prompt]:
    """Mixed sizes, two pictures, and text alone."""
    shows = shower(folder, FAMILY)
    return {
        0: shows.place([*SEE, *b"read"], [picture(60, 40)]),
        1: shows.place([*SEE, *SEE, *b"?"], [picture(28, 28), picture(20, 70, 1)]),
        2: shows.place([*b"nothing to see"], []),
    }


@pytest.mark.row("F-661", "F-721", "F-969")
@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_embeddings_logits_and_tokens_equal_the_definition(
    bias: bool, catalog: Any, prompts: dict[int, Prompt], tmp_path: Path
) -> None:
    folder = publish(tmp_path, bias=bias)
    reference = Reference(folder, prompts)
    assert all(placed.positions is None for placed in prompts.values())
    check_embeddings(load(engine_config(folder, FAMILY), catalog).model.encoder, prompts, reference.embeddings)
    check_shown(engine_config(folder, FAMILY), catalog, prompts, reference.logits)


@pytest.mark.row("F-721")
def test_pictures_are_prepared_as_transformers_does(folder: Path, shower: Any, picture: Any) -> None:
    from transformers import AutoImageProcessor

    shows, theirs = shower(folder, FAMILY), AutoImageProcessor.from_pretrained(folder, backend="pil")
    for size in ((60, 40), (8, 8), (200, 3), (3, 200), (1, 1), (90, 90)):
        media = shows.place([PAD], [picture(*size)]).media[0]
        made = theirs(images=PilImage.fromarray(picture(*size).pixels), return_tensors="np")
        once = patches(media).reshape(-1, 3, 2, 16)[:, :, 0].reshape(-1, 48)
        np.testing.assert_allclose(once, made["pixel_values"], rtol=0, atol=1e-6)
        assert read(media, "grid").tolist() == made["image_grid_thw"][0].tolist()
        assert media.count == made["image_grid_thw"].prod() // 4


def test_other_names_of_attention_are_read(folder: Path, catalog: Any, tmp_path: Path) -> None:
    """vLLM takes these, too."""
    expected = load(engine_config(folder, FAMILY), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    names = {
        name: name.replace(".attn.qkv.", ".attn.qkv_proj.").replace(".attn.proj.", ".attn.out_proj.") for name in stored
    }
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file({names[name]: value for name, value in stored.items()}, tmp_path / "model.safetensors")
    found = load(engine_config(tmp_path, FAMILY), catalog).model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.row("F-721")
def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    vision = {
        **VISION, "embed_dim": 1536, "hidden_size": 1536, "intermediate_size": 4224, "num_hidden_layers": 42,
        "num_attention_heads": 12, "patch_size": 14,
    }  # fmt: skip
    config = {
        **CONFIG, "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 131072,
        "max_window_layers": 28, "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
        "sliding_window": 131072, "vocab_size": 151936, "image_token_id": 151665, "vision_config": vision,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = declare(engine_config(tmp_path, FAMILY), catalog)
    assert stored_bytes(declared) == 4 * 3_039_179_264
    assert declared.model.encoder.parts == 42


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vision_config": {"deepstack_visual_indexes": [1]}}, "keys DotsOCR's vision_config does not know"),
        ({"vision_config": {"temporal_patch_size": 2}}, "temporal_patch_size is 2, and this architecture has 1"),
        ({"vision_config": {"is_causal": True}}, "is_causal is True, and this architecture has False"),
        ({"vision_config": {"post_norm": False}}, "post_norm is False, and this architecture has True"),
        ({"vision_config": {"hidden_size": 32}}, "vision_config makes embeddings of 32, the text has 64"),
        ({"vision_config": None}, "vision_config must be dict, got None"),
        ({"future_layers": 3}, "keys DotsOCR does not know .*future_layers"),
        ({"image_token_id": 320}, "image_token_id is 320, but the vocabulary ends at 320"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, FAMILY, overrides=overrides), catalog)


def test_what_it_does_not_take_is_refused(folder: Path, shower: Any, picture: Any, clip: Any) -> None:
    shows = shower(folder, FAMILY)
    with pytest.raises(BadRequest, match="takes images, no audio and no video"):
        shows.place([PAD], [clip(2, 30, 40)])
    with pytest.raises(BadRequest, match="no option fps: it takes min_pixels, max_pixels"):
        shows.place([PAD], [picture(30, 40)], fps=2)
    with pytest.raises(BadRequest, match="max_pixels may be at most 4096"):
        shows.place([PAD], [picture(30, 40)], max_pixels=5000)


@pytest.mark.row("F-721")
def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, prompts: dict[int, Prompt], picture: Any, check_engine: Callable[..., Any]
) -> None:
    shows = shower(folder, FAMILY)
    shown = [*prompts.values(), shows.place([*SEE, *b"read"], [picture(40, 60)])]
    roomy, expected = check_engine(folder, shown, 5, length=128, longest=256)
    assert expected[0] != expected[-1]
    shown_to = {"image": picture(60, 40).pixels}
    prompt = {"prompt": f"{MARK}read", "multi_modal_data": shown_to}
    assert roomy.ask(prompt, 40) == expected[0]


@pytest.mark.row("F-721", "F-184")
def test_prompts_are_as_published(folder: Path, engine: Any, picture: Any) -> None:
    """Its clients write the placeholder into the text; without it, as in vLLM, it stands on a line of its own."""
    one = engine(folder)
    link = {"type": "image_url", "image_url": {"url": as_link(picture(16, 16))}}
    image = [START, *[PAD] * 4, END]
    for parts, expected in (
        ([link, f"{MARK}Read."], [*image, *b"Read."]),
        ([link, "Read."], [*image, *b"\nRead."]),
        ([link, link, f"{MARK}Read {MARK}."], [*image, *b"Read ", *image, *b"."]),
    ):
        (answer,) = one.llm.chat(
            [{"role": "system", "content": "S"}, {"role": "user", "content": parts_of(parts)}],
            SamplingParams(temperature=0.0, max_tokens=2),
        )
        found = list(answer.prompt_token_ids)
        assert found == [*b"<|system|>S<|endofsystem|>\n", 262, *expected, 263, 264]
