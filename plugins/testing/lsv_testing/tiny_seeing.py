"""What tiny checkpoints of families that see need beside a language model's: a tower, a processor, a template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TOWER: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
_SQUARE: Mapping[str, Any] = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
_TILES = [[28, 56], [56, 28], [56, 56], [28, 84], [84, 28]]


@dataclass(frozen=True, slots=True)
class Seeing:
    """A family's own keys of config.json, its image processor, and how its template writes an item.

    ``specials`` are the tokens behind those of the tiny tokenizer, from id 259 on.
    """

    config: Mapping[str, Any]
    processor: str
    options: Mapping[str, Any]
    language: str = "llama"
    text: Mapping[str, Any] = field(default_factory=dict)
    specials: tuple[str, ...] = ("<image>",)
    items: Mapping[str, str] = field(default_factory=lambda: {"image": "<image>"})
    listens: Mapping[str, Any] = field(default_factory=dict)
    """What its feature extractor, if it has one, is unlike Whisper's in."""

    @property
    def template(self) -> str:
        """Content is a text, or a list of typed parts."""
        parts = "".join(
            f"{{% {'el' * (number > 0)}if p['type'] == '{kind}' %}}{text}"
            for number, (kind, text) in enumerate({"text": "{{ p['text'] }}", **self.items}.items())
        )
        content = f"{{% for p in m['content'] %}}{parts}{{% endif %}}{{% endfor %}}"
        return (
            "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}"
            f"{{% else %}}{content}{{% endif %}}\n{{% endfor %}}"
            "{% if add_generation_prompt %}assistant: {% endif %}"
        )


_PATCHES = {"depth": 2, "num_heads": 2, "patch_size": 4}
_PADS = {"vision_start_token_id": 259, "vision_end_token_id": 260, "image_token_id": 261, "video_token_id": 262}
_QWEN: Mapping[str, Any] = {
    "language": "qwen2",
    "text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
    "specials": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "items": {
        "image": "<|vision_start|><|image_pad|><|vision_end|>", "video": "<|vision_start|><|video_pad|><|vision_end|>",
    },
}  # fmt: skip
_DEEP = {
    **_PATCHES, "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
_DEEP_PIXELS = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}
_TURNS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
_DEEP_TEXT = {"rope_parameters": _TURNS, "head_dim": 16, "num_hidden_layers": 3}
_DEEP_EXPERTS = {
    **_DEEP_TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1],
}  # fmt: skip
_OMNI_MARKS = {
    "vision_start_token_id": 259, "vision_end_token_id": 260, "image_token_index": 261, "video_token_index": 262,
    "audio_start_token_id": 263, "audio_end_token_id": 264, "audio_token_index": 265,
}  # fmt: skip
_OMNI: Mapping[str, Any] = {
    **_QWEN,
    "language": "qwen2_5_omni_text",
    "specials": (*_QWEN["specials"], "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
    "items": {**_QWEN["items"], "audio": "<|audio_start|><|audio_pad|><|audio_end|>"},
    "listens": {"chunk_length": 2, "feature_size": 16},
}
_GLM_MARKS = {
    "image_start_token_id": 259, "image_end_token_id": 260, "image_token_id": 261, "video_token_id": 262,
    "video_start_token_id": 263, "video_end_token_id": 264,
}  # fmt: skip
_HALF_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
SEEING: Mapping[str, Seeing] = {
    "glm4v": Seeing(
        {
            "vision_config": {
                **_PATCHES, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "image_size": 28,
            },
            **_GLM_MARKS,
        },
        "Glm4vImageProcessor", {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}},
        language="glm4v_text",
        text={"rope_parameters": _HALF_ROPE},
        specials=(
            "<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>",
            "<|begin_of_video|>", "<|end_of_video|>",
        ),
        items={
            "image": "<|begin_of_image|><|image|><|end_of_image|>",
            "video": "<|begin_of_video|><|video|><|end_of_video|>",
        },
    ),
    "qwen2_5_omni_thinker": Seeing(
        {
            "vision_config": {
                **_PATCHES, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "depth": 3,
                "window_size": 16, "fullatt_block_indexes": [1],
            },
            "audio_config": {
                "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
                "num_mel_bins": 16, "n_window": 10, "output_dim": 64,
            },
            "position_id_per_seconds": 4, "seconds_per_chunk": 1, **_OMNI_MARKS,
        },
        "Qwen2VLImageProcessor", {"patch_size": 4, "min_pixels": 256, "max_pixels": 4096}, **_OMNI,
    ),
    "qwen3_omni_moe_thinker": Seeing(
        {
            "vision_config": _DEEP,
            "audio_config": {
                "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
                "num_mel_bins": 16, "n_window_infer": 200, "downsample_hidden_size": 32, "output_dim": 64,
            },
            "position_id_per_seconds": 13, **_PADS,
            "audio_start_token_id": 263, "audio_end_token_id": 264, "audio_token_id": 265,
        },
        "Qwen2VLImageProcessor", _DEEP_PIXELS,
        **{**_OMNI, "language": "qwen3_omni_moe_text", "text": _DEEP_EXPERTS},
    ),
    "qwen3_vl": Seeing(
        {"vision_config": _DEEP, **_PADS}, "Qwen2VLImageProcessor", _DEEP_PIXELS,
        **{**_QWEN, "language": "qwen3_vl_text", "text": _DEEP_TEXT},
    ),
    "qwen3_vl_moe": Seeing(
        {"vision_config": _DEEP, **_PADS}, "Qwen2VLImageProcessor", _DEEP_PIXELS,
        **{**_QWEN, "language": "qwen3_vl_moe_text", "text": _DEEP_EXPERTS},
    ),
    "qwen2_vl": Seeing(
        {"vision_config": {**_PATCHES, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}, **_PADS},
        "Qwen2VLImageProcessor", {"patch_size": 4, "min_pixels": 256, "max_pixels": 4096}, **_QWEN,
    ),
    "qwen2_5_vl": Seeing(
        {
            "vision_config": {
                **_PATCHES, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "depth": 3,
                "window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 2,
            },
            **_PADS,
        },
        "Qwen2VLImageProcessor", {"patch_size": 4, "min_pixels": 256, "max_pixels": 4096}, **_QWEN,
    ),
    "blip-2": Seeing(
        {
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 28, "patch_size": 7,
            },
            "qformer_config": {
                "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
            },
            "num_query_tokens": 9,
            "image_token_index": 259,
        },
        "BlipImageProcessor", {"size": {"height": 28, "width": 28}},
        language="opt",
        text={"word_embed_proj_dim": 64},
    ),
    "fuyu": Seeing(
        {"patch_size": 6, "image_token_id": 259, "bos_token_id": 256},
        "FuyuImageProcessor", {"patch_size": {"height": 6, "width": 6}, "size": {"height": 36, "width": 48}},
        language="persimmon",
        specials=("|SPEAKER|", "|NEWLINE|", "<0x04>"),
        items={"image": "|SPEAKER|"},
    ),
    "mllama": Seeing(
        {
            "vision_config": {
                **_TOWER, "attention_heads": 2, "num_global_layers": 2, "max_num_tiles": 4, "vision_output_dim": 96,
                "intermediate_layers_indices": [0, 2],
            },
            "image_token_index": 259,
        },
        "MllamaImageProcessor", {"size": {"height": 28, "width": 28}},
        language="mllama_text_model",
        # the placeholder is the first token without logits
        text={"vocab_size": 259, "num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
        specials=("<|image|>",),
        items={"image": "<|image|>"},
    ),
    "llava": Seeing(
        {"vision_config": {**_TOWER, "model_type": "clip_vision_model"}, "image_token_index": 259},
        "CLIPImageProcessor",
        _SQUARE,
    ),
    "llava_next": Seeing(
        {
            "vision_config": {**_TOWER, "model_type": "clip_vision_model"},
            "image_token_index": 259,
            "image_grid_pinpoints": _TILES,
        },
        "LlavaNextImageProcessor",
        {**_SQUARE, "image_grid_pinpoints": _TILES},
    ),
    "internvl": Seeing(
        {"vision_config": {**_TOWER, "attention_bias": True}, "image_token_id": 261, "tie_word_embeddings": False},
        "GotOcr2ImageProcessor",
        {
            "size": {"height": 28, "width": 28}, "max_patches": 6, "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        },
        language="qwen2",
        specials=("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        items={"image": "<IMG_CONTEXT>\n"},
    ),
    "paligemma": Seeing(
        {
            "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_token_index": 259, "projection_dim": 64, "hidden_size": 64,
        },
        "SiglipImageProcessor",
        {"size": {"height": 28, "width": 28}},
        language="gemma",
        text={"head_dim": 16},
    ),
    "gemma3": Seeing(
        {
            "vision_config": {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_token_index": 261, "boi_token_index": 259, "eoi_token_index": 260, "mm_tokens_per_image": 4,
        },
        "Gemma3ImageProcessor",
        {"size": {"height": 28, "width": 28}},
        language="gemma3_text",
        text={"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},
        specials=("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        items={"image": "<start_of_image>"},
    ),
}  # fmt: skip


def write_image_processor(seeing: Seeing, path: Path) -> None:
    """preprocessor_config.json: of images and, where the family hears, of sounds."""
    import transformers

    getattr(transformers, f"{seeing.processor}Pil")(**seeing.options).save_pretrained(path)
    if seeing.listens:
        file = path / "preprocessor_config.json"
        make: Any = transformers.WhisperFeatureExtractor
        file.write_text(json.dumps({**make(**seeing.listens).to_dict(), **json.loads(file.read_text())}))
