"""Every family with experts gives transformers' logits, whole, in chunks, in mixed batches and while decoding."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.errors import CheckpointError, ConfigError
from lsv.testing.catalog import catalog_of
from lsv.testing.dense_attention import DenseAttention
from lsv.testing.model import (
    PROMPTS,
    SCHEDULES,
    Sequences,
    check_model,
    compare_decoding,
    compare_logits,
    engine_config,
    load,
    reference_model,
    run_schedule,
)
from lsv.worker.load.declared import declare, keep_latents
from lsv.worker.load.loaded import fill, open_source
from lsv_models import plugin
from lsv_quant import plugin as quant

_LATENT = {
    "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
_GROUPED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GRANITE = {
    **_LOCAL, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 0.1,
}  # fmt: skip
_DBRX = {
    "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 320,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
}  # fmt: skip
_GPT_OSS = {
    **_LOCAL, "head_dim": 16, "sliding_window": 9, "swiglu_limit": 0.6,
    "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
}  # fmt: skip
_LLAMA4 = {
    **_LOCAL, "head_dim": 16, "num_hidden_layers": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2,
    "no_rope_layer_interval": 2, "floor_scale": 8, "attention_chunk_size": 512, "num_experts_per_tok": 1,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + n for n in range(8)],
    "short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 512, "rope_theta": 1e4,
}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", {
        **_LATENT, **_GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_shared_experts": 2,
    }),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, **_GROUPED, "q_lora_rank": 20}),
    "deepseek_v3 yarn": ("deepseek_v3", {
        **_LATENT, **_GROUPED, "q_lora_rank": 20, "rope_parameters": _YARN, "norm_topk_prob": False,
        "rope_interleave": False, "v_head_dim": 24,
    }),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe", {**_GROUPED, "use_qk_norm": True, "attention_bias": True, "head_dim": 16}),
    "granitemoe": ("granitemoe", _GRANITE),
    "granitemoeshared": ("granitemoeshared", {**_GRANITE, "shared_intermediate_size": 48}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
    "dbrx": ("dbrx", _DBRX),
    "phimoe": ("phimoe", {**_LOCAL, "attention_bias": True, "lm_head_bias": True, "rope_parameters": _LONGROPE}),
    "llama4": ("llama4_text", _LLAMA4),
    "gpt_oss": ("gpt_oss", _GPT_OSS),
}  # fmt: skip
ROWS = {
    "qwen2_moe": ("F-638", "F-689"), "phimoe": ("F-634",), "dbrx": ("F-608",), "deepseek_v2": ("F-657", "F-689"),
}  # fmt: skip
CASES = [pytest.param(case, id=case, marks=[pytest.mark.row(*ROWS[case])] if case in ROWS else []) for case in SHAPES]


@pytest.mark.parametrize("case", CASES)
def test_sparse_family_equals_transformers(case, checkpoint, catalog, record_property):
    family, shape = SHAPES[case]
    found = check_model(engine_config(checkpoint(family, **shape), case.split()[0]), catalog, tolerance=1e-4)
    worst = {comparison.schedule: f"{comparison.error:.1e}" for comparison in found}
    record_property("largest logit difference", json.dumps(worst))


@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3 yarn"])
def test_cached_latents_give_the_same_logits(case, checkpoint, catalog):
    family, shape = SHAPES[case]
    config = engine_config(checkpoint(family, **shape), family)
    declared = declare(config, catalog)
    before = declared.specs[0].token_bytes
    assert keep_latents(declared, DenseAttention(), config) == "latents are cached"
    assert declared.specs[0].token_bytes == 2 * (24 + 8) * 4 < before
    expected_bytes = declared.weight_bytes
    fill(declared, open_source(config, declared, catalog))
    assert declared.weight_bytes <= expected_bytes + declared.model.get_submodule("layers.0.attn.rope").table.nbytes
    reference = reference_model(config)
    expected = {sequence: reference(ids) for sequence, ids in PROMPTS.items()}
    for name, schedule in SCHEDULES.items():
        found = compare_logits(name, run_schedule(Sequences(declared), schedule), expected)
        assert found.error <= 1e-4, name
        assert found.same_tokens
    assert compare_decoding(Sequences(declared), lambda _, ids: reference(ids)).error <= 1e-4


def test_a_backend_without_room_for_latents_gets_keys_and_values(checkpoint, catalog):
    class Narrow(DenseAttention):
        def supports(self, layer):
            return f"head size {layer.head_dim} is over 24" if layer.head_dim > 24 else None

    family, shape = SHAPES["deepseek_v3"]
    config = engine_config(checkpoint(family, **shape), family)
    declared = declare(config, catalog)
    assert "head size 32 is over 24" in (keep_latents(declared, Narrow(), config) or "")
    assert declared.layers[0].kv_heads == 4


def test_other_models_have_no_latents(checkpoint, catalog):
    config = engine_config(checkpoint("llama"), "llama")
    assert keep_latents(declare(config, catalog), DenseAttention(), config) is None


@pytest.mark.parametrize("case", ["deepseek_v3", "gpt_oss", "granitemoeshared", "dbrx"])
def test_experts_quantised_online_stay_close(case, checkpoint):
    family, shape = SHAPES[case]
    found = []
    for quantization in (None, "int8"):
        config = engine_config(checkpoint(family, **shape), family, quantization=quantization)
        declared = load(config, catalog_of(plugin, quant))
        found.append(run_schedule(Sequences(declared), SCHEDULES["mixed"])[0])
    plain, coded = found
    off = (plain - coded).abs().amax(dim=-1) / plain.abs().max()
    assert off.max() > 0
    assert off.median() < 0.1, "some tokens go to other experts, most do not"


def test_mxfp4_experts_are_read_as_stored(checkpoint, tmp_path):
    """Beside transformers with the same weights written out."""
    family, shape = SHAPES["gpt_oss"]
    plain = checkpoint(family, **shape)
    tensors = load_file(plain / "model.safetensors")
    written, packed = dict(tensors), dict(tensors)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors[name].shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 126, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        written[name] = _written_out(blocks, scales).mT.contiguous()
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    about = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    check_quantised(plain, tmp_path, family, about, packed, written)


def test_fp8_blocks_of_latent_attention_and_experts(checkpoint, tmp_path):
    """The last block of each projection is not whole."""
    family, shape = SHAPES["deepseek_v3"]
    plain = checkpoint(family, **shape)
    tensors = load_file(plain / "model.safetensors")
    written, packed = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight") or "_proj_with_mqa" in name]:
        codes = tensors[name].to(torch.float8_e4m3fn)
        scales = torch.rand([-(-size // 16) for size in codes.shape]) + 0.5
        spread = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
        written[name] = codes.float() * spread[: codes.shape[0], : codes.shape[1]]
        packed |= {name: codes, f"{name}_scale_inv": scales}
    about = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    check_quantised(plain, tmp_path, family, about, packed, written)


def check_quantised(plain, folder, family, about, packed, written):
    """A checkpoint of quantised tensors, beside transformers with the weights that they stand for."""
    config = json.loads((plain / "config.json").read_text())
    quantised = config | {"quantization_config": about}
    for place, weights, json_ in (("written", written, config), ("packed", packed, quantised)):
        (folder / place).mkdir()
        save_file(weights, folder / place / "model.safetensors", metadata={"format": "pt"})
        (folder / place / "config.json").write_text(json.dumps(json_))
    reference = reference_model(engine_config(folder / "written", family))
    settings = engine_config(folder / "packed", family, quantization=about["quant_method"])
    found = run_schedule(Sequences(load(settings, catalog_of(plugin, quant))), SCHEDULES["mixed"])
    expected = {sequence: reference(ids) for sequence, ids in PROMPTS.items()}
    assert compare_logits("mixed", found, expected).error <= 1e-3


def _written_out(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., groups, 16] and exponents [..., groups] -> [..., inputs]; OCP Microscaling Formats 1.0."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    pairs = torch.stack((values[(blocks & 15).long()], values[(blocks >> 4).long()]), dim=-1).flatten(-2)
    return (pairs * 2.0 ** (scales[..., None].float() - 127)).flatten(-2)


def test_chunks_of_attention_are_refused_by_name(checkpoint, catalog):
    family, shape = SHAPES["llama4"]
    config = engine_config(checkpoint(family, **shape), "llama4", overrides={"attention_chunk_size": 64})
    with pytest.raises(ConfigError, match="64"):
        declare(config, catalog)


@pytest.mark.parametrize("case", ["deepseek_v3", "qwen2_moe", "gpt_oss", "llama4"])
def test_unknown_keys_are_refused(case, checkpoint, catalog):
    family, shape = SHAPES[case]
    config = engine_config(checkpoint(family, **shape), case, overrides={"expert_softcap_of_the_future": 30.0})
    with pytest.raises(CheckpointError, match="expert_softcap_of_the_future"):
        declare(config, catalog)


def test_unknown_keys_of_parts_are_refused(checkpoint, catalog):
    family, shape = SHAPES["dbrx"]
    path = checkpoint(family, **shape)
    attention = json.loads((path / "config.json").read_text())["attn_config"] | {"alibi": True}
    with pytest.raises(CheckpointError, match="alibi"):
        declare(engine_config(path, family, overrides={"attn_config": attention}), catalog)
