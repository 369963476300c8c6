"""InternVL gives transformers' inputs, embeddings, logits and tokens, in its own form and as it is published."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import SamplingParams
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode, seen_pixels

from .conftest import PicturesReference, as_link

CONTEXT = 261
GREEDY = SamplingParams(temperature=0.0, max_tokens=2)
SLOW = pytest.mark.slow
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
CASES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3, norms of the 6B tower": {
        "text_config": {"model_type": "qwen3", "head_dim": 16},
        "vision_config": {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False},
    },
    "phi3": {"text_config": {"model_type": "phi3"}},
    "llama, an earlier layer": {"text_config": {"model_type": "llama"}, "vision_feature_layer": -2},
    "qwen3_moe, tied": {
        "text_config": {"model_type": "qwen3_moe", "tie_word_embeddings": True, **EXPERTS},
        "tie_word_embeddings": True,
    },
}  # fmt: skip
TEXTS = {
    0: "see <IMG_CONTEXT>\nhere", 1: "<IMG_CONTEXT>\n<IMG_CONTEXT>\n?", 2: "nothing to see", 3: "wide: <IMG_CONTEXT>",
}  # fmt: skip
SIZES = {0: [(60, 40)], 1: [(28, 28), (33, 90)], 2: [], 3: [(120, 31)]}


class Reference(PicturesReference):
    placeholder = CONTEXT

    def __init__(self, folder: Path) -> None:
        import transformers

        class Processor(transformers.InternVLProcessor):
            def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
                """Its processor of videos needs torchvision; here there is none."""

        processor = Processor(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(
                folder,
                extra_special_tokens={
                    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
                    "video_token": "<video>",
                },
            ),
            image_seq_length=4,
        )  # fmt: skip
        super().__init__(folder, "InternVLForConditionalGeneration", processor)

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        found = self.model.model.get_image_features(
            self.inputs[number]["pixel_values"],
            vision_feature_layer=self.model.config.vision_feature_layer,
            vision_feature_select_strategy="default",
        )
        return found.pooler_output.flatten(0, 1)  # type: ignore[no-any-return]


@pytest.mark.row("F-647", "F-663")
@pytest.mark.parametrize("case", [case if case == "qwen2" else pytest.param(case, marks=SLOW) for case in CASES])
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    case: str, checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    folder = checkpoint("internvl", **CASES[case])
    reference, shows, shown = Reference(folder), shower(folder, "internvl"), {}
    for number, text in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        theirs = reference.read(number, text, pictures)
        ids = reference.processor.tokenizer.encode(spell(text, shows.placement))
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == theirs["input_ids"][0].tolist()
        if pictures:
            ours = np.concatenate([seen_pixels(media) for media in placed.media])
            np.testing.assert_allclose(ours, theirs["pixel_values"].numpy(), atol=1e-6)
    reference.check(engine_config(folder, "internvl"), catalog, shown)


NAMES = (
    ("vision_tower.encoder.layer.", "vision_model.encoder.layers."), (".attention.projection_layer", ".attn.proj"),
    (".layernorm_before", ".norm1"), (".layernorm_after", ".norm2"), (".lambda_", ".ls"),
    (".attention.q_norm", ".attn.q_norm"), (".attention.k_norm", ".attn.k_norm"),
    ("vision_tower.embeddings.cls_token", "vision_model.embeddings.class_embedding"),
    ("vision_tower.embeddings.position_embeddings", "vision_model.embeddings.position_embedding"),
    ("vision_tower.embeddings.patch_embeddings.projection", "vision_model.embeddings.patch_embedding"),
    ("multi_modal_projector.layer_norm", "mlp1.0"), ("multi_modal_projector.linear_1", "mlp1.1"),
    ("multi_modal_projector.linear_2", "mlp1.3"),
)  # fmt: skip
INTERNLM2 = (
    ("model.embed_tokens", "model.tok_embeddings"), ("lm_head", "output"), (".input_layernorm", ".attention_norm"),
    (".post_attention_layernorm", ".ffn_norm"), (".self_attn.o_proj", ".attention.wo"),
    (".mlp.gate_proj", ".feed_forward.w1"), (".mlp.down_proj", ".feed_forward.w2"),
    (".mlp.up_proj", ".feed_forward.w3"),
)  # fmt: skip


def publish(folder: Path, path: Path, language: str = "", **changes: Any) -> Path:
    """The same checkpoint as OpenGVLab writes it; Llama's may be called InternLM 2."""
    own, names = json.loads((folder / "config.json").read_text()), NAMES
    vision, text = own["vision_config"], own["text_config"]
    if language:
        text, names = {**text, "model_type": language, "architectures": ["InternLM2ForCausalLM"]}, NAMES + INTERNLM2
    published = {
        "architectures": ["InternVLChatModel"], "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "model_type": "internvl_chat", "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": 28,
        "max_dynamic_patch": 6, "min_dynamic_patch": 1, "pad2square": False, "ps_version": "v2",
        "select_layer": own["vision_feature_layer"], "template": "internlm2-chat", "use_thumbnail": True,
        "use_backbone_lora": 0, "use_llm_lora": 0, "llm_config": text,
        "vision_config": {
            "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "attention_dropout": 0.0,
            "drop_path_rate": 0.0, "dropout": 0.0, "image_size": 28, "patch_size": 7, "initializer_factor": 1.0,
            "qkv_bias": vision["attention_bias"], "qk_normalization": vision["use_qk_norm"], "use_moe": False,
            "num_experts": 8, "use_flash_attn": True,
            **{name: vision[name] for name in (
                "hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "norm_type", "num_attention_heads",
                "num_channels", "num_hidden_layers",
            )},
        },
        **changes,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(published))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text((folder / name).read_text())
    stored = load_file(folder / "model.safetensors")
    fused = dict(stored)
    for name in stored:
        if name.endswith(("attention.q_proj.weight", "attention.q_proj.bias")):
            parts = [fused.pop(name.replace(".q_proj", f".{part}_proj")) for part in "qkv"]
            fused[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
        if language and "self_attn.q_proj" in name:
            heads = [fused.pop(name.replace(".q_proj", f".{part}_proj")) for part in "qkv"]
            grouped = [part.unflatten(0, (text["num_key_value_heads"], -1)) for part in heads]
            fused[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(grouped, dim=1).flatten(0, 1)
    save_file({_replace(name, names): value for name, value in fused.items()}, path / "model.safetensors")
    return path


def _replace(name: str, names: Sequence[tuple[str, str]]) -> str:
    for theirs, own in names:
        name = name.replace(theirs, own)
    return name


@pytest.mark.row("F-647", "F-663")
@pytest.mark.parametrize(
    ("case", "language"),
    [("llama, an earlier layer", "internlm2"), *(pytest.param(case, "", marks=SLOW) for case in CASES)],
)
def test_the_published_form_is_the_same_model(
    case: str, language: str, checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any, tmp_path: Path
) -> None:
    folder = checkpoint("internvl", **CASES[case])
    published = publish(folder, tmp_path, language)
    assert not (published / "preprocessor_config.json").exists(), "its colours are in no file"
    reference, own, shows, shown = Reference(folder), shower(folder, "internvl"), shower(published, "internvl_chat"), {}
    for number, text in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        reference.read(number, text, pictures)
        text = text.replace("<IMG_CONTEXT>", "<image>")
        ids = reference.processor.tokenizer.encode(spell(text, shows.placement))
        shown[number] = placed = shows.place(ids, pictures)
        expected = own.place(ids, pictures)
        assert placed.ids == expected.ids
        assert [media.inputs for media in placed.media] == [media.inputs for media in expected.media]
    check_shown(engine_config(published, "internvl_chat"), catalog, shown, reference.logits)


def test_names_of_all_ages_are_read(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("internvl", **CASES["qwen3, norms of the 6B tower"])
    expected = load(engine_config(folder, "internvl"), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    later = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if name.startswith("language_model.")
        else f"model.{name}": value
        for name, value in stored.items()
    }
    save_file(later, tmp_path / "model.safetensors")
    found = load(engine_config(tmp_path, "internvl"), catalog).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_first_version_shows_images_crossed(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any, tmp_path: Path
) -> None:
    published = publish(checkpoint("internvl"), tmp_path, ps_version="v1")
    (media,) = shower(published, "internvl_chat").place([CONTEXT], [picture(28, 28)]).media
    first, second = (
        encode(load(engine_config(published, "internvl_chat", overrides=given), catalog).model.encoder, media.inputs)
        for given in ({}, {"ps_version": "v2"})
    )
    assert torch.equal(first.view(2, 2, -1).transpose(0, 1).flatten(0, 1), second)


def test_tiles_are_as_config_json_says(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, tmp_path: Path
) -> None:
    def counted(**changes: Any) -> int:
        shows = shower(publish(checkpoint("internvl"), tmp_path, **changes), "internvl_chat")
        return len(shows.place([CONTEXT], [picture(120, 31)]).ids) // 4

    assert counted() == 5
    assert counted(use_thumbnail=False) == 4
    assert counted(max_dynamic_patch=2) == 3
    assert counted(dynamic_image_size=False) == 1


# as published, but for keys without a meaning; InternVL3's are InternVL2_5's with Qwen2.5
INTERNVL2_8B = {
    "architectures": ["InternVLChatModel"], "downsample_ratio": 0.5, "dynamic_image_size": True,
    "force_image_size": 448, "max_dynamic_patch": 12, "min_dynamic_patch": 1, "model_type": "internvl_chat",
    "ps_version": "v2", "select_layer": -1, "template": "internlm2-chat", "torch_dtype": "bfloat16",
    "use_backbone_lora": 0, "use_llm_lora": 0, "use_thumbnail": True,
    "llm_config": {
        "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "flash_attention_2", "bias": False,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "internlm2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "rope_theta": 1000000,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 92553,
    },
    "vision_config": {
        "architectures": ["InternVisionModel"], "attention_dropout": 0.0, "drop_path_rate": 0.0, "dropout": 0.0,
        "hidden_act": "gelu", "hidden_size": 1024, "image_size": 448, "initializer_factor": 1.0,
        "intermediate_size": 4096, "layer_norm_eps": 1e-06, "model_type": "intern_vit_6b", "norm_type": "layer_norm",
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14,
        "qk_normalization": False, "qkv_bias": True, "use_bfloat16": True, "use_flash_attn": True,
    },
}  # fmt: skip


def test_a_published_config_is_understood(catalog: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(INTERNVL2_8B))
    declared = declare(engine_config(tmp_path, "internvl_chat"), catalog)
    assert declared.model.encoder.parts == 24
    assert stored_bytes(declared) == 4 * 8_075_365_376


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"llm_config": {"model_type": "phi"}}, "llm_config.model_type is one of internlm2, llama, .*, got 'phi'"),
        ({"vision_config": {"model_type": "siglip"}}, "model_type is 'siglip', and this architecture has"),
        ({"vision_config": {"use_moe": True}}, "keys InternViT does not know .*num_experts"),
        ({"vision_config": {"norm_type": "none"}}, "norm_type must be layer_norm or rms_norm, got 'none'"),
        ({"vision_config": {"image_size": [28, 35]}}, "image_size must be the same for both axes"),
        ({"select_layer": -5}, "select_layer must be one of the tower's 3, got -5"),
        ({"downsample_ratio": 0.3}, "downsample_ratio must be 1, 1/2"),
        ({"force_image_size": 448}, "force_image_size is 448, and this architecture has 28"),
        ({"pad2square": True}, "pad2square is True"),
        ({"ps_version": "v3"}, "ps_version must be v1 or v2, got 'v3'"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path
) -> None:
    published = publish(checkpoint("internvl"), tmp_path)
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(published, "internvl_chat", overrides=overrides), catalog)


def test_a_head_of_its_own_is_read(checkpoint: Callable[..., Path], catalog: Any) -> None:
    """transformers follows the tie of the whole config.json, not of its text section, and never ties two stored
    tensors.
    """
    config = engine_config(checkpoint("internvl"), "internvl", overrides={"tie_word_embeddings": True})
    assert not load(config, catalog).ties
    declared = declare(config, catalog)
    assert [tie.head for tie in declared.ties] == ["lm_head.weight"]


def test_pictures_and_options_it_can_not_take(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, clip: Any, tmp_path: Path
) -> None:
    folder = checkpoint("internvl")
    for shows, option in (
        (shower(folder, "internvl"), "max_patches"),
        (shower(publish(folder, tmp_path), "internvl_chat"), "max_dynamic_patch"),
    ):
        with pytest.raises(BadRequest, match="900 x 4 is too thin"):
            shows.place([CONTEXT], [picture(900, 4)])
        with pytest.raises(BadRequest, match="no option min_pixels"):
            shows.place([CONTEXT], [picture(30, 40)], min_pixels=9)
        with pytest.raises(BadRequest, match="no video"):
            shows.place([CONTEXT], [clip(4, 30, 40)])
        with pytest.raises(BadRequest, match=f"{option}=7 must be in order, and at most 6"):
            shows.place([CONTEXT], [picture(30, 40)], **{option: 7})
        with pytest.raises(BadRequest, match=f"{option} must be a positive whole number, got 0"):
            shows.place([CONTEXT], [picture(30, 40)], **{option: 0})
        assert len(shows.place([CONTEXT], [picture(90, 30)], **{option: 1}).ids) == 4
        for size in ((1, 1), (3, 7), (200, 1), (1, 200)):
            shows.place([CONTEXT], [picture(*size)])


def test_a_tokenizer_without_its_token_is_refused(checkpoint: Callable[..., Path], shower: Any, tmp_path: Path) -> None:
    published = publish(checkpoint("internvl"), tmp_path)
    settings = (published / "tokenizer.json").read_text().replace("<IMG_CONTEXT>", "<nothing>")
    (published / "tokenizer.json").write_text(settings)
    with pytest.raises(CheckpointError, match="the tokenizer has no token <IMG_CONTEXT>"):
        shower(published, "internvl_chat")


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, check_engine: Any
) -> None:
    folder = checkpoint("internvl")
    shows = shower(folder, "internvl")
    pictures = [picture(60, 40), picture(33, 90, 1)]
    prompts = [
        shows.place([*b"see", 259, CONTEXT, 260, *b"here"], pictures[:1]),
        shows.place([259, CONTEXT, 260, 259, CONTEXT, 260, *b"?"], pictures),
        shows.place([*b"nothing to see"], []),
        shows.place([*b"see", 259, CONTEXT, 260, *b"there"], pictures[:1]),
        shows.place([*b"see", 259, CONTEXT, 260, *b"here"], pictures[1:]),
    ]
    roomy, expected = check_engine(folder, prompts, 9, length=192)
    assert expected[0] != expected[4]
    shown = {"image": [one.pixels for one in pictures]}
    for text in ("<image><image>?", "<IMG_CONTEXT><img><IMG_CONTEXT></img>?"):
        assert roomy.ask({"prompt": text, "multi_modal_data": shown}, 40) == expected[1]
    link = {"type": "image_url", "image_url": {"url": as_link(pictures[0])}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "see"}, link, {"type": "text", "text": "here"}]}]
    (answer,) = roomy.llm.chat(chat, GREEDY, chat_template="{{ messages[0]['content'] }}")
    assert list(answer.prompt_token_ids) == [*b"see\n", *prompts[0].ids[3:-4], *b"\nhere"], "a template of texts alone"
