"""Families with RMSNorm and a variation of Llama's block give transformers' logits, however the work is cut."""

import pytest

from lsv_testing.model import check_model, engine_config

WINDOWED = {"sliding_window": 9}
HEADS = {"head_dim": 16}
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0], "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA2 = {
    **HEADS,
    **WINDOWED,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 4.0,
}
GEMMA3 = {**HEADS, **WINDOWED, "query_pre_attn_scalar": 24, "num_hidden_layers": 3, "sliding_window_pattern": 2}
SCALED = {
    "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1,
}  # fmt: skip
BY_KIND = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
}
CASES = {
    "gemma": ("gemma", HEADS),
    "gemma legacy gelu": ("gemma", {**HEADS, "hidden_act": "gelu"}),
    "gemma2": ("gemma2", GEMMA2),
    "vaultgemma": ("vaultgemma", GEMMA2),
    "gemma3": ("gemma3_text", GEMMA3),
    "gemma3 ropes": ("gemma3_text", {**GEMMA3, "rope_parameters": BY_KIND}),
    "phi3": ("phi3", {}),
    "phi3 window": ("phi3", WINDOWED),
    "phi3 longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "phi3 longrope all long": ("phi3", {"rope_parameters": {**LONG, "short_factor": LONG["long_factor"]}}),
    "glm": ("glm", HEADS),
    "glm4": ("glm4", HEADS),
    "granite": ("granite", SCALED),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {**WINDOWED, "num_hidden_layers": 4, "rope_parameters": BY_KIND}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3 window": ("smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, **WINDOWED}),
    "exaone4": ("exaone4", {**WINDOWED, "sliding_window_pattern": 2}),
    "exaone4 full": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "seed_oss": ("seed_oss", HEADS),
    "seed_oss out bias": ("seed_oss", {**HEADS, "attention_out_bias": True}),
    "hunyuan": ("hunyuan_v1_dense", HEADS),
    "hunyuan alpha": (
        "hunyuan_v1_dense",
        {**HEADS, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4}},
    ),
    "ernie4_5": ("ernie4_5", HEADS),
    "ernie4_5 biased": ("ernie4_5", {**HEADS, "use_bias": True}),
    "internlm3": ("internlm3", HEADS),
    "internlm3 biased": ("internlm3", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    "ministral": ("ministral", {**HEADS, **WINDOWED, "layer_types": ["sliding_attention", "full_attention"]}),
}  # fmt: skip
QUICK = ("gemma2", "phi3 longrope", "gemma3 ropes", "glm4", "granite", "olmo3", "smollm3", "hunyuan", "exaone4")
OFFERS = {"gemma3_text": "gemma3", "hunyuan_v1_dense": "hunyuan"}


@pytest.mark.row("F-612", "F-613", "F-632", "F-658", "F-659", "F-681", "F-685")
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES])
def test_family_equals_transformers(case, checkpoint, catalog):
    family, shape = CASES[case]
    # the lengths within which long ropes are those of short inputs
    length = 64 if "longrope" in case else 512
    config = engine_config(checkpoint(family, **shape), OFFERS.get(family, family), max_len=length)
    found = check_model(config, catalog)
    print(f"\n{case:20}", *(f"{comparison.schedule} {comparison.error:.1e}" for comparison in found), sep="  ")
