"""Families with experts or latents give transformers' logits: whole, in chunks, in mixed batches and while decoding."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.config import Topology
from lsv.offers import KernelOffer
from lsv_base.errors import CheckpointError, ConfigError
from lsv_cpu import plugin as cpu
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.devices.communicator import Group
from lsv_runtime.nn.model import handed_on
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import MixingKernel
from lsv_runtime.weights.placement import Placement
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import Declared, declare, keep_latents
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import (
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
_SHORT_LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 1.5, 2.0, 3.0],
    "original_max_position_embeddings": 512, "rope_theta": 1e4,
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
    "glm4_moe_lite": ("glm4_moe_lite", {
        **_LATENT, **_GROUPED, "q_lora_rank": 20, "mlp_layer_types": ["sparse", "dense"], "num_hidden_layers": 2,
    }),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe", {**_GROUPED, "use_qk_norm": True, "attention_bias": True, "head_dim": 16}),
    "granitemoe": ("granitemoe", _GRANITE),
    "granitemoeshared": ("granitemoeshared", {**_GRANITE, "shared_intermediate_size": 48}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
    "dbrx": ("dbrx", _DBRX),
    "llama4 chunks": ("llama4_text", {**_LLAMA4, "attention_chunk_size": 16}),
    "phimoe": ("phimoe", {**_LOCAL, "attention_bias": True, "lm_head_bias": True, "rope_parameters": _LONGROPE}),
    "llama4": ("llama4_text", _LLAMA4),
    "minicpm3": ("minicpm3", {**_LATENT, "q_lora_rank": 20, "scale_depth": 1.1, "dim_model_base": 16}),
    "minicpm3 longrope": ("minicpm3", {
        **_LATENT, "q_lora_rank": None, "v_head_dim": None, "scale_depth": None, "dim_model_base": None,
        "attention_bias": True, "mlp_bias": True, "rope_parameters": _SHORT_LONGROPE,
    }),
    "gpt_oss": ("gpt_oss", _GPT_OSS),
}  # fmt: skip


@pytest.mark.row("F-608", "F-634", "F-638", "F-657", "F-660", "F-689")
@pytest.mark.parametrize("case", SHAPES)
def test_sparse_family_equals_transformers(case, checkpoint, catalog, record_property):
    family, shape = SHAPES[case]
    found = check_model(engine_config(checkpoint(family, **shape), case.split()[0]), catalog, tolerance=1e-4)
    worst = {comparison.schedule: f"{comparison.error:.1e}" for comparison in found}
    record_property("largest logit difference", json.dumps(worst))


@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3 yarn", "minicpm3"])
def test_cached_latents_give_the_same_logits(case, checkpoint, catalog):
    family, shape = SHAPES[case]
    config = engine_config(checkpoint(family, **shape), family)
    declared = declare(config, catalog)
    before = declared.specs[0].token_bytes
    assert keep_latents(declared, DenseAttention(), config) == "latents are cached"
    assert declared.specs[0].token_bytes == (24 + 8) * 4 < before
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


@pytest.mark.parametrize("key", ["num_mtp_layers", "num_nextn_predict_layers"])
def test_layers_that_draft_are_no_part_of_the_model(key, checkpoint, catalog):
    family, shape = SHAPES["deepseek_v3"]
    declared = declare(engine_config(checkpoint(family, **shape), family, overrides={key: 1}), catalog)
    assert len(declared.layers) == 2


def test_a_backend_without_room_for_latents_gets_keys_and_values(checkpoint, catalog):
    class Narrow(DenseAttention):
        def supports(self, layer):
            return f"head size {layer.head_dim} is over 24" if layer.head_dim > 24 else None

    family, shape = SHAPES["deepseek_v3"]
    config = engine_config(checkpoint(family, **shape), family)
    declared = declare(config, catalog)
    assert "head size 32 is over 24" in (keep_latents(declared, Narrow(), config) or "")
    assert declared.layers[0].kv_heads == 4


def test_a_backend_that_reads_no_values_from_keys_gets_latents_twice(checkpoint, catalog):
    class Separate(DenseAttention):
        shares_values = False

    family, shape = SHAPES["deepseek_v3"]
    config = engine_config(checkpoint(family, **shape), family)
    declared = declare(config, catalog)
    assert keep_latents(declared, Separate(), config) == (
        "latents are cached twice, as keys and as values: it does not read values from keys"
    )
    assert declared.specs[0].token_bytes == 2 * (24 + 8) * 4
    fill(declared, open_source(config, declared, catalog))
    reference = reference_model(config)
    expected = {sequence: reference(ids) for sequence, ids in PROMPTS.items()}
    found = compare_logits("mixed", run_schedule(Sequences(declared), SCHEDULES["mixed"]), expected)
    assert found.error <= 1e-4


@pytest.mark.parametrize(
    ("given", "multiplier", "divisor", "value_dim"),
    [
        ({}, 1.1 / 2**0.5, 4.0, 16),
        ({"scale_depth": None, "dim_model_base": None, "v_head_dim": None}, 1.0, 1.0, 16),
        ({"v_head_dim": 24}, 1.1 / 2**0.5, 4.0, 24),
    ],
)
def test_what_minicpm3_leaves_open(given, multiplier, divisor, value_dim, checkpoint, catalog, tmp_path):
    family, shape = SHAPES["minicpm3"]
    keys = json.loads((checkpoint(family, **shape) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**keys, **given}))
    model = declare(engine_config(tmp_path, family), catalog).model
    assert model.layers[0].multiplier == pytest.approx(multiplier)
    assert getattr(model.head, "divisor", 1.0) == divisor
    assert model.layers[0].attn.c.value_dim == value_dim


@pytest.mark.parametrize("kinds", [["dense"], ["dense", "wide"], [["dense"], "sparse"]])
def test_kinds_of_layers_that_are_none_are_refused(kinds, checkpoint, catalog, tmp_path):
    family, shape = SHAPES["glm4_moe_lite"]
    keys = json.loads((checkpoint(family, **shape) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**keys, "mlp_layer_types": kinds}))
    with pytest.raises(CheckpointError, match="mlp_layer_types must list dense or sparse for 2 layers"):
        declare(engine_config(tmp_path, family), catalog)


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


def test_chunks_that_blocks_do_not_fill_are_refused_by_name(checkpoint, catalog):
    family, shape = SHAPES["llama4"]
    config = engine_config(checkpoint(family, **shape), "llama4", overrides={"attention_chunk_size": 60})
    with pytest.raises(ConfigError, match=r"block_size=8.*60"):
        declare(config, catalog)


@pytest.mark.parametrize(("longest", "chunks"), [(64, [None] * 4), (65, [64, None, 64, None])])
def test_layers_attend_in_chunks_where_there_may_be_several(longest, chunks, checkpoint, catalog):
    family, shape = SHAPES["llama4"]
    settings = {"overrides": {"attention_chunk_size": 64}, "max_len": longest}
    declared = declare(engine_config(checkpoint(family, **shape), "llama4", **settings), catalog)
    assert [layer.chunk for layer in declared.layers] == chunks
    assert {group.window for group in declared.groups} == ({None} if longest == 64 else {None, 64})


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


@torch.inference_mode()
def compute(declared: Declared) -> list[torch.Tensor]:
    """What all layers of experts make of some tokens, and the logits of the model where nothing else is cut unlike it:
    formats that are made while loading have other scales for parts of a layer.
    """
    x = torch.randn(9, handed_on(declared.model), generator=torch.Generator().manual_seed(1))
    every = [moe(x) for moe in experts_of(declared)]
    return [*every, run_schedule(Sequences(declared), SCHEDULES["mixed"])[0]]


def experts_of(declared: Declared) -> list[MoE]:
    return [module for module in declared.model.modules() if isinstance(module, MoE)]


@pytest.mark.row("F-282")
@pytest.mark.parametrize(("quantization", "kernels"), [(None, True), ("int8", True), (None, False)])
@pytest.mark.parametrize("case", ["deepseek_v3", "gpt_oss", "granitemoeshared", "llama4", "qwen2_moe"])
def test_experts_spread_over_ranks_compute_as_on_one(case, quantization, kernels, checkpoint, on_two_ranks):
    family, shape = SHAPES[case]
    sources, reference = catalog_of(plugin, quant, cpu), not kernels
    config = engine_config(checkpoint(family, **shape), case, quantization=quantization, reference_ops=reference)
    alone = declare(config, sources)
    bind_ops(alone, sources, "cpu", reference=reference)
    fill(alone, open_source(config, alone, sources))
    expected = compute(alone)
    spread = msgspec.structs.replace(config, topology=Topology(tensor=2, expert=2))
    found = on_two_ranks(spread, sources, compute)
    compared = len(expected) - (quantization is not None)
    for _, computed in found:
        for mine, wanted in list(zip(computed, expected, strict=True))[:compared]:
            assert (mine - wanted).abs().max() / wanted.abs().max() < 1e-4
    for whole, *halves in zip(experts_of(alone), *(experts_of(one) for one, _ in found), strict=True):
        held = [number for half in halves for number in half.spread.places]
        assert held == list(range(len(whole.experts))), "each rank has a half, in order"
        assert [len(half.experts) for half in halves] == [len(held) // 2] * 2
        assert {half.spec().shape["intermediate"] for half in halves} == {whole.spec().shape["intermediate"]}
    one, *each = (any(moe.kernel is not None for moe in experts_of(had)) for had in (alone, *(had for had, _ in found)))
    assert each == [one, one], "a kernel takes them where one takes experts at all"


def test_kernels_of_experts_that_replicas_share_can_be_told_what_was_chosen(checkpoint):
    family, shape = SHAPES["deepseek_v3"]
    sources, topology = catalog_of(plugin, quant, cpu), Topology(data=2, expert=2)
    config = engine_config(checkpoint(family, **shape), "deepseek_v3", topology=topology)
    declared = declare(config, sources, exchange=SimpleNamespace(communicator=beside(1, 2)))
    assert {(moe.spec().op, len(moe.experts)) for moe in experts_of(declared)} == {("moe.exchanged", 4)}
    (offer,) = (one for one in sources.offers(KernelOffer) if one.op == "moe.exchanged")
    assert issubclass(sources.load(offer), MixingKernel)


def test_models_without_experts_have_none_to_spread(checkpoint, catalog):
    config = engine_config(checkpoint("llama"), "llama", topology=Topology(tensor=2, expert=2))
    with pytest.raises(ConfigError, match=r"enable_expert_parallel: .* has no experts"):
        declare(config, catalog, communicator=beside(1, 2))


@pytest.mark.parametrize(("ranks", "owners"), [(2, (0, 0, 1, 1)), (3, (0, 1, 2, 2))])
def test_experts_are_shared_out_as_evenly_as_can_be(ranks, owners):
    assert Placement(0, ranks).place(4) == owners


def test_more_ranks_than_experts_are_refused():
    with pytest.raises(ConfigError, match="4 experts can't be spread over 8 ranks"):
        Placement(0, 8).place(4)


def beside(rank: int, ranks: int) -> Any:
    """A communicator that nobody asks."""
    return SimpleNamespace(group=Group("tp", tuple(range(ranks)), rank, ""), ops=())
