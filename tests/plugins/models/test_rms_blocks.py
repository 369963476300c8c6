"""The parts that families vary: which blocks kernels may take whole, norms in 16 bits, and scaled ends."""

import json

import pytest
import torch
import transformers

from lsv_base.errors import CheckpointError
from lsv_models.rms.blocks import OffsetRMSNorm, ShardedRMSNorm
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import PROMPTS, Sequences, engine_config, load, run_schedule, whole
from lsv_testing.tensors import TensorsSource, fill_module, place

HEADS = {"head_dim": 16}
SHARING = {
    **HEADS, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 320,
}  # fmt: skip
FAMILIES = {
    "gemma": ("gemma", HEADS, "layer.other"),
    "gemma2": ("gemma2", HEADS, "layer.other"),
    "gemma3": ("gemma3_text", HEADS, "layer.other"),
    "gemma3n": ("gemma3n_text", {**SHARING, "laurel_rank": 8}, "layer.other.value_norm"),
    "gemma4": ("gemma4_text", {**SHARING, "global_head_dim": 32}, "layer.other.value_norm"),
    "phi3": ("phi3", {}, "layer"),
    "glm": ("glm", HEADS, "layer.rope.pairs"),
    "glm4": ("glm4", HEADS, "layer.other.rope.pairs"),
    "granite": ("granite", {}, "layer.other"),
    "olmo2": ("olmo2", {}, "layer.other.wide_norm"),
    "smollm3": ("smollm3", {}, "layer"),
    "exaone4": ("exaone4", {}, "layer.other"),
    "seed_oss": ("seed_oss", HEADS, "layer"),
    "hunyuan": ("hunyuan_v1_dense", HEADS, "layer.late_norm"),
    "ernie4_5": ("ernie4_5", HEADS, "layer.rope.pairs"),
    "internlm3": ("internlm3", HEADS, "layer"),
    "phimoe": ("phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2}, "layer.layer_norm"),
}


@pytest.mark.parametrize("offer", FAMILIES)
def test_only_llama_s_own_block_is_offered_to_kernels_for_it(offer, checkpoint, catalog):
    family, shape, op = FAMILIES[offer]
    declared = declare(engine_config(checkpoint(family, **shape), offer), catalog)
    assert declared.model.layers[0].spec().op == op


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_offset_norm_is_gemma_s(dtype):
    from transformers.models.gemma import modeling_gemma

    weight, x = torch.randn(64, dtype=dtype) * 0.01, torch.randn(9, 64, dtype=dtype) * 3
    theirs = modeling_gemma.GemmaRMSNorm(64)
    theirs.weight.data = weight
    w, source = place(dtype=dtype), TensorsSource({"weight": weight})
    norm = fill_module(OffsetRMSNorm(w, 64, 1e-6), w, source, source)  # filled twice, one is added once
    found, expected = norm(x), theirs(x)
    assert found.dtype == dtype
    # float32 sums of another order may round to the neighbour
    assert (found == expected).float().mean() > (0.5 if dtype == torch.float32 else 0.99)
    torch.testing.assert_close(found, expected)
    assert norm.spec().op == ("rms_norm" if dtype == torch.float32 else "rms_norm.offset")


class Sum:
    """A communicator that has the other ranks' numbers at hand."""

    def __init__(self, others):
        self.others = others

    def all_reduce(self, x):
        return x + self.others


@pytest.mark.parametrize("copies", [1, 2])
def test_a_sharded_norm_is_over_all_features(copies):
    """``copies`` of each share, as where there are fewer KV heads than ranks."""
    weight, x = torch.rand(32), torch.randn(5, 32)
    expected = torch.nn.functional.rms_norm(x, (32,), weight, 1e-6)
    for first in (0, 16):
        w = place()
        norm = ShardedRMSNorm(w, 32, (first, first + 16), 1e-6)
        fill_module(norm, w, TensorsSource({"weight": weight}))
        share, rest = x[:, first : first + 16], x[:, 16 - first : 32 - first]
        norm.ranks = 2 * copies
        sums = [part.square().sum(-1, keepdim=True) for part in (share, rest)]
        norm.communicator = Sum((copies - 1) * sums[0] + copies * sums[1])
        torch.testing.assert_close(norm(share), expected[:, first : first + 16])


@pytest.mark.parametrize("offer", ["gemma2", "gemma3", "gemma3n", "gemma4", "phi3", "glm4", "granite", "olmo2"])
def test_a_family_in_16_bits_agrees_with_transformers(offer, checkpoint, catalog):
    family, shape, _ = FAMILIES[offer]
    path = checkpoint(family, **shape)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    declared = load(engine_config(path, offer, dtype="bfloat16"), catalog)
    found = run_schedule(Sequences(declared), whole)
    with torch.inference_mode():
        expected = {s: model(torch.tensor([ids]), use_cache=False).logits[0].float() for s, ids in PROMPTS.items()}
    both, theirs = (torch.cat([logits[s] for s in PROMPTS]) for logits in (found, expected))
    assert (both.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
    assert (both - theirs).abs().mean() < 0.02 * theirs.abs().max()


def test_bare_models_have_no_head_and_their_own_names(checkpoint, catalog, tmp_path):
    json_keys = json.loads((checkpoint("olmo2") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**json_keys, "architectures": ["Olmo2Model"]}))
    model = declare(engine_config(tmp_path, "olmo2"), catalog).model
    assert model.rename("layers.0.self_attn.q_norm.weight") == "model.layers.0.self_attn.q_norm.weight"
    assert model.head.linear.weight is model.embed.weight


@pytest.mark.parametrize(
    ("family", "offer", "shape"),
    [
        ("gemma3_text", "gemma3", HEADS),
        ("exaone4", "exaone4", {"sliding_window": 9, "sliding_window_pattern": 2}),
    ],
)
def test_windows_that_say_where_positions_are_can_t_be_taken_away(family, offer, shape, checkpoint, catalog):
    overrides = {"sliding_window": None, "layer_types": None}  # --disable-sliding-window
    with pytest.raises(CheckpointError, match="--disable-sliding-window"):
        declare(engine_config(checkpoint(family, **shape), offer, overrides=overrides), catalog)


def test_long_ropes_tell_of_short_inputs(checkpoint, catalog, caplog):
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0}
    keys = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    for length, told in ((64, False), (65, True)):
        caplog.clear()
        declare(engine_config(checkpoint("phi3"), "phi3", max_len=length, overrides=keys), catalog)
        assert ("long factors" in caplog.text) is told
