"""Every class of transformers that generates text: it runs through the adapter, or is refused for the reason here.

The adapter's own proof says whether a class runs: on a small copy of its default configuration, computed in pieces.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.place import Declaration, Weights
from lsv_runtime.weights.quantizer import Unquantised

FAST = 16
"""The fast tests try one in so many classes: the same ones on every day, so that no run fails for the date."""

RECURRENT = "layers of type|building it failed"
"""Or, their sizes belong together in ways that the small copy does not know."""
REFUSED = {
    "bailing_hybrid": RECURRENT,
    "bamba": RECURRENT,
    "bloom": "in pieces",
    "cpmant": "prompts of its own",
    "deepseek_v4": "compressed_sparse_attention",
    "doge": "an attention mask of its own",
    "falcon": "building it failed",
    "falcon_h1": RECURRENT,
    "falcon_mamba": RECURRENT,
    "gpt_neo": "in pieces",
    "granitemoehybrid": RECURRENT,
    "inkling2_loop_text": "layers of type hybrid",
    "inkling2_text": "layers of type hybrid",
    "inkling_text": "layers of type hybrid",
    "jamba": RECURRENT,
    "kimi_linear": RECURRENT,
    "lara_mini": RECURRENT,
    "lfm2": "layers of type conv",
    "lfm2_moe": "layers of type conv",
    "lfm3": "layers of type conv",
    "llama4_text": "in pieces",
    "mamba": RECURRENT,
    "mamba2": RECURRENT,
    "minimax": RECURRENT,
    "mpt": "building it failed",
    "nemotron_h": RECURRENT,
    "olmo_hybrid": RECURRENT,
    "prophetnet": "streams of queries",
    "qwen3_5_moe_text": RECURRENT,
    "qwen3_5_text": RECURRENT,
    "qwen3_next": RECURRENT,
    "qwen4_exp_text": RECURRENT,
    "recurrent_gemma": RECURRENT,
    "reformer": "LSH attention",
    "rwkv": "not a KV cache",
    "xlm": "mask token",
    "xlnet": "two-stream",
    "xlstm": "not a KV cache|no small copy",
    "zamba": RECURRENT,
    "zamba2": RECURRENT,
    "zaya": RECURRENT,
}
# what the default configuration lacks, so that transformers itself can't build or run it
LACKING: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "clip_qkv": 8.0, "kv_n_heads": 8}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
}
# their text part stands in the table by itself, or transformers has no default configuration of theirs
NOT_TRIED = {"blt", "dots3_note_text", "gemma4_assistant", "qwen4_exp_text"}


def text_classes() -> dict[str, str]:
    """model_type -> class, of all that generate text from text alone."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = {}
    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        parts = getattr(CONFIG_MAPPING[kind], "sub_configs", {}) if kind in CONFIG_MAPPING else None
        if parts is not None and kind not in NOT_TRIED and (not parts or kind in LACKING):
            found[kind] = name
    return found


def small_config(kind: str, architecture: str) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    from lsv_models.generic.miniature import shrink

    parsed = CONFIG_MAPPING[kind](**LACKING.get(kind, {}))
    config = json.loads(parsed.to_json_string(use_diff=False))
    return {**shrink(config), "architectures": [architecture], "is_decoder": True, "is_encoder_decoder": False}


def check(kind: str, architecture: str) -> None:
    from lsv_models.generic import Generic

    w = Weights(Declaration(torch.float32, torch.device("cpu"), Unquantised()))
    if kind in REFUSED:
        with pytest.raises(CheckpointError, match=REFUSED[kind]):
            Generic(w, small_config(kind, architecture), 64)
    else:
        Generic(w, small_config(kind, architecture), 64)


def check_all(classes: dict[str, str]) -> None:
    wrong = {}
    for kind, architecture in classes.items():
        try:
            check(kind, architecture)
        except (CheckpointError, pytest.fail.Exception, AssertionError) as error:
            wrong[kind] = str(error)[:300]
    assert wrong == {}


def test_some_classes_are_as_the_table_says():
    check_all(dict(sorted(text_classes().items())[::FAST]))


@pytest.mark.slow
def test_all_classes_are_as_the_table_says():
    check_all(text_classes())


def test_the_table_names_classes_that_there_are():
    from transformers import CONFIG_MAPPING

    assert REFUSED.keys() | LACKING.keys() | NOT_TRIED <= set(CONFIG_MAPPING)
