"""Small numbers for the towers and projectors of classes that take more than text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WIDTH = 80
"""Of the text model, for projectors to end in."""
TOWER = 48
_PATTERNS: tuple[tuple[str, int], ...] = (
    (r"(.*_)?(hidden_size|embed_dim|d_model|width|hidden_dim)", TOWER),
    (r"(.*_)?(intermediate_size|ffn_dim|mlp_dim)", 56),
    (r"depth|(.*_)?(num_hidden_layers|num_layers|layers|num_blocks|n_layers)", 2),
    (r"(.*_)?(num_heads|attention_heads|n_heads|num_key_value_heads)", 4),
    (r"(.*_)?head_dim", 12),
)
_ENDS = ("out_hidden_size", "output_dim", "adapter_out_dim", "text_hidden_size", "llm_hidden_size")
"""How wide a tower's features are when the text model gets them."""
_OUTSIDE = re.compile(r"out|text|lm|llm|language|proj")
"""Begins keys that may be about what a tower is given to, not about itself."""
_MROPE = {"rope_type": "default", "rope_theta": 1e4}
_TEN = {"rope_parameters": {**_MROPE, "mrope_section": [2, 4, 4]}}
_EIGHT = {"rope_parameters": {**_MROPE, "mrope_section": [3, 3, 2]}}
_TURNED = {"rope_parameters": {**_MROPE, "mrope_section": [3, 3, 2], "mrope_interleaved": True}}
_TURNED_TEN = {"rope_parameters": {**_MROPE, "mrope_section": [4, 3, 3], "mrope_interleaved": True}}
_QUARTER = {
    "head_dim": 32,
    "rope_parameters": {
        **_MROPE, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
}  # fmt: skip
_HALF_OF_TEN = {"rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 2]}}

_IMAGE_WORDS = {"<image>": 259, "<|extra_200|>": 260}
_IMAGE_CODES = {"<image>": 259} | {
    f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z": 270 + code for code in range(16)
}
"""Codes of pictures are words, whose letters are digits."""
_KOSMOS = {"embed_dim": WIDTH, "layers": 2, "ffn_dim": 96, "attention_heads": 4, "max_position_embeddings": 512}
PARTS: Mapping[str, Mapping[str, Any]] = {
    "apertus1p5": {"image_token_offset": 270, "audio_token_offset": 286},
    "apertus1p5_vision_tokenizer": {"codebook_size": 16, "base_channels": 32},
    "wavtokenizer_encoder": {"codebook_size": 16, "codebook_dim": TOWER, "decoder_attention_num_groups": 4},
    "chameleon": {"vocabulary_map": _IMAGE_CODES},
    "chameleon_vqgan": {"num_embeddings": 16, "base_channels": 32},
    "cosmos3_edge_text": _EIGHT,
    "deepseek_ocr2_text": {
        "mlp_layer_types": ["dense", "sparse"],
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "dots3_note_vision_encoder": {"per_layer_config": {}},
    "emu3": {"vocabulary_map": _IMAGE_WORDS},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 2]},
        "moe_intermediate_size": [24, 12],
        "moe_num_experts": 4,
        "moe_k": 2,
    },
    "florence_vision": {
        "embed_dim": [16, 16, 32, 32],
        "num_heads": [2, 2, 4, 4],
        "num_groups": [2, 2, 4, 4],
        "depths": [1, 1, 1, 1],
    },
    "fun_asr_nano": {"adaptor_config": {"hidden_size": WIDTH, "intermediate_size": WIDTH // 4}},
    "emu3_vqgan": {"codebook_size": 16, "base_channels": 32, "hidden_size": TOWER},
    "gemma3": {"mm_tokens_per_image": 4},
    "glm5_next_text": {"index_kpool": 4},
    "glm4v_text": _HALF_OF_TEN,
    "glm4v_moe_text": _HALF_OF_TEN,
    "glm_ocr_text": _HALF_OF_TEN,
    "granite4_vision": {
        "downsample_rate": "4/8",
        "deepstack_layer_map": [[0, 0], [1, 1]],
        "spatial_target_layers": [0, 0, 1, 1],
        "vision_config": {"hidden_size": 128},
    },
    "hunyuan_vl_text": {"rope_parameters": {**_MROPE, "mrope_section": [1, 2, 3, 2]}},
    "hy_v4_vl_text": {"rope_parameters": {**_MROPE, "mrope_section": [2, 1, 1]}},
    "inkling_vision": {"n_layers": 6},
    "janus_vqgan": {"num_embeddings": 16, "base_channels": 32},
    "kosmos_2_text_model": _KOSMOS,
    "kosmos_2_5_text_model": _KOSMOS,
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "mllama_vision_model": {"vision_output_dim": 3 * TOWER, "num_global_layers": 1, "image_size": 56},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": WIDTH}},
    "muse_glimmer": {"projector_hidden_size": 96},
    "muse_spark": {"projector_hidden_size": 96},
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": [16, 16, 32, 32]},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl_text": _EIGHT,
    "qwen2_vl_text": _TEN,
    "qwen2_5_vl_text": _TEN,
    "qwen2_5_omni_text": _TEN,
    "qwen3_5_text": _QUARTER,
    "qwen3_5_moe_text": _QUARTER,
    "qwen3_omni_moe_text": _TURNED_TEN,
    "qwen3_vl_text": _TURNED,
    "qwen3_vl_moe_text": _TURNED,
    "qwen4_exp_text": _QUARTER,
    "qwen3_omni_moe": {"talker_config": {"spatial_merge_size": 2}},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 24},
    "step3p5": {"sliding_window": 12},
    "timm_wrapper": {"model_args": {"embed_dim": TOWER}},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "vibevoice_acoustic_tokenizer_encoder": {
        "num_filters": 4,
        "downsampling_ratios": [2, 2],
        "depths": [1, 1, 1],
    },
}
"""By the ``model_type`` of a configuration: its own keys, or those of a configuration inside it."""


def small_tower(usual: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Small numbers for a tower's keys, by default ``usual``, where the text model is ``width`` wide."""
    own = next((usual[key] for key in ("hidden_size", "embed_dim", "d_model") if type(usual.get(key)) is int), None)
    keys: dict[str, Any] = {}
    for key, value in usual.items():
        if isinstance(value, list) and value and key.endswith(("indexes", "indices")):
            keys[key] = [0, 1]
        elif type(value) is int and value > 0 and (number := _small(key, value, width, own)) is not None:
            keys[key] = number
    return keys


def _small(key: str, value: int, width: int, own: int | None) -> int | None:
    """The number of a key of a tower that is ``own`` wide by default; None keeps it."""
    found = next((number for pattern, number in _PATTERNS if re.fullmatch(pattern, key)), None)
    if key in _ENDS:
        return WIDTH
    if "codebook" in key or "vocab" in key:
        return None
    if found is not None and not _OUTSIDE.match(key):
        return min(found, value)
    return WIDTH if value == width else TOWER if value == own else None
