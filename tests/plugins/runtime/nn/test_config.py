"""Reading config.json: defaults, both styles of keys, and everything that is refused."""

import logging

import pytest

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
}


def read(**changes):
    keys = Keys({**PLAIN, **changes})
    config = DecoderConfig.read(keys, windows=True)
    keys.finish("Llama")
    return config


def test_absent_keys_have_defaults():
    config = read()
    assert (config.kv_heads, config.head_dim, config.activation, config.tied) == (4, 16, "silu", False)
    assert config.windows == (None,) * 4
    assert (config.rope.kind, config.rope.theta, config.rope.rotary_dim) == ("default", 10000.0, 16)


def test_a_family_has_its_own_defaults():
    config = DecoderConfig.read(Keys({**PLAIN, "rope_theta": None}), rope_theta=1e6, head_dim=128, norm_eps=1e-5)
    assert (config.rope.theta, config.head_dim, config.norm_eps) == (1e6, 128, 1e-5)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, (8, 8, 8, 8)),
        ({"sliding_window": 8, "use_sliding_window": False}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 8)),
        ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}, (8, None, 8, None)),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 4}, (None,) * 4),
    ],
)
def test_windows_are_per_layer(changes, windows):
    assert read(**changes).windows == windows


def test_keys_that_change_nothing_are_no_obstacle(caplog):
    caplog.set_level("INFO", "lsv_runtime")
    read(
        _attn_implementation_autoset=True, unsloth_version="2025.1", unsloth_fixed=True, temperature=0.6, top_k=20,
        do_sample=True, max_length=20, num_beams=1, suppress_tokens=[1],
    )  # fmt: skip
    assert not caplog.records
    read(release_notes="the first", moe_aux_loss_coef=0.1, attn_pdrop=0.1)
    assert "taken to change nothing: attn_pdrop, moe_aux_loss_coef, release_notes" in caplog.text


def test_a_key_may_say_what_the_family_does_anyway():
    keys = Keys({"use_qk_norm": True})
    keys.agree("use_qk_norm", True)
    keys.finish("Qwen3")
    with pytest.raises(CheckpointError, match="use_qk_norm is True, and this architecture has False"):
        keys.agree("use_qk_norm", False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"n_future_heads": 3, "mlp_only_layers": [1]}, "mlp_only_layers, n_future_heads"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"query_pre_attn_scalar": 1, "residual_multiplier": 0.2}, "query_pre_attn_scalar, residual_multiplier"),
        ({"num_attention_heads": None}, "num_attention_heads must be int"),
        ({"num_attention_heads": "4"}, "must be int, got '4'"),
        ({"hidden_size": True}, "hidden_size must be int"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"vocab_size": 0}, "vocab_size must be positive"),
        ({"num_attention_heads": 0}, "must be positive"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "got 1 entries"),
        ({"sliding_window": 8, "layer_types": ["full_attention"] * 3 + ["mamba"]}, "mamba"),
    ],
)
def test_what_could_change_results_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        read(**changes)


@pytest.mark.parametrize("value", [None, False, [], {}, ""])
def test_an_unknown_key_that_switches_nothing_on_is_harmless(value):
    read(feature_of_the_future=value)


def test_keys_of_training_are_harmless():
    read(initializer_range=0.02, attention_dropout=0.1, use_cache=True, eos_token_id=[1, 2], transformers_version="5")


def test_a_family_s_names_for_keys():
    keys = Keys(
        {"num_layers": 3, "eps": 0.5, "hidden_size": 8}, {"num_hidden_layers": "num_layers", "hidden_size": "n"}
    )
    assert (keys.layers("num_hidden_layers"), keys.count("hidden_size")) == (3, 8)
    keys.skip("eps")
    keys.finish("Family")
    with pytest.raises(CheckpointError, match="num_layers must be int"):
        Keys({"num_layers": "3"}, {"num_hidden_layers": "num_layers"}).layers("num_hidden_layers")


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(None, (9, 9, 9, 9)), (2, (9, None, 9, None)), ("LG", (9, None, 9, None)), ("LLLG", (9, 9, 9, None))],
)
def test_windows_by_pattern(pattern, windows):
    assert read(sliding_window=9, sliding_window_pattern=pattern).windows == windows


@pytest.mark.parametrize("pattern", [0, -1, "LX", "", 2.5])
def test_unusable_patterns_are_refused(pattern):
    with pytest.raises(CheckpointError, match="sliding_window_pattern"):
        read(sliding_window=9, sliding_window_pattern=pattern)


def test_keys_of_other_families_are_passed_over(caplog):
    caplog.set_level(logging.INFO)
    changes = {"sliding_window": 9, "layer_types": ["sliding_attention"] * 4, "partial_rotary_factor": 0.5}
    keys = Keys({**PLAIN, **changes, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}})
    config = DecoderConfig.read(keys)
    keys.finish("Family")
    assert config.windows == (None,) * 4
    assert config.rope.rotary_dim == config.head_dim
    assert "passed over: layer_types, sliding_window" in caplog.text
    assert "passed over: partial_rotary_factor" in caplog.text
    partial = DecoderConfig.read(Keys({**PLAIN, **changes}), rotary_fraction=1.0)
    assert partial.rope.rotary_dim == partial.head_dim // 2
