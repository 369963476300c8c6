"""Phi-3-small equals its published definition, within what all layers see and beyond it.

The definition is written from the ``modeling_phi3_small.py`` and the masks of the kernels that come with the
checkpoints: one sequence, float32, no cache.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from torch.nn import functional

from lsv import LLM, SamplingParams
from lsv.config import Topology
from lsv_base.errors import CheckpointError
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.weights.quantizer import Linear
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import PROMPTS, SCHEDULES, Sequences, compare_decoding, compare_logits, load, run_schedule
from suite.interpreter import quicken

UNUSED = [5, *range(300, 320)]
KEYS = {
    "vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "ff_intermediate_size": 96, "ff_dim_multiplier": None, "hidden_act": "gegelu", "gegelu_limit": 1.5,
    "gegelu_pad_to_256": True, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 512,
    "rope_embedding_base": 1e4, "rope_position_scale": 1.0, "rope_scaling": None, "dummy_token_indices": UNUSED,
    "blocksparse_block_size": 4, "blocksparse_homo_head_pattern": False, "blocksparse_num_local_blocks": 2,
    "blocksparse_vert_stride": 3, "blocksparse_triton_kernel_block_size": 4, "dense_attention_every_n_layers": 2,
    "mup_attn_multiplier": 1.5, "mup_embedding_multiplier": 10.0, "mup_use_scaling": True, "mup_width_multiplier": 2.0,
    "reorder_and_upcast_attn": False, "pad_sequence_to_multiple_of_64": True, "attention_dropout_prob": 0.0,
}  # fmt: skip
LONG = {
    "type": "su", "short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.3 * i for i in range(8)],
    "short_mscale": 1.1, "long_mscale": 1.2, "original_max_position_embeddings": 128,
}  # fmt: skip
CASES = {
    "stripes by head": {},
    "one pattern": {"blocksparse_homo_head_pattern": True},
    "stripes far apart": {"blocksparse_vert_stride": 9, "blocksparse_num_local_blocks": 1},
    "no dense layer": {"dense_attention_every_n_layers": None},
    "full": {"blocksparse_num_local_blocks": 128},
    "without multipliers": {
        "mup_use_scaling": False, "mup_width_multiplier": None, "mup_embedding_multiplier": None, "gegelu_limit": None,
    },
    "long": {"rope_scaling": LONG},
}  # fmt: skip
FLOOR = -30.0
"""Log probabilities below are taken for it: those of unused ids are far below."""


def rotate(c, x):
    """[T, heads, dim]: features i and i + dim / 2 rotate together."""
    dim, scaling = x.shape[-1], c["rope_scaling"]
    stretch, size = (torch.tensor(scaling["long_factor"]), scaling["long_mscale"]) if scaling else (1.0, 1.0)
    frequencies = 1 / (stretch * c["rope_embedding_base"] ** (torch.arange(0, dim, 2) / dim))
    angles = torch.outer(torch.arange(len(x)), frequencies).repeat(1, 2)[:, None]
    first, second = x.chunk(2, dim=-1)
    return (x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()) * size


def mask(c, layer, tokens):
    """What each head of a layer sees: bool [heads, T, T]."""
    heads, every, size = c["num_attention_heads"], c["dense_attention_every_n_layers"], c["blocksparse_block_size"]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(heads, -1, -1)
    if every and (layer + 1) % every == 0:
        return causal
    count, stride = -(-tokens // size), c["blocksparse_vert_stride"]
    step = 0 if c["blocksparse_homo_head_pattern"] else max(1, int(stride / heads))
    q, k = torch.arange(count)[:, None], torch.arange(count)[None]
    near = (q >= k) & (q - k < c["blocksparse_num_local_blocks"])
    stripes = torch.stack([(torch.arange(count) + head * step + 1) % stride == 0 for head in range(heads)])
    seen = near | ((q >= k) & stripes[:, None])
    return seen.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :tokens, :tokens] & causal


def attend(c, layer, qkv):
    """The fused [T, groups * (queries + 2) * dim] -> [T, hidden]."""
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c["hidden_size"] // heads
    qkv = qkv.view(len(qkv), groups, heads // groups + 2, dim)
    q, k, v = qkv[:, :, :-2].flatten(1, 2), qkv[:, :, -2], qkv[:, :, -1]
    q, k, v = rotate(c, q), *(x.repeat_interleave(heads // groups, dim=1) for x in (rotate(c, k), v))
    scale = c["mup_attn_multiplier"] / dim if c["mup_use_scaling"] else 1 / math.sqrt(dim)
    scores = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~mask(c, layer, len(q)), -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


def phi3_small(t, c, ids: Sequence[int]) -> torch.Tensor:
    """The logits [T, vocab]."""

    def linear(name, x):
        return functional.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])

    def norm(name, x):
        return functional.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], c["layer_norm_epsilon"])

    x = t["model.embed_tokens.weight"][list(ids)] * (c["mup_embedding_multiplier"] or 1)
    limit = c["gegelu_limit"] or math.inf
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        qkv = linear(f"{at}.self_attn.query_key_value", norm(f"{at}.input_layernorm", x))
        x = x + linear(f"{at}.self_attn.dense", attend(c, layer, qkv))
        inner = linear(f"{at}.mlp.up_proj", norm(f"{at}.post_attention_layernorm", x))
        gate, up = inner[:, ::2].clamp(max=limit), inner[:, 1::2].clamp(-limit, limit)
        x = x + linear(f"{at}.mlp.down_proj", gate * torch.sigmoid(1.702 * gate) * (up + 1))
    logits = norm("model.final_layernorm", x) @ t["model.embed_tokens.weight"].T / (c["mup_width_multiplier"] or 1)
    logits[:, c["dummy_token_indices"]] = torch.finfo(torch.float32).min
    return logits


def log_probabilities(logits):
    return logits.log_softmax(-1).clamp(min=FLOOR)


class LogProbabilities(Sequences):
    """Steps that give log probabilities."""

    def step(self, rows):
        return [log_probabilities(logits) for logits in super().step(rows)]


@pytest.mark.row("F-633")
@pytest.mark.parametrize("case", CASES)
def test_phi3_small_equals_its_definition(case, publish, catalog):
    keys = {**KEYS, **CASES[case]}
    tensors, config = publish("phi3small", "Phi3SmallForCausalLM", keys)
    declared = load(config, catalog)
    assert [layer.pattern is not None for layer in declared.layers] == [
        case != "full" and (layer != 1 or case == "no dense layer") for layer in range(3)
    ]

    def reference(ids):
        return log_probabilities(phi3_small(tensors, keys, ids))

    expected = {sequence: reference(ids) for sequence, ids in PROMPTS.items()}
    found = [
        compare_logits(name, run_schedule(LogProbabilities(declared), schedule), expected)
        for name, schedule in SCHEDULES.items()
    ]
    found.append(compare_decoding(LogProbabilities(declared), lambda _, ids: reference(ids)))
    assert all(one.error * -FLOOR <= 1e-4 and one.same_tokens for one in found), found


@pytest.mark.row("F-633")
def test_blocks_matter_only_beyond_the_local_ones(publish, catalog):
    tensors, config = publish("phi3small", "Phi3SmallForCausalLM", KEYS)
    within = load(msgspec.structs.replace(config, max_model_len=8), catalog)
    assert not any(layer.pattern for layer in within.layers)
    full = {**KEYS, "dense_attention_every_n_layers": 1}
    for count, same in ((8, True), (9, False)):
        ids = PROMPTS[0][:count]
        unlike = phi3_small(tensors, KEYS, ids) - phi3_small(tensors, full, ids)
        assert (float(unlike.abs().max()) < 1e-5) is same


@pytest.mark.row("F-633")
@pytest.mark.parametrize("backend", ["torch-paged", pytest.param("triton-paged", marks=pytest.mark.slow)])
def test_an_emulated_gpu_gives_the_tokens_of_a_cpu(backend, publish, tmp_path):
    """Prompts of up to 50 tokens, of which 8 are local; in two chunks, then decoded."""
    quicken()
    publish("phi3small", "Phi3SmallForCausalLM", KEYS)
    prompts = [{"prompt_token_ids": [(7 * place) % 256 for place in range(length)]} for length in (50, 19)]
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=1)

    def answer(**options):
        given = {"dtype": "float32", "max_model_len": 64, "max_num_batched_tokens": 48, "skip_tokenizer_init": True}
        with LLM(str(tmp_path), **given, **options) as llm:
            found = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
            return [one.token_ids for one in found], [one.cumulative_logprob for one in found]

    emulated = {"platform": "cuda", "emulate": True, "enforce_eager": True, "max_num_seqs": 2}
    tokens, sums = answer(platform="cpu")
    assert answer(**emulated, attention_backend=backend) == (tokens, pytest.approx(sums, abs=1e-4))


def test_unused_ids_are_those_of_the_tokenizer(publish, catalog):
    keys = {key: value for key, value in KEYS.items() if key != "dummy_token_indices"}
    with pytest.raises(CheckpointError, match="dummy_token_indices must be ids below vocab_size=320"):
        publish("phi3small", "Phi3SmallForCausalLM", keys)
    _, config = publish("phi3small", "Phi3SmallForCausalLM", {**keys, "vocab_size": 100352})
    unused = declare(config, catalog).model.unused
    assert len(unused) == 91
    assert not {100255, 100257, 100261, 100262, 100263, 100266} & set(unused)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act must be gegelu"),
        ({"ff_dim_multiplier": 4}, "ff_dim_multiplier"),
        ({"rope_position_scale": 2.0}, "rope_position_scale"),
        ({"dummy_token_indices": [320]}, "dummy_token_indices"),
        ({"blocksparse_vert_stride": 0}, "blocksparse_vert_stride must be positive"),
        ({"mup_head_multiplier": 2.0}, "mup_head_multiplier"),
    ],
)
def test_what_it_can_not_follow_is_refused(change, message, publish):
    with pytest.raises(CheckpointError, match=message):
        publish("phi3small", "Phi3SmallForCausalLM", {**KEYS, **change})


@pytest.mark.parametrize(("name", "most"), [("int8", 0.05), ("sym_int4", 0.5)])
def test_weights_are_quantised_as_they_are_read(name, most, publish):
    tensors, config = publish("phi3small", "Phi3SmallForCausalLM", KEYS)
    quantised = load(msgspec.structs.replace(config, quantization=name), catalog_of(plugin, quant))
    assert {linear.format for linear in quantised.model.modules() if isinstance(linear, Linear)} - {"plain"}
    used = [one for one in range(320) if one not in UNUSED]
    for sequence, logits in run_schedule(Sequences(quantised), SCHEDULES["mixed"]).items():
        wanted = phi3_small(tensors, KEYS, PROMPTS[sequence])[:, used]
        assert 0 < (logits[:, used] - wanted).norm() / wanted.norm() < most


def test_two_ranks_compute_what_one_does(publish, catalog, tmp_path):
    tensors, config = publish("phi3small", "Phi3SmallForCausalLM", KEYS)
    spread = msgspec.structs.replace(config, topology=Topology(tensor=2))

    def run(rank):
        communicator = BackendCommunicator(
            Group("tp", (0, 1), rank, str(tmp_path / "meeting")), gloo, torch.device("cpu")
        )
        declared = declare(spread, catalog, communicator=communicator)
        fill(declared, open_source(config, declared, catalog))
        computed = run_schedule(LogProbabilities(declared), SCHEDULES["mixed"])
        communicator.close()
        return computed

    expected = {sequence: log_probabilities(phi3_small(tensors, KEYS, ids)) for sequence, ids in PROMPTS.items()}
    with ThreadPoolExecutor(2) as ranks:
        found = [compare_logits("mixed", computed, expected) for computed in ranks.map(run, range(2))]
    assert all(one.error * -FLOOR <= 1e-4 and one.same_tokens for one in found), found
