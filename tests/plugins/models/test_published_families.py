"""Families that transformers no longer has give the logits of their published definition, however the work is cut.

The definitions are written from the ``modeling_*.py`` files that come with the checkpoints: one sequence, float32, no
cache, over a dictionary of tensors under the names there.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch.nn import functional

from lsv.config import Topology
from lsv_base.errors import CheckpointError
from lsv_cpu import plugin as cpu
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import PROMPTS, SCHEDULES, Sequences, compare_decoding, compare_logits, load, run_schedule

Tensors = Mapping[str, torch.Tensor]
Config = Mapping[str, Any]


def rms(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def halves(x, theta, positions):
    """[T, heads, dim]: features i and i + dim / 2 rotate together."""
    dim = x.shape[-1]
    angles = positions[:, None] / theta ** (torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def pairs(x, theta, positions):
    """[T, heads, dim]: the first half of the features rotates, neighbours together (ChatGLM's rotary_pos_emb)."""
    dim = x.shape[-1] // 2
    turned = x[..., :dim].reshape(*x.shape[:-1], dim // 2, 2)
    angles = (positions[:, None] / theta ** (torch.arange(0, dim, 2) / dim))[:, None]
    a, b = turned[..., 0], turned[..., 1]
    out = torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
    return torch.cat((out.flatten(-2), x[..., dim:]), dim=-1)


def attend(q, k, v, slopes=None):
    """[T, heads, dim] of q, and k and v of as many heads or fewer -> [T, heads * dim]."""
    tokens, heads, dim = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
    if slopes is not None:
        scores = scores + slopes[:, None, None] * torch.arange(tokens)
    scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


def linear(t: Tensors, name: str, x):
    return functional.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def qwen(t: Tensors, c: Config, ids: Sequence[int], prompt: int = 1) -> torch.Tensor:
    """``prompt`` is the length by which the rope is scaled: there that of the prompt itself."""
    positions, eps, dim = torch.arange(len(ids)), c["layer_norm_epsilon"], c["kv_channels"]
    stretch = max(1, 2 ** math.ceil(math.log(prompt / c["seq_length"], 2) + 1) - 1) if c["use_dynamic_ntk"] else 1
    theta = c["rotary_emb_base"] * stretch ** (dim / (dim - 2))
    growth = [math.log(n, c["seq_length"]) if n > c["seq_length"] else 1.0 for n in range(1, len(ids) + 1)]
    x = t["transformer.wte.weight"][list(ids)]
    for layer in range(c["num_hidden_layers"]):
        at = f"transformer.h.{layer}"
        qkv = linear(t, f"{at}.attn.c_attn", rms(x, t[f"{at}.ln_1.weight"], eps))
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in qkv.split(qkv.shape[-1] // 3, dim=-1))
        q, k = (halves(part, theta, positions) for part in (q, k))
        if c["use_logn_attn"]:
            q = q * torch.tensor(growth)[:, None, None]
        x = x + linear(t, f"{at}.attn.c_proj", attend(q, k, v))
        normed = rms(x, t[f"{at}.ln_2.weight"], eps)
        inner = linear(t, f"{at}.mlp.w1", normed) * functional.silu(linear(t, f"{at}.mlp.w2", normed))
        x = x + linear(t, f"{at}.mlp.c_proj", inner)
    return linear(t, "lm_head", rms(x, t["transformer.ln_f.weight"], eps))


def internlm2(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    positions, eps = torch.arange(len(ids)), c["rms_norm_eps"]
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c["hidden_size"] // heads
    x = t["model.tok_embeddings.weight"][list(ids)]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        qkv = linear(t, f"{at}.attention.wqkv", rms(x, t[f"{at}.attention_norm.weight"], eps))
        # rearrange "q (h gs d) -> q h gs d" with gs = 2 + query groups
        qkv = qkv.view(len(ids), groups, 2 + heads // groups, dim)
        q, k, v = qkv[:, :, : heads // groups].flatten(1, 2), qkv[:, :, -2], qkv[:, :, -1]
        q, k = (halves(part, c["rope_theta"], positions) for part in (q, k))
        x = x + linear(t, f"{at}.attention.wo", attend(q, k, v))
        normed = rms(x, t[f"{at}.ffn_norm.weight"], eps)
        inner = functional.silu(linear(t, f"{at}.feed_forward.w1", normed)) * linear(t, f"{at}.feed_forward.w3", normed)
        x = x + linear(t, f"{at}.feed_forward.w2", inner)
    return linear(t, "output", rms(x, t["model.norm.weight"], eps))


def chatglm(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    positions, eps, dim = torch.arange(len(ids)), c["layernorm_epsilon"], c["kv_channels"]
    heads, groups = c["num_attention_heads"], c["multi_query_group_num"]
    x = t["transformer.embedding.word_embeddings.weight"][list(ids)]
    for layer in range(c["num_layers"]):
        at = f"transformer.encoder.layers.{layer}"
        mixed = linear(t, f"{at}.self_attention.query_key_value", rms(x, t[f"{at}.input_layernorm.weight"], eps))
        split = mixed.split([heads * dim, groups * dim, groups * dim], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in split)
        q, k = (pairs(part, 10000 * c.get("rope_ratio", 1), positions) for part in (q, k))
        x = x + linear(t, f"{at}.self_attention.dense", attend(q, k, v))
        gate, up = linear(t, f"{at}.mlp.dense_h_to_4h", rms(x, t[f"{at}.post_attention_layernorm.weight"], eps)).chunk(
            2, dim=-1
        )
        x = x + linear(t, f"{at}.mlp.dense_4h_to_h", functional.silu(gate) * up)
    final = rms(x, t["transformer.encoder.final_layernorm.weight"], eps)
    return linear(t, "transformer.output_layer", final)


def exaone(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    positions, eps = torch.arange(len(ids)), c["layer_norm_epsilon"]
    x = t["transformer.wte.weight"][list(ids)]
    for layer in range(c["num_layers"]):
        at = f"transformer.h.{layer}"
        normed = rms(x, t[f"{at}.ln_1.weight"], eps)
        q, k, v = (
            linear(t, f"{at}.attn.attention.{name}_proj", normed).unflatten(-1, (-1, c["head_dim"])) for name in "qkv"
        )
        q, k = (halves(part, c["rope_theta"], positions) for part in (q, k))
        x = x + linear(t, f"{at}.attn.attention.out_proj", attend(q, k, v))
        normed = rms(x, t[f"{at}.ln_2.weight"], eps)
        inner = functional.silu(linear(t, f"{at}.mlp.c_fc_0", normed)) * linear(t, f"{at}.mlp.c_fc_1", normed)
        x = x + linear(t, f"{at}.mlp.c_proj", inner)
    return linear(t, "lm_head", rms(x, t["transformer.ln_f.weight"], eps))


def llama_like(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    """InternLM 1, DeciLM and MiniCPM: their files differ in biases, in KV heads and in multipliers."""
    positions, eps, dim = torch.arange(len(ids)), c["rms_norm_eps"], c["hidden_size"] // c["num_attention_heads"]
    depth = c["scale_depth"] / math.sqrt(c["num_hidden_layers"]) if "scale_depth" in c else 1.0
    x = t["model.embed_tokens.weight"][list(ids)] * c.get("scale_emb", 1)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        normed = rms(x, t[f"{at}.input_layernorm.weight"], eps)
        q, k, v = (linear(t, f"{at}.self_attn.{name}_proj", normed).unflatten(-1, (-1, dim)) for name in "qkv")
        q, k = (halves(part, c.get("rope_theta", 10000.0), positions) for part in (q, k))
        x = x + linear(t, f"{at}.self_attn.o_proj", attend(q, k, v)) * depth
        normed = rms(x, t[f"{at}.post_attention_layernorm.weight"], eps)
        inner = functional.silu(linear(t, f"{at}.mlp.gate_proj", normed)) * linear(t, f"{at}.mlp.up_proj", normed)
        x = x + linear(t, f"{at}.mlp.down_proj", inner) * depth
    x = rms(x, t["model.norm.weight"], eps)
    if "dim_model_base" in c:
        x = x / (c["hidden_size"] / c["dim_model_base"])
    return linear(t, "lm_head", x)


def baichuan(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    positions, eps, dim = torch.arange(len(ids)), c["rms_norm_eps"], c["hidden_size"] // c["num_attention_heads"]
    rotated = c["hidden_size"] == 4096
    slopes = None if rotated else torch.tensor(_interleaved_slopes(c["num_attention_heads"]))
    x = t["model.embed_tokens.weight"][list(ids)]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        packed = linear(t, f"{at}.self_attn.W_pack", rms(x, t[f"{at}.input_layernorm.weight"], eps))
        q, k, v = packed.unflatten(-1, (3, -1, dim)).unbind(1)
        if rotated:
            q, k = (halves(part, 10000.0, positions) for part in (q, k))
        x = x + linear(t, f"{at}.self_attn.o_proj", attend(q, k, v, slopes))
        normed = rms(x, t[f"{at}.post_attention_layernorm.weight"], eps)
        inner = functional.silu(linear(t, f"{at}.mlp.gate_proj", normed)) * linear(t, f"{at}.mlp.up_proj", normed)
        x = x + linear(t, f"{at}.mlp.down_proj", inner)
    head = t["lm_head.weight"]
    if c["vocab_size"] == 125696:  # NormHead of Baichuan 2
        head = functional.normalize(head)
    return functional.linear(rms(x, t["model.norm.weight"], eps), head)


def arctic(t: Tensors, c: Config, ids: Sequence[int]) -> torch.Tensor:
    positions, eps, dim = torch.arange(len(ids)), c["rms_norm_eps"], c["hidden_size"] // c["num_attention_heads"]
    x = t["model.embed_tokens.weight"][list(ids)]
    for layer in range(c["num_hidden_layers"]):
        at, moe = f"model.layers.{layer}", f"model.layers.{layer}.block_sparse_moe"
        sparse = (layer + 1) % c["moe_layer_frequency"] == 0
        normed = rms(x, t[f"{at}.input_layernorm.weight"], eps)
        q, k, v = (linear(t, f"{at}.self_attn.{name}_proj", normed).unflatten(-1, (-1, dim)) for name in "qkv")
        q, k = (halves(part, c["rope_theta"], positions) for part in (q, k))
        attended = x + linear(t, f"{at}.self_attn.o_proj", attend(q, k, v))
        beside = sparse and c["parallel_attn_mlp_res"]
        # beside a dense MLP, experts are given the layer's own input
        read = rms(x if beside else attended, t[f"{at}.post_attention_layernorm.weight"], eps)
        x = attended
        if beside:
            x = x + _gated(t, f"{at}.residual_mlp", rms(attended, t[f"{at}.residual_layernorm.weight"], eps))
        x = x + (_routed(t, moe, c, read) if sparse else _gated(t, f"{moe}.mlp", read))
    return linear(t, "lm_head", rms(x, t["model.norm.weight"], eps))


def _gated(t: Tensors, at: str, x):
    return linear(t, f"{at}.w2", functional.silu(linear(t, f"{at}.w1", x)) * linear(t, f"{at}.w3", x))


def _routed(t: Tensors, at: str, c: Config, x):
    weights, chosen = linear(t, f"{at}.gate", x).softmax(-1).topk(c["num_experts_per_tok"], dim=-1)
    shares = torch.zeros(len(x), c["num_local_experts"]).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
    return sum(shares[:, [e]] * _gated(t, f"{at}.experts.{e}", x) for e in range(c["num_local_experts"]))


def _interleaved_slopes(heads: int) -> list[float]:
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**number for number in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return _interleaved_slopes(closest) + _interleaved_slopes(2 * closest)[0::2][: heads - closest]


SHAPE = {
    "vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 512,
}  # fmt: skip
GROUPED = {**SHAPE, "num_key_value_heads": 2}
QWEN = {
    "vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 192, "num_hidden_layers": 2,
    "kv_channels": 16, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "rotary_pct": 1.0, "seq_length": 512,
    "max_position_embeddings": 8192, "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True,
    "scale_attn_weights": True, "use_flash_attn": "auto", "tie_word_embeddings": False, "emb_dropout_prob": 0.0,
}  # fmt: skip
CHATGLM = {
    "hidden_size": 64, "num_attention_heads": 4, "num_layers": 2, "kv_channels": 16, "ffn_hidden_size": 96,
    "padded_vocab_size": 320, "vocab_size": 320, "layernorm_epsilon": 1e-5, "multi_query_attention": True,
    "multi_query_group_num": 2, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True, "seq_length": 8192,
    "original_rope": True, "post_layer_norm": True, "apply_query_key_layer_scaling": True, "rope_ratio": 50,
    "apply_residual_connection_post_layernorm": False, "attention_softmax_in_fp32": True, "hidden_dropout": 0.0,
    "fp32_residual_connection": False, "tie_word_embeddings": False, "bias_dropout_fusion": True,
}  # fmt: skip
EXAONE = {
    "vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "num_layers": 2, "layer_norm_epsilon": 1e-5, "activation_function": "silu",
    "rope_theta": 500000, "max_position_embeddings": 512, "tie_word_embeddings": False, "embed_dropout": 0.0,
}  # fmt: skip
ARCTIC = {
    **GROUPED, "num_hidden_layers": 3, "rope_theta": 1e4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_layer_frequency": 2, "parallel_attn_mlp_res": True, "use_residual": True, "moe_train_capacity_factor": 1,
    "moe_eval_capacity_factor": 1, "moe_min_capacity": 0, "moe_token_dropping": True, "router_aux_loss_coef": 0.001,
    "enable_expert_tensor_parallelism": False, "quantization": None, "attention_dropout": 0, "sliding_window": None,
}  # fmt: skip
ARCTIC_EVERYWHERE = {**ARCTIC, "moe_layer_frequency": 1, "num_experts_per_tok": 3}
MINICPM = {**GROUPED, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
CASES = {
    "qwen": ("qwen", "QWenLMHeadModel", QWEN, qwen),
    "internlm": ("internlm", "InternLMForCausalLM", {**SHAPE, "bias": True}, llama_like),
    "internlm2": ("internlm2", "InternLM2ForCausalLM", {**GROUPED, "bias": False, "rope_theta": 1e6}, internlm2),
    "internlm2 biased": ("internlm2", "InternLM2ForCausalLM", {**GROUPED, "bias": True, "rope_theta": 1e6}, internlm2),
    "chatglm": ("chatglm", "ChatGLMModel", CHATGLM, chatglm),
    "codegeex4": ("chatglm", "ChatGLMForConditionalGeneration", {**CHATGLM, "rope_ratio": 5000}, chatglm),
    "exaone": ("exaone", "ExaoneForCausalLM", EXAONE, exaone),
    "minicpm": ("minicpm", "MiniCPMForCausalLM", MINICPM, llama_like),
    "decilm": (
        "decilm", "DeciLMForCausalLM", {**SHAPE, "num_key_value_heads_per_layer": [1, 4]}, llama_like,
    ),
    "baichuan large": ("baichuan", "BaichuanForCausalLM", {**SHAPE, "model_max_length": 4096}, baichuan),
    "baichuan large, six heads": (
        "baichuan", "BaichuanForCausalLM", {**SHAPE, "hidden_size": 96, "num_attention_heads": 6}, baichuan,
    ),
    "xverse": ("xverse", "XverseForCausalLM", SHAPE, llama_like),
    "arctic": ("arctic", "ArcticForCausalLM", ARCTIC, arctic),
    "arctic, experts everywhere": ("arctic", "ArcticForCausalLM", ARCTIC_EVERYWHERE, arctic),
    "arctic, nothing beside": (
        "arctic", "ArcticForCausalLM", {**ARCTIC, "parallel_attn_mlp_res": False, "use_residual": False}, arctic,
    ),
    "aquila": ("aquila", "AquilaForCausalLM", GROUPED, llama_like),
}  # fmt: skip

QUICK = ("qwen", "internlm2", "chatglm", "exaone", "minicpm", "decilm", "baichuan large", "arctic")


@pytest.mark.row(
    "F-602", "F-603", "F-604", "F-606", "F-609", "F-610", "F-618", "F-619", "F-623", "F-636", "F-641", "F-656",
)  # fmt: skip
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES])
def test_family_equals_its_definition(case, publish, catalog):
    offer, architecture, keys, reference = CASES[case]
    tensors, config = publish(offer, architecture, keys)
    declared = load(config, catalog)
    expected = {sequence: reference(tensors, keys, ids) for sequence, ids in PROMPTS.items()}
    found = [
        compare_logits(name, run_schedule(Sequences(declared), schedule), expected)
        for name, schedule in SCHEDULES.items()
    ]
    found.append(compare_decoding(Sequences(declared), lambda _, ids: reference(tensors, keys, ids)))
    assert all(one.error <= 1e-4 and one.same_tokens for one in found), found


def test_the_rows_of_a_second_baichuan_s_head_have_length_one(publish, catalog):
    keys = {**SHAPE, "vocab_size": 125_696, "num_hidden_layers": 1}
    tensors, config = publish("baichuan", "BaichuanForCausalLM", keys)
    sequences = Sequences(load(config, catalog))
    sequences.add(0, PROMPTS[3])
    (logits,) = sequences.step([(0, len(PROMPTS[3]))])
    torch.testing.assert_close(logits, baichuan(tensors, keys, PROMPTS[3]), rtol=0, atol=1e-4)


def test_a_small_baichuan_has_a_rope(publish, catalog):
    keys = {**SHAPE, "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 1, "intermediate_size": 16}
    tensors, config = publish("baichuan", "BaiChuanForCausalLM", keys)
    sequences = Sequences(load(config, catalog))
    sequences.add(0, PROMPTS[3])
    (logits,) = sequences.step([(0, len(PROMPTS[3]))])
    torch.testing.assert_close(logits, baichuan(tensors, keys, PROMPTS[3]), rtol=1e-4, atol=1e-3)


@pytest.mark.row("F-636")
@pytest.mark.parametrize("change", [{}, {"use_logn_attn": False}, {"use_dynamic_ntk": False}])
def test_qwen_beyond_its_trained_length_equals_its_definition(change, publish, catalog, caplog):
    keys, longest = {**QWEN, "seq_length": 16, **change}, 64
    tensors, config = publish("qwen", "QWenLMHeadModel", keys, max_model_len=longest)
    declared = load(config, catalog)
    warned = f"inputs of up to 16 tokens are rotated by dynamic NTK for {longest} tokens, too: --max-model-len 16"
    assert (warned in caplog.text) is keys["use_dynamic_ntk"]
    expected = {sequence: qwen(tensors, keys, ids, longest) for sequence, ids in PROMPTS.items()}
    found = [
        compare_logits(name, run_schedule(Sequences(declared), schedule), expected)
        for name, schedule in SCHEDULES.items()
    ]
    found.append(compare_decoding(Sequences(declared), lambda _, ids: qwen(tensors, keys, ids, longest)))
    assert all(one.error <= 1e-4 and one.same_tokens for one in found), found
    as_published = [torch.equal(qwen(tensors, keys, ids, len(ids)), expected[one]) for one, ids in PROMPTS.items()]
    scaled = keys["use_dynamic_ntk"]
    assert as_published == [True, True, not scaled, not scaled], "prompts of 45, 1, 19 and 8 tokens"


@pytest.mark.parametrize("max_model_len", [16, 64])
def test_qwen_has_kernels_where_queries_do_not_grow(max_model_len, publish, catalog):
    _, config = publish("qwen", "QWenLMHeadModel", {**QWEN, "seq_length": 16}, max_model_len=max_model_len)
    grows = [".log_n" in layer.spec().op for layer in declare(config, catalog).model.layers]
    assert grows == [max_model_len > 16] * 2


@pytest.mark.parametrize("counts", [[1], [1, 3], [2, "4"]])
def test_kv_heads_by_layer_are_checked(counts, publish):
    with pytest.raises(CheckpointError, match="num_key_value_heads_per_layer must be 2 divisors of 4"):
        publish("decilm", "DeciLMForCausalLM", {**SHAPE, "num_key_value_heads_per_layer": counts})


@pytest.mark.row("F-603")
@pytest.mark.parametrize("topology", [Topology(tensor=2), Topology(tensor=2, expert=2)])
def test_arctic_on_two_ranks_equals_its_definition(topology, publish, on_two_ranks):
    tensors, config = publish("arctic", "ArcticForCausalLM", ARCTIC)
    config = msgspec.structs.replace(config, topology=topology)
    expected = {sequence: arctic(tensors, ARCTIC, ids) for sequence, ids in PROMPTS.items()}
    for _, logits in on_two_ranks(config, catalog_of(plugin, cpu), run_mixed):
        found = compare_logits("mixed", logits, expected)
        assert found.error <= 1e-4
        assert found.same_tokens


@pytest.mark.row("F-603")
@pytest.mark.parametrize("case", ["arctic", "arctic, nothing beside"])
def test_arctic_quantised_while_loading_stays_close(case, publish):
    _, _, keys, _ = CASES[case]
    tensors, config = publish("arctic", "ArcticForCausalLM", keys)
    declared = load(msgspec.structs.replace(config, quantization="int8"), catalog_of(plugin, quant))
    formats = [module.linear.format for module in declared.model.layers.modules() if isinstance(module, (Column, Row))]
    assert set(formats) == {"int8"}
    plain = torch.cat([arctic(tensors, keys, ids) for ids in PROMPTS.values()])
    off = (torch.cat(list(run_mixed(declared).values())) - plain).abs().amax(dim=-1) / plain.abs().max()
    assert off.max() > 0
    assert off.median() < 0.1, "some tokens go to other experts, most do not"


def run_mixed(declared: Declared) -> dict[int, torch.Tensor]:
    return run_schedule(Sequences(declared), SCHEDULES["mixed"])


@pytest.mark.row("F-603")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"use_residual": False}, "parallel_attn_mlp_res and use_residual are two names of one thing"),
        ({"num_experts_per_tok": 1}, "num_experts_per_tok is 1, and Arctic's definitions differ"),
        ({"quantization": {"q_bits": 8}}, "quantization is {'q_bits': 8}"),
        ({"moe_expert_bias": True}, "moe_expert_bias"),
    ],
)
def test_what_arctic_can_t_follow_is_refused(given, why, publish):
    with pytest.raises(CheckpointError, match=why):
        publish("arctic", "ArcticForCausalLM", {**ARCTIC, **given})


@pytest.mark.parametrize("given", [{"use_residual": None}, {"parallel_attn_mlp_res": None}])
def test_either_name_puts_arctic_s_experts_beside(given, publish):
    tensors, _ = publish("arctic", "ArcticForCausalLM", {**ARCTIC, **given})
    assert [name for name in tensors if "residual_layernorm" in name] == ["model.layers.1.residual_layernorm.weight"]
