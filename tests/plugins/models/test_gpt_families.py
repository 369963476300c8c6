"""Every family of the GPT line gives its reference's logits, whole, in chunks, in mixed batches and while decoding."""

import json
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import lsv_quant.plugin
from lsv_base.errors import CheckpointError, ConfigError
from lsv_models import plugin
from lsv_runtime.nn.gpt.alibi import alibi_slopes
from lsv_runtime.weights.quantizer import Linear
from lsv_runtime.worker.load.declared import declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, check_model, engine_config, load, reference_model, run_schedule

PARTLY = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2, "num_key_value_heads": 2}
ALL_HEADS = {"num_kv_heads": 4, "num_key_value_heads": 4, "multi_query": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_bigcode all heads": ("gpt_bigcode", {"multi_query": False, "num_key_value_heads": 4}),
    "gptj": ("gptj", {}),
    "codegen": ("codegen", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox sequential": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, **PARTLY}),
    "gpt_neo": ("gpt_neo", {}),
    "opt": ("opt", {}),
    "opt normed, narrow": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt bare": ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    "bloom": ("bloom", {}),
    "bloom, 6 heads": ("bloom", {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6,
                                 "intermediate_size": 384}),
    "mpt": ("mpt", {}),
    "mpt bounded": ("mpt", {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.2}}),
    "falcon": ("falcon", {}),
    "falcon new": ("falcon", NEW_FALCON),
    "falcon new, one norm": ("falcon", {**NEW_FALCON, "num_ln_in_parallel_attn": 1, "bias": True}),
    "falcon alibi": ("falcon", {**ALL_HEADS, "alibi": True, "bias": True, "parallel_attn": False}),
    "phi": ("phi", {}),
    "phi normed": ("phi", {"qk_layernorm": True, "num_key_value_heads": 4}),
    "stablelm": ("stablelm", {}),
    "stablelm 2": ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 9}),
    "starcoder2 bare": ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    "cohere": ("cohere", {}),
    "cohere plus": ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    "cohere2": ("cohere2", {}),
    "nemotron": ("nemotron", {}),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "persimmon": ("persimmon", {}),
}  # fmt: skip
ADDS_ALIBI_TWICE = ("falcon alibi",)
"""transformers 5.23 does so in its eager attention alone."""


@pytest.mark.row(
    "F-605", "F-607", "F-611", "F-614", "F-615", "F-616", "F-617", "F-626", "F-627", "F-628", "F-629", "F-631",
    "F-635", "F-639", "F-640", "F-692",
)  # fmt: skip
@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog):
    family, shape = CASES[case]
    config = engine_config(checkpoint(family, **shape), family)
    check_model(config, catalog, reference=reference_model(config, "sdpa" if case in ADDS_ALIBI_TWICE else "eager"))


def renamed(source, target, architecture, without=(), **changes):
    """A checkpoint with another config.json."""
    config = json.loads((source / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in without}
    (target / "config.json").write_text(json.dumps({**kept, **changes, "architectures": [architecture]}))
    shutil.copy(source / "model.safetensors", target)
    return target


@pytest.mark.row("F-611")
def test_refined_web_is_falcon_under_older_names(checkpoint, catalog, tmp_path):
    source = checkpoint("falcon", **NEW_FALCON)
    new = (
        "num_attention_heads",
        "num_hidden_layers",
        "num_kv_heads",
        "num_key_value_heads",
        "new_decoder_architecture",
    )
    old = {"n_head": 4, "n_layer": 2, "n_head_kv": 2, "model_type": "RefinedWeb"}
    path = renamed(source, tmp_path, "RWForCausalLM", without=(*new, "rope_parameters", "activation"), **old)
    check_model(engine_config(path, "falcon"), catalog, reference=reference_model(engine_config(source, "falcon")))


@pytest.mark.row("F-630")
def test_orion_is_llama_with_layer_norms(checkpoint, catalog, tmp_path):
    """As modeling_orion.py has it: StableLM that rotates whole heads."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    source = checkpoint("stablelm", rope_parameters=rope)
    gone = ("layer_norm_eps", "rope_parameters", "use_qkv_bias", "qk_layernorm", "use_parallel_residual")
    path = renamed(source, tmp_path, "OrionForCausalLM", without=gone, rms_norm_eps=1e-5, model_type="orion")
    check_model(engine_config(path, "orion"), catalog, reference=reference_model(engine_config(source, "stablelm")))


@pytest.mark.parametrize(
    ("family", "place"), [("gpt2", "transformer."), ("opt", "model."), ("gpt_neox", "gpt_neox."), ("phi", "model.")]
)
def test_checkpoints_of_bare_models_load(family, place, checkpoint, catalog, tmp_path):
    source = checkpoint(family)
    path = renamed(source, tmp_path, "SomeModel")
    whole = load_file(source / "model.safetensors")
    bare = {name.removeprefix(place): tensor for name, tensor in whole.items() if name.startswith(place)}
    save_file(bare, path / "model.safetensors")
    first, second = (
        dict(load(engine_config(at, family), catalog).model.layers.named_parameters()) for at in (source, path)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


JAIS = {
    "architectures": ["JAISLMHeadModel"], "model_type": "jais", "vocab_size": 320, "n_embd": 64, "n_layer": 2,
    "n_head": 4, "n_inner": 96, "n_positions": 512, "activation_function": "swiglu", "layer_norm_epsilon": 1e-5,
    "position_embedding_type": "alibi", "embeddings_scale": 3.0, "width_scale": 0.5, "scale_qk_dot_by_d": True,
}  # fmt: skip


def jais_weights():
    torch.manual_seed(0)
    shapes = {"wte.weight": (320, 64), "ln_f.weight": (64,), "ln_f.bias": (64,)}
    for layer in range(2):
        for name, shape in (
            ("ln_1", (64,)), ("ln_2", (64,)), ("attn.c_attn", (64, 192)), ("attn.c_proj", (64, 64)),
            ("mlp.c_fc", (64, 96)), ("mlp.c_fc2", (64, 96)), ("mlp.c_proj", (96, 64)),
        ):  # fmt: skip
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[-1:]
    return {f"transformer.{name}": torch.randn(shape) * 0.2 for name, shape in shapes.items()}


def jais(weights):
    """Sengupta et al. 2023 and the published modeling_jais.py, in plain torch."""

    def at(name):
        return weights[f"transformer.{name}"]

    def norm(x, name):
        return functional.layer_norm(x, (64,), at(f"{name}.weight"), at(f"{name}.bias"), 1e-5)

    def conv(x, name):
        return x @ at(f"{name}.weight") + at(f"{name}.bias")

    def attend(x, name):
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(0, 1) for part in conv(x, f"{name}.c_attn").chunk(3, -1))
        places = torch.arange(len(x))
        slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)])
        scores = q @ k.mT / 16 + slopes[:, None, None] * (places[None] - places[:, None])
        scores = scores.masked_fill(places[None] > places[:, None], -torch.inf)
        return conv((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), f"{name}.c_proj")

    def logits(ids):
        x = at("wte.weight")[torch.tensor(ids)] * 3.0
        for layer in range(2):
            x = x + attend(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn")
            normed, mlp = norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp"
            gated = conv(normed, f"{mlp}.c_fc") * functional.silu(conv(normed, f"{mlp}.c_fc2"))
            x = x + conv(gated, f"{mlp}.c_proj")
        return norm(x, "ln_f") @ at("wte.weight").T * 0.5

    return logits


@pytest.mark.row("F-620")
def test_jais_equals_its_definition(catalog, tmp_path):
    weights = jais_weights()
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(JAIS))
    check_model(engine_config(tmp_path, "jais"), catalog, reference=jais(weights))


QUANTISED = {"gpt2": {}, "gpt_neox": {}, "codegen": {}, "falcon": NEW_FALCON, "opt": {"word_embed_proj_dim": 32}}


@pytest.mark.parametrize("name", ["int8", "sym_int4"])
@pytest.mark.parametrize("family", QUANTISED)
def test_weights_are_quantised_as_they_are_read(family, name, checkpoint):
    catalog, path = catalog_of(plugin, lsv_quant.plugin), checkpoint(family, **QUANTISED[family])
    plain, quantised = (
        load(engine_config(path, family, quantization=quantization), catalog) for quantization in (None, name)
    )
    expected, found = (run_schedule(Sequences(declared), SCHEDULES["mixed"]) for declared in (plain, quantised))
    formats = {linear.format for linear in quantised.model.modules() if isinstance(linear, Linear)}
    assert formats - {"plain"}
    for logits, wanted in zip(found.values(), expected.values(), strict=True):
        distance = (logits - wanted).norm() / wanted.norm()
        assert 0 < distance < (0.05 if name == "int8" else 0.5)


@pytest.mark.parametrize("heads", [1, 8, 12, 71, 112])
def test_slopes_are_those_of_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs)


@pytest.mark.parametrize("family", sorted({family for family, _ in CASES.values()}))
def test_unknown_keys_are_refused(family, checkpoint, catalog):
    config = engine_config(checkpoint(family), family, overrides={"logit_softcap_of_the_future": 30.0})
    with pytest.raises(CheckpointError, match="logit_softcap_of_the_future"):
        declare(config, catalog)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("gpt2", {"add_cross_attention": True}),
        ("bloom", {"apply_residual_connection_post_layernorm": True}),
        ("mpt", {"attn_config": {"qk_ln": True}}),
        ("mpt", {"logit_scale": "sometimes"}),
        ("falcon", {"num_ln_in_parallel_attn": 2}),
        ("gpt_neo", {"attention_types": [[["global", "remote"], 1]]}),
        ("gptj", {"rotary_dim": 99}),
        ("phi", {"num_key_value_heads": 3}),
        ("starcoder2", {"norm_epsilon": 1e-5, "layer_norm_eps": 1e-3}),
    ],
)
def test_what_would_change_results_is_refused(family, overrides, checkpoint, catalog):
    with pytest.raises(CheckpointError, match=next(iter(overrides)) if family != "mpt" else "config"):
        declare(engine_config(checkpoint(family), family, overrides=overrides), catalog)


def test_inputs_longer_than_the_learned_positions_are_refused(checkpoint, catalog):
    with pytest.raises(ConfigError, match="513 is more than the 512 positions"):
        declare(engine_config(checkpoint("gpt2"), "gpt2", max_len=513), catalog)
