"""The transformers adapter: architectures it runs as transformers does, and those it refuses by name."""

import json
from collections import Counter
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from lsv import LLM, SamplingParams
from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.nn.embed import Embed
from lsv_runtime.weights.quantizer import PlainLinear
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import Sequences, check_model, compare, engine_config, load, reference_model

LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.3 * i for i in range(8)],
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
BART = {"d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "is_decoder": True,
        "is_encoder_decoder": False}  # fmt: skip
BERT = {"is_decoder": True, "num_key_value_heads": None}
GPTJ = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_inner": 96, "n_positions": 512}
LATENT_HEADS = {"kv_lora_rank": 24, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
                "num_key_value_heads": 4, "head_dim": 8}  # fmt: skip
LATENT = {**LATENT_HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
          "topk_group": 1}  # fmt: skip
FLASH = {"num_layers": 1, "num_key_value_heads": 4, "n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2,
         "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96, "kv_lora_rank": 24, "q_lora_rank": 24}  # fmt: skip
INDEXED = {**LATENT, "n_group": 1, "index_topk": 9, "index_n_heads": 32, "index_head_dim": 16, "q_lora_rank": 24}
RUN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {},
    "gemma2": {"sliding_window": 9},
    "cohere": {"logit_scale": 0.5},
    "opt": {},
    "bart": BART,
    "roberta": BERT,
    "gptj": GPTJ,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
    "deepseek_v32": INDEXED,
}
RUN_SLOWLY: dict[str, dict[str, Any]] = {
    "phi": {},
    "stablelm": {},
    "olmo2": {},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "apertus": {},
    "gemma": {},
    "gemma3_text": {"sliding_window": 9},
    "cohere2": {"sliding_window": 9},
    "olmo": {},
    "phi3": {},
    "starcoder2": {"sliding_window": 9},
    "glm": {},
    "glm4": {},
    "nemotron": {},
    "exaone4": {},
    "smollm3": {},
    "ernie4_5": {},
    "seed_oss": {},
    "persimmon": {},
    "arcee": {},
    "gpt_bigcode": {},
    "biogpt": {},
    "pegasus": BART,
    "marian": {**BART, "decoder_start_token_id": 1},
    "xlm-roberta": BERT,
    "camembert": BERT,
    "codegen": GPTJ,
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96},
    "diffllama": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9},
    "longcat_flash": {"num_key_value_heads": 4},
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 16, "num_key_value_heads": 2},
    "glm_moe_dsa": {**INDEXED, "num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"]},
}
REFUSED = {
    "mamba": "layers of type",
    "jamba": "layers of type",
    "rwkv": "not a KV cache",
    "bert": "looks ahead",
    "doge": "mask of its own",
}


def check(family, shape, checkpoint, catalog):
    with torch.inference_mode():  # as the worker does
        found = check_model(engine_config(checkpoint(family, **shape), "transformers"), catalog)
    print(f"\n{family:16}" + "  ".join(f"{c.schedule} {c.error:.1e}" for c in found))


@pytest.mark.parametrize("family", RUN)
def test_architecture_equals_transformers(family, checkpoint, catalog):
    check(family, RUN[family], checkpoint, catalog)


@pytest.mark.slow
@pytest.mark.parametrize("family", RUN_SLOWLY)
def test_further_architecture_equals_transformers(family, checkpoint, catalog):
    check(family, RUN_SLOWLY[family], checkpoint, catalog)


def test_row_of_padding_is_the_checkpoints(checkpoint, catalog):
    """transformers sets the row to zero when it loads this family, and the tied head has another logit then."""
    config = engine_config(checkpoint("youtu", **LATENT_HEADS, tie_word_embeddings=True), "transformers")
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32, attn_implementation="eager")
    stored = load_file(f"{config.model}/model.safetensors")["model.embed_tokens.weight"]
    assert stored[model.config.pad_token_id].any()
    model.get_input_embeddings().weight.data.copy_(stored)
    with torch.inference_mode():
        found = compare(config, catalog, reference=lambda ids: model(torch.tensor([ids]), use_cache=False).logits[0])
    assert all(each.same_tokens and each.error < 1e-4 for each in found), found


@pytest.mark.parametrize("family", REFUSED)
def test_architecture_is_refused_by_name(family, tmp_path, catalog):
    from transformers import CONFIG_MAPPING

    from lsv_testing.tiny import SHAPE

    parsed = CONFIG_MAPPING[family](**SHAPE)
    architecture = AutoModelForCausalLM._model_mapping[type(parsed)].__name__
    (tmp_path / "config.json").write_text(json.dumps({**parsed.to_dict(), "architectures": [architecture]}))
    with pytest.raises(CheckpointError, match=f"{architecture}.*{REFUSED[family]}"):
        declare(engine_config(tmp_path, "transformers"), catalog)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"model_type": "of_the_future"}, "of_the_future"),
        ({"architectures": ["LlamaForQuestionAnswering"]}, "LlamaForCausalLM instead"),
        ({"vision_config": {"depth": 2}}, "more than text"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "extrapolation": 3.0}},
            "not understood: extrapolation",
        ),
    ],
)
def test_config_is_refused(overrides, reason, checkpoint, catalog):
    with pytest.raises(CheckpointError, match=reason):
        declare(engine_config(checkpoint("llama"), "transformers", overrides=overrides), catalog)


def test_refusal_names_architectures_that_are_like_it(checkpoint, catalog):
    config = engine_config(checkpoint("llama"), "transformers", overrides={"architectures": ["LlamoForCausalLM"]})
    with pytest.raises(CheckpointError, match=r"most like it by name: Llama.*docs/developing\.md") as refused:
        declare(config, catalog)
    assert "LlamaForCausalLM instead" in str(refused.value)


def test_a_language_model_makes_vectors(checkpoint):
    with LLM(str(checkpoint("qwen3")), model_impl="transformers", task="embed", skip_tokenizer_init=True) as llm:
        (found,) = llm.embed([{"prompt_token_ids": [5, 6, 7]}], use_tqdm=False)
    assert len(found.outputs.embedding) == 64


def test_blocks_that_most_families_write_alike_are_ours(checkpoint, catalog):
    model = declare(engine_config(checkpoint("qwen3", tie_word_embeddings=True), "transformers"), catalog).model
    kinds = Counter(type(module).__name__ for module in model.modules())
    assert (kinds["GatedMLP"], kinds["RMSNorm"], kinds["Qwen3MLP"], kinds["Qwen3RMSNorm"]) == (2, 9, 0, 0)
    embeds = {module for module in model.modules() if isinstance(module, Embed)}
    assert [embed.table for embed in embeds] == [model.lm.get_output_embeddings()]


@pytest.mark.parametrize(
    ("family", "bound"),
    [("llama", (2, 2)), ("mistral", (2, 2)), ("qwen3", (2, 2)), ("granite", (2, 0)), ("gpt2", (0, 0))],
)
def test_attention_and_layers_that_are_llamas_are_ours(family, bound, checkpoint, catalog):
    """One product makes q, k and v; where all of a layer is Llama's, a platform's kernel for a layer serves it."""
    declared = declare(engine_config(checkpoint(family), "transformers"), catalog)
    kinds = Counter(type(module).__name__ for module in declared.model.modules())
    assert (kinds["Attention"], kinds["OwnLayer"]) == bound
    assert [layer.index for layer in declared.layers] == [0, 1]
    fused = {f"{name}_proj" for name in "qkv"}
    rows = [slot for slot in declared.slots if fused <= {piece.name.split(".")[-2] for piece in slot.pieces}]
    assert len([slot for slot in rows if slot.parameter.ndim == 2]) == bound[0]


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_bound_layers_compute_what_the_native_family_does(family, checkpoint, catalog):
    path = checkpoint(family)
    found = []
    for offer in (family, "transformers"):
        sequences = Sequences(load(engine_config(path, offer), catalog))
        sequences.add(0, range(5, 45))
        found.append(torch.cat([sequences.step([(0, count)])[0] for count in (17, 1, 22)]))
    assert torch.equal(*found)


def test_layers_whose_weight_is_read_stay_plain(checkpoint, catalog):
    path = checkpoint("longcat_flash", **FLASH)
    model = declare(engine_config(path, "transformers"), catalog).model
    routers = [module for name, module in model.named_modules() if name.endswith(".router.classifier")]
    assert {type(router) for router in routers} == {nn.Linear}


def test_linear_layers_are_ours(checkpoint, catalog):
    declared = declare(engine_config(checkpoint("gpt_neox"), "transformers"), catalog)
    ours = [module for module in declared.model.modules() if isinstance(module, PlainLinear)]
    assert len(ours) == 2 * 4 + 1
    assert {module.layer.role for module in ours} == {"column", "head"}


@pytest.mark.parametrize("family", ["olmoe", "granitemoe"])
def test_experts_are_ours(family, checkpoint, catalog):
    """Those that checkpoints hold one by one, and those that they stack."""
    from lsv_runtime.nn.moe import MoE

    declared = declare(engine_config(checkpoint(family, **RUN[family]), "transformers"), catalog)
    blocks = [module for module in declared.model.modules() if isinstance(module, MoE)]
    assert len(blocks) == 2
    assert all(dict(block.spec().shape) | {"experts": 4, "top": 2} == dict(block.spec().shape) for block in blocks)


def test_layers_carry_what_the_architecture_asks_for(checkpoint, catalog):
    declared = declare(engine_config(checkpoint("gemma2", sliding_window=9), "transformers"), catalog)
    assert [layer.window for layer in declared.layers] == [9, None]
    assert declared.layers[0].soft_cap == 50.0
    assert declared.layers[0].scale == 16**-0.5


def test_values_may_be_smaller_than_keys(checkpoint, catalog):
    declared = declare(engine_config(checkpoint("deepseek_v3", **LATENT), "transformers"), catalog)
    assert [layer.head_dim for layer in declared.layers] == [24, 24]


@pytest.mark.parametrize("length", [32, 512])
def test_long_ropes_are_chosen_once(length, checkpoint, catalog):
    """transformers rotates by the longest input of a batch; we rotate all inputs by the longest one allowed."""
    path = checkpoint("phi3", rope_scaling=LONGROPE, original_max_position_embeddings=32)
    config = engine_config(path, "transformers", max_len=length)
    reference, sequences = reference_model(config), Sequences(load(config, catalog))
    ids = list(range(min(length, 60)))
    sequences.add(0, ids)
    sequences.add(1, ids[:10])
    long, short = sequences.step([(0, len(ids)), (1, 10)])
    torch.testing.assert_close(long, reference(ids), rtol=0, atol=1e-4)
    torch.testing.assert_close(short, long[:10], rtol=0, atol=1e-4)


@pytest.mark.parametrize("offer", ["llama", "transformers"])
def test_dynamic_ropes_are_exact_within_the_checkpoints_length(offer, checkpoint, catalog):
    """However long inputs may be, and beyond it all that runs a checkpoint agrees."""
    path = checkpoint("llama", rope_parameters=DYNAMIC, max_position_embeddings=24)
    config = engine_config(path, offer, max_len=96)
    expected, sequences = reference_model(config)(range(24)), Sequences(load(config, catalog))
    plain = Sequences(load(engine_config(path, "llama", max_len=96), catalog))
    for each in (sequences, plain):
        each.add(0, range(60))
    found, native = sequences.step([(0, 60)])[0], plain.step([(0, 60)])[0]
    torch.testing.assert_close(found[:24], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found, native, rtol=0, atol=1e-4)


def test_names_without_the_models_prefix_are_found(checkpoint, catalog, tmp_path):
    from safetensors.torch import load_file, save_file

    path = checkpoint("gpt2")
    tensors = load_file(path / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, tmp_path / "m.safetensors"
    )
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    bare, plain = (Sequences(load(engine_config(p, "transformers"), catalog)) for p in (tmp_path, path))
    for sequences in (bare, plain):
        sequences.add(0, [1, 2, 3])
    assert torch.equal(bare.step([(0, 3)])[0], plain.step([(0, 3)])[0])


class TwoRanks(Communicator):
    group = Group("tp", (0, 1), 0, "")

    def all_reduce(self, x):
        return x

    def all_gather(self, x, dim=-1):
        return x

    def broadcast(self, x, source=0):
        return x

    def self_test(self):
        pass


def test_more_ranks_need_a_pattern(checkpoint, catalog):
    with pytest.raises(ConfigError, match="no pattern"):
        declare(engine_config(checkpoint("gpt2"), "transformers"), catalog, communicator=TwoRanks())


@pytest.mark.parametrize(
    ("family", "shape", "coded"),
    [
        ("apertus", {}, "int8"),
        ("flex_olmo", RUN["olmoe"], "int8"),
        ("qwen3", {}, "fp8"),
        ("apertus", {"tie_word_embeddings": True}, "int8"),
    ],
)
def test_weights_are_quantised_while_loading(family, shape, coded, checkpoint):
    """To 8 bits: the answers' probabilities are others, and not far off."""
    folder = str(checkpoint(family, **shape))
    options = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 2}
    options |= {"model_impl": "transformers"}
    found = []
    for quantization in (None, coded):
        with LLM(folder, quantization=quantization, **options) as llm:
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
            (answer,) = llm.generate([{"prompt_token_ids": [7, 3, 90, 41, 5]}], params, use_tqdm=False)
        rows = (answer.prompt_logprobs or [])[1:]
        found.append([next(iter(row.values())).logprob for row in rows])
    plain, quantised = map(torch.tensor, found)
    assert 0 < (plain - quantised).abs().max() < (0.2 if coded == "int8" else 1.0)
