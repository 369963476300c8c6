"""Tiny wrappers of transformers: their config.json, the processor, and the tokens that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lsv_testing.tiny import SHAPE


@dataclass(frozen=True)
class Case:
    """A family. Texts in ``config`` and ``processor`` that are one of its ``tokens`` stand for its id."""

    config: Mapping[str, Any]
    pixels: str
    """The class of its image processor."""
    options: Mapping[str, Any]
    tokens: Sequence[str] = ("<image>",)
    named: Mapping[str, str] = field(default_factory=dict)
    """Tokens that the processor asks the tokenizer for by name."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """processor_config.json."""
    shows: str = ""
    """What a prompt has for an image, if not the first of its tokens."""
    kind: str = ""
    """Its model_type, if not the case's name."""
    seed: int = 0


def tower(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 7, **more,
    }  # fmt: skip


def text(kind: str, **more: Any) -> dict[str, Any]:
    whole = {**SHAPE, "model_type": kind, "head_dim": 16, "vocab_size": 384, **more}
    return {key: value for key, value in whole.items() if key == "sliding_window" or value is not None}


SQUARE = {"size": {"height": 28, "width": 28}}
SIDES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
TURNS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
GRID = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}
PATCHES = {
    "depth": 2, "num_heads": 2, "patch_size": 4, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
}  # fmt: skip
PADS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
PAD = f"{PADS[1]}{PADS[0]}{PADS[2]}"
PAD_IDS = {
    "image_token_id": PADS[0], "vision_start_token_id": PADS[1], "vision_end_token_id": PADS[2],
    "video_token_id": PADS[3],
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
BREAKS = {
    "processor_class": "PixtralProcessor", "patch_size": 7, "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}  # fmt: skip
TILES = [[28, 56], [56, 28], [56, 56]]
ROWS = tuple(f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6))
GLM = ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
GLM_IMAGE = f"{GLM[2]}{GLM[0]}{GLM[3]}"
GLM_IDS = {
    "image_token_id": GLM[0], "video_token_id": GLM[1], "image_start_token_id": GLM[2], "image_end_token_id": GLM[3],
    "video_start_token_id": GLM[4], "video_end_token_id": GLM[5],
}  # fmt: skip

CASES: dict[str, Case] = {
    "idefics3": Case(
        {"text_config": text("llama"), "vision_config": tower(), "image_token_id": "<image>", "scale_factor": 2},
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *ROWS),
        processor={"image_seq_len": 4},
    ),
    "smolvlm": Case(
        {"text_config": text("llama"), "vision_config": tower(), "image_token_id": "<image>", "scale_factor": 2},
        "SmolVLMImageProcessor",
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *ROWS),
        named={"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"},
        processor={"image_seq_len": 4},
    ),
    "mistral3": Case(
        {
            "text_config": text("mistral", sliding_window=None),
            "vision_config": tower(model_type="pixtral", head_dim=16, image_size=56),
            "image_token_index": "[IMG]",
        },
        "PixtralImageProcessor",
        {"patch_size": 7, "size": {"longest_edge": 56}},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        processor={**BREAKS, "spatial_merge_size": 2},
    ),
    "pixtral": Case(
        {
            "text_config": text("mistral", sliding_window=None),
            "vision_config": tower(model_type="pixtral", head_dim=16, image_size=56),
            "image_token_index": "[IMG]", "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        },
        "PixtralImageProcessor",
        {"patch_size": 7, "size": {"longest_edge": 56}},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        processor=BREAKS,
        kind="llava",
    ),
    "llava_onevision": Case(
        {
            "text_config": text("qwen2"), "vision_config": tower(model_type="siglip_vision_model"),
            "image_token_index": "<image>", "video_token_index": "<video>", "image_grid_pinpoints": TILES,
            "vision_aspect_ratio": "anyres_max_9",
        },
        "LlavaOnevisionImageProcessor",
        {**SQUARE, "image_grid_pinpoints": TILES},
        ("<image>", "<video>"),
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "llava_next_video": Case(
        {
            "text_config": text("llama"), "vision_config": tower(model_type="clip_vision_model"),
            "image_token_index": "<image>", "video_token_index": "<video>", "image_grid_pinpoints": TILES,
        },
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": TILES},
        ("<image>", "<video>"),
        processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "vipllava": Case(
        {
            "text_config": text("llama"), "vision_config": tower(model_type="clip_vision_model"),
            "image_token_index": "<image>", "vision_feature_layers": [-2, 1], "vision_feature_layer": [-2, 1],
        },
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "video_llava": Case(
        {
            "text_config": text("llama"), "vision_config": tower(model_type="clip_vision_model"),
            "image_token_index": "<image>", "video_token_index": "<video>",
        },
        "VideoLlavaImageProcessor",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        ("<image>", "<video>"),
        processor={"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "aya_vision": Case(
        {
            "text_config": text("cohere2", logit_scale=1.0, sliding_window=9,
                                layer_types=["sliding_attention", "full_attention"]),
            "vision_config": tower(model_type="siglip_vision_model"), "image_token_index": "<|IMG_PATCH|>",
        },
        "GotOcr2ImageProcessor",
        {**SQUARE, "max_patches": 4},
        ("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "TILE",
         "TILE_GLOBAL"),
        processor={"patch_size": 7, "img_size": 28, "downsample_factor": 2},
    ),
    "lighton_ocr": Case(
        {
            "text_config": text("qwen3"), "vision_config": tower(model_type="pixtral", head_dim=16, image_size=56),
            "image_token_id": "<|image_pad|>",
        },
        "PixtralImageProcessor",
        {"patch_size": 7, "size": {"longest_edge": 56}},
        ("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"),
        named={"image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>",
               "image_end_token": "<|vision_end|>"},
        processor={"patch_size": 7, "spatial_merge_size": 2},
    ),
    "got_ocr2": Case(
        {
            "text_config": text("qwen2", max_position_embeddings=2048),
            "vision_config": {
                "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 256, "patch_size": 4, "window_size": 14, "global_attn_indexes": [1], "mlp_dim": 48,
            },
            "image_token_index": "<imgpad>",
        },
        "GotOcr2ImageProcessor",
        {"size": {"height": 256, "width": 256}},
        ("<imgpad>", "<img>", "</img>", "<|im_start|>", "<|im_end|>"),
    ),
    "deepseek_vl": Case(
        {
            "text_config": text("llama"), "vision_config": tower(model_type="siglip_vision_model"),
            "image_token_id": "<image_placeholder>",
        },
        "DeepseekVLImageProcessor",
        {**SQUARE},
        ("<image_placeholder>",),
        named={"image_token": "<image_placeholder>"},
        processor={"num_image_tokens": 16},
    ),
    "janus": Case(
        {
            "text_config": text("llama"),
            "vision_config": {
                "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7,
                "projection_dim": 64, "num_image_tokens": 16, "mlp_ratio": 2.0,
            },
            "vq_config": {"embed_dim": 8, "num_embeddings": 32, "base_channels": 32, "channel_multiplier": [1, 1],
                          "num_res_blocks": 1, "projection_dim": 64, "image_token_embed_dim": 64, "num_patches": 4},
            "image_token_id": "<image_placeholder>",
        },
        "JanusImageProcessor",
        {**SQUARE},
        ("<image_placeholder>", "<begin_of_image>", "<end_of_image>"),
        named={"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"},
        processor={"num_image_tokens": 16},
    ),
    "qwen3_5": Case(
        {"text_config": text("qwen3_5_text", **DELTA, rope_parameters={**TURNS, "partial_rotary_factor": 1.0}),
         "vision_config": {**PATCHES, "num_position_embeddings": 36}, **PAD_IDS},
        "Qwen2VLImageProcessor", GRID, PADS, shows=PAD, seed=1,
    ),
    "qwen3_5_moe": Case(
        {"text_config": text("qwen3_5_moe_text", **DELTA, rope_parameters={**TURNS, "partial_rotary_factor": 1.0},
                             num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                             shared_expert_intermediate_size=32),
         "vision_config": {**PATCHES, "num_position_embeddings": 36}, **PAD_IDS},
        "Qwen2VLImageProcessor", GRID, PADS, shows=PAD,
    ),
    "glm46v": Case(
        {"text_config": text("glm4v_text", rope_parameters={**SIDES, "mrope_section": [1, 1, 2],
                                                            "partial_rotary_factor": 0.5}),
         "vision_config": {**PATCHES, "model_type": "glm4v_vision", "image_size": 28}, **GLM_IDS},
        "Glm46VImageProcessor", GRID, GLM, shows=GLM_IMAGE,
    ),
    "glm4v_moe": Case(
        {"text_config": text("glm4v_moe_text", rope_parameters={**SIDES, "mrope_section": [1, 1, 2],
                                                                "partial_rotary_factor": 0.5},
                             n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1,
                             first_k_dense_replace=1),
         "vision_config": {**PATCHES, "image_size": 28}, **GLM_IDS},
        "Glm4vImageProcessor", GRID, GLM, shows=GLM_IMAGE,
    ),
    "glm_ocr": Case(
        {"text_config": text("glm_ocr_text", rope_parameters={**SIDES, "mrope_section": [2, 3, 3],
                                                              "partial_rotary_factor": 1.0}),
         "vision_config": {**PATCHES, "image_size": 28}, **GLM_IDS},
        "Glm46VImageProcessor", GRID, GLM, shows=GLM_IMAGE, processor={"processor_class": "Glm46VProcessor"},
    ),
    "qianfan_ocr": Case(
        {"text_config": text("qwen3"), "vision_config": tower(image_size=[28, 28], patch_size=[7, 7]),
         "image_token_id": "<IMG_CONTEXT>"},
        "GotOcr2ImageProcessor",
        {**SQUARE, "max_patches": 4},
        ("<image>", "<IMG_CONTEXT>", "<img>", "</img>"),
        named={"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"},
        processor={"image_seq_length": 4}, seed=1,
    ),
    "paddleocr_vl": Case(
        {"text_config": text("paddleocr_vl_text", rope_parameters={**SIDES}),
         "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "image_size": 28, "patch_size": 4, "spatial_merge_size": 2}, **PAD_IDS},
        "PaddleOCRVLImageProcessor", {"patch_size": 4, "merge_size": 2, "min_pixels": 256, "max_pixels": 4096}, PADS,
        named={"image_token": PADS[0]}, shows=PAD,
    ),
    "gemma4": Case(
        {"text_config": text("gemma4_text", global_head_dim=32, num_kv_shared_layers=0, hidden_size_per_layer_input=16,
                             vocab_size_per_layer_input=384, sliding_window=9,
                             layer_types=["sliding_attention", "full_attention"]),
         "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64,
                           "pooling_kernel_size": 2, "global_head_dim": 16},
         "audio_config": None, "image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>",
         "video_token_id": "<|video|>", "audio_token_id": "<|audio|>"},
        "Gemma4ImageProcessor",
        {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        ("<|image|>", "<|image>", "<image|>", "<|video|>", "<|audio|>", "<|audio>", "<audio|>"),
        named={"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
               "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    ),
    "aria": Case(
        {
            "text_config": text("aria_text", head_dim=None, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1,
                                intermediate_size=32),
            "vision_config": tower(model_type="idefics3_vision", image_size=980, patch_size=70),
            "image_token_index": "<image>", "projector_patch_to_query_dict": {196: 8},
        },
        "AriaImageProcessor",
        {"max_image_size": 490, "min_image_size": 336},
        named={"image_token": "<image>"},
        processor={"size_conversion": {980: 8}},
    ),
    "ovis2": Case(
        {
            "text_config": text("qwen2"),
            "vision_config": tower(vocab_size=40, hidden_stride=2, rms_norm_eps=1e-5),
            "image_token_id": "<IMG_ATOM>", "hidden_size": 64, "vocab_size": 384,
            "visual_indicator_token_ids": ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"],
        },
        "Ovis2ImageProcessor",
        {**SQUARE, "max_patches": 4},
        ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
        processor={"image_seq_length": 4, "image_token": "<image>"},
    ),
    "exaone4_5": Case(
        {"text_config": text("exaone4", sliding_window=9, sliding_window_pattern=2,
                             layer_types=["sliding_attention", "full_attention"]),
         "vision_config": {**PATCHES, "num_key_value_heads": 2, "window_size": 16, "fullatt_block_indexes": [1]},
         "image_token_id": PADS[0], "video_token_id": PADS[3]},
        "Qwen2VLImageProcessor", GRID, PADS, shows=PAD,
    ),
    "video_llama_3": Case(
        {"text_config": text("qwen2"),
         "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "patch_size": 4},
         "image_token_id": PADS[0], "video_token_id": PADS[3]},
        "VideoLlama3ImageProcessor", {"patch_size": 4, "merge_size": 1, "min_tokens": 4, "max_tokens": 64}, PADS,
        shows=PAD,
    ),
    "hyperclovax_vision_v2": Case(
        {"text_config": text("hyperclovax"),
         "vision_config": {**PATCHES, "model_type": "qwen2_5_vl_vision", "window_size": 16,
                           "fullatt_block_indexes": [1]},
         "image_token_id": PADS[0], "video_token_id": PADS[3]},
        "Qwen2VLImageProcessor", GRID, PADS, shows=PAD,
    ),
    "deepseek_vl_hybrid": Case(
        {"text_config": text("llama"), "vision_config": tower(model_type="siglip_vision_model", image_size=56,
                                                               patch_size=7),
         "high_res_vision_config": {"model_type": "sam_vision_model", "hidden_size": 32, "output_channels": 16,
                                    "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 128,
                                    "patch_size": 4, "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 48},
         "image_token_id": "<image_placeholder>"},
        "DeepseekVLHybridImageProcessor", {"size": {"height": 56, "width": 56},
                                           "high_res_size": {"height": 128, "width": 128}},
        ("<image_placeholder>",), named={"image_token": "<image_placeholder>"}, processor={"num_image_tokens": 64},
    ),
    "lfm3_vl": Case(
        {"text_config": text("lfm3", layer_types=["conv", "full_attention"]),
         "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "num_key_value_heads": 2, "patch_size": 4},
         "projector_hidden_size": 64, **PAD_IDS},
        "Qwen2VLImageProcessor", GRID, PADS, shows=PAD,
    ),
    "cohere2_vision": Case(
        {
            "text_config": text("cohere2", logit_scale=1.0, sliding_window=9,
                                layer_types=["sliding_attention", "full_attention"]),
            "vision_config": tower(model_type="siglip_vision_model", image_size=98), "image_token_id": "<|IMG_PATCH|>",
            "alignment_intermediate_size": 64,
        },
        "Cohere2VisionImageProcessor",
        {"size": {"height": 98, "width": 98}, "patch_size": 7, "downsample_factor": 2, "max_patches": 2},
        ("<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"),
        named={"image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
               "img_line_break_token": "<|IMG_LINE_BREAK|>"},
    ),
    "lfm2_vl": Case(
        {
            "text_config": text("lfm2", layer_types=["conv", "full_attention"]),
            "vision_config": {"model_type": "siglip2_vision_model", "hidden_size": 32, "intermediate_size": 48,
                              "num_hidden_layers": 2, "num_attention_heads": 2, "num_patches": 16, "patch_size": 4},
            "image_token_id": "<image>", "projector_hidden_size": 64,
        },
        "Lfm2VlImageProcessor",
        {"encoder_patch_size": 4, "tile_size": 16, "min_image_tokens": 1, "max_image_tokens": 16,
         "max_num_patches": 64, "min_tiles": 2, "max_tiles": 4, "downsample_factor": 2},
        ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
        named={"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>",
               "image_thumbnail": "<|img_thumbnail|>"},
    ),
    "deepseek_ocr2": Case(
        {"text_config": text("deepseek_ocr2_text", max_position_embeddings=2048, n_routed_experts=4,
                             num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1,
                             mlp_layer_types=["dense", "sparse"]),
         "vision_config": {
             "sam_config": {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                            "global_attn_indexes": [1], "mlp_dim": 48, "downsample_channels": [32, 32]},
             "encoder_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                                "num_attention_heads": 2, "num_key_value_heads": 2}},
         "image_token_id": "<image>"},
        "DeepseekOcr2ImageProcessor", {},
    ),
    "gemma4_unified": Case(
        {"text_config": {
            **text("gemma4_unified_text", sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
            "use_bidirectional_attention": None,
         },
         "vision_config": {"patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 32, "mm_posemb_size": 64,
                           "output_proj_dims": 32},
         "audio_config": None, "image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>",
         "video_token_id": "<|video|>", "audio_token_id": "<|audio|>"},
        "Gemma4UnifiedImageProcessor",
        {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
        ("<|image|>", "<|image>", "<image|>", "<|video|>", "<|audio|>", "<|audio>", "<audio|>"),
        named={"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
               "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    ),
}  # fmt: skip
