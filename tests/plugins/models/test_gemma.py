"""Gemma 3n and 4: layers that read what earlier ones keep, and inputs for every layer, beside transformers."""

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

import lsv_quant.plugin as quant
from lsv.config import Choices
from lsv.request.media import Modality
from lsv.resolve.architecture.choice import choose_model
from lsv.resolve.locate import read_config
from lsv_base.errors import CheckpointError
from lsv_models import plugin
from lsv_models.gemma.gemma3n import SparseGatedMLP
from lsv_models.gemma.sharing import find_sources
from lsv_runtime.weights.kv_scales import with_scales
from lsv_runtime.worker.load.declared import declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, check_model, engine_config, load, run_schedule
from lsv_testing.tensors import TensorsSource, fill_module, place

MIXED = ["sliding_attention", "full_attention"]
SHARED = {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 4, "layer_types": MIXED * 2}
GEMMA4 = {
    **SHARED, "num_kv_shared_layers": 2, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 320,
}  # fmt: skip
OWN = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
ONE_KEY = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32}
GEMMA3N = {
    **SHARED, "num_kv_shared_layers": 2, "laurel_rank": 8, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 250, "pad_token_id": 0, "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0],
}  # fmt: skip
CASES = {
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 9, "sliding_window_pattern": 2}),
    "gemma3n": ("gemma3n_text", GEMMA3N),
    "gemma3n own keys, other streams": (
        "gemma3n_text",
        {
            **GEMMA3N,
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "final_logit_softcapping": 3.0,
            "intermediate_size": [96, 64, 32, 96],
        },
    ),
    "gemma4": ("gemma4_text", {**GEMMA4, "use_double_wide_mlp": True}),
    "gemma4 experts": ("gemma4_text", {**GEMMA4, **OWN, **ONE_KEY, **EXPERTS, "final_logit_softcapping": 3.0}),
    "gemma4 experts, inputs, shared keys": ("gemma4_text", {**GEMMA4, **ONE_KEY, **EXPERTS}),
    "gemma4 unified": ("gemma4_unified_text", {**SHARED, **ONE_KEY, "global_head_dim": 32}),
    "gemma4 unified, a window last": (
        "gemma4_unified_text",
        {**SHARED, "num_hidden_layers": 3, "layer_types": [*MIXED, "sliding_attention"], "global_head_dim": 16},
    ),
}
QUICK = ("gemma3n", "gemma4", "gemma4 experts")
SHARING = ("gemma3n", "gemma4")
OFFERS = {
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4_unified",
}


def config_of(case, checkpoint, **changes):
    family, shape = CASES[case]
    return engine_config(checkpoint(family, **shape), OFFERS[family], **changes)


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in QUICK)) for case in CASES])
def test_family_equals_transformers(case, checkpoint, catalog):
    check_model(config_of(case, checkpoint), catalog)


@pytest.mark.parametrize("case", SHARING)
def test_layers_that_read_keep_nothing(case, checkpoint, catalog):
    declared = load(config_of(case, checkpoint), catalog)
    assert [layer.reads for layer in declared.layers] == [None, None, 0, 1]
    assert sorted(group.layers for group in declared.groups) == [(0,), (1,)]
    places = [(layer.group, layer.place) for layer in declared.layers]
    assert places[2:] == places[:2]


@pytest.mark.parametrize("case", SHARING)
def test_layers_that_read_have_the_scales_of_what_they_read(case, checkpoint, catalog):
    layers = load(config_of(case, checkpoint), catalog).layers
    written = TensorsSource({f"model.layers.{layer}.self_attn.k_scale": torch.tensor(0.5 + layer) for layer in (0, 1)})
    assert [layer.key_scale for layer in with_scales(layers, written)] == [0.5, 1.5, 0.5, 1.5]


@pytest.mark.parametrize("case", SHARING)
def test_names_of_shared_layers_may_be_there(case, checkpoint, catalog):
    """Published files hold the keys and values of layers that have no use for them."""
    model = declare(config_of(case, checkpoint), catalog).model
    unused = "model.layers.2.self_attn.k_proj.weight"
    assert any(re.search(pattern, unused) for pattern in model.ignores)
    assert not any(re.search(pattern, unused.replace("2", "1")) for pattern in model.ignores)


@pytest.mark.parametrize("case", SHARING)
def test_a_bare_model_has_names_of_its_own(case, checkpoint, catalog):
    declared = declare(config_of(case, checkpoint), catalog)
    model, stored = declared.model, {name for slot in declared.slots for name in _names(slot)}
    assert stored == {model.rename(name.removeprefix("model.")) for name in stored}


def _names(slot):
    return [piece.name for piece in slot.pieces]


@pytest.mark.parametrize("case", QUICK)
def test_quantised_online_stays_close(case, checkpoint):
    found = []
    for quantization in (None, "int8"):
        declared = load(config_of(case, checkpoint, quantization=quantization), catalog_of(plugin, quant))
        found.append(run_schedule(Sequences(declared), SCHEDULES["mixed"])[0])
    off = (found[0] - found[1]).abs().amax(dim=-1) / found[0].abs().max()
    assert 0 < off.median() < 0.15


HALVES = {
    "gemma3": ("Gemma3", "language_model.model.", "vision_tower.blocks.0.weight"),
    "gemma3n": ("Gemma3n", "model.language_model.", "model.audio_tower.conv.weight"),
    "gemma4": ("Gemma4", "model.language_model.", "model.embed_vision.projection.weight"),
    "gemma4 unified": ("Gemma4Unified", "model.language_model.", "model.embed_audio.projection.weight"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case != "gemma3n")) for case in HALVES]
)
def test_text_halves_are_read_from_beside_towers(case, checkpoint, catalog, tmp_path):
    family, prefix, other = HALVES[case]
    whole = config_of(case, checkpoint)
    keys = json.loads((Path(whole.model) / "config.json").read_text())
    written = {"architectures": [f"{family}ForConditionalGeneration"], "model_type": case, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps({**written, "text_config": keys}))
    tensors = load_file(Path(whole.model) / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file({**renamed, other: torch.ones(2, 2)}, tmp_path / "model.safetensors")
    found, expected = (
        run_schedule(Sequences(load(config, catalog)), SCHEDULES["mixed"])
        for config in (half_config(tmp_path, catalog), whole)
    )
    assert all(torch.equal(found[sequence], expected[sequence]) for sequence in expected)


def half_config(folder, catalog):
    served = choose_model(read_config(folder, {}), folder, catalog, Choices(), unwanted=get_args(Modality))
    return engine_config(folder, served.model.name, overrides=served.overrides, wrapper=served.wrapper)


@pytest.mark.row("F-664")
def test_gemma3_as_it_is_published_leaves_out_sizes(catalog, tmp_path):
    text = {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "mm_tokens_per_image": 256}))
    declared = declare(engine_config(tmp_path, "gemma3_seeing", dtype="bfloat16"), catalog)
    assert declared.vocab_size == 262208
    assert [layer.window for layer in declared.layers[:6]] == [1024] * 5 + [None]
    assert declared.layers[0].head_dim == 256
    assert declared.layers[0].scale == 256**-0.5


@pytest.mark.parametrize("text", [None, [], "gemma3n_text"])
def test_a_half_without_a_config_of_its_own_is_refused(text, catalog, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
    with pytest.raises(CheckpointError, match="text_config must be an object"):
        declare(engine_config(tmp_path, "gemma3_seeing"), catalog)


@pytest.mark.parametrize(
    ("windows", "shared", "sources"),
    [
        ((9, 9, None, 9, None), 0, (None,) * 5),
        ((9, 9, None, 9, None), 2, (None, None, None, 1, 2)),
        ((9, None, 9, 9), 1, (None, None, None, 2)),
    ],
)
def test_readers_read_the_last_of_their_kind(windows, shared, sources):
    assert find_sources(windows, shared) == sources


@pytest.mark.parametrize(("windows", "shared"), [((9, None), 1), ((9, 9), 2), ((9, 9), 3), ((9, 9), -1)])
def test_readers_without_a_layer_of_their_kind_are_refused(windows, shared):
    with pytest.raises(CheckpointError, match=f"num_kv_shared_layers={shared}"):
        find_sources(windows, shared)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern must be 4 numbers"),
        ({"intermediate_size": [96, 96]}, "intermediate_size must be"),
        ({"altup_active_idx": 4}, "altup_active_idx=4 is not one of 4 streams"),
        ({"sliding_window": None}, "sliding_window"),
        ({"unknown_attention_scale": 2}, "unknown_attention_scale"),
    ],
)
def test_gemma3n_refuses_what_it_can_t_follow(wrong, message, checkpoint, catalog, tmp_path):
    keys = json.loads((checkpoint(*CASES["gemma3n"][:1], **GEMMA3N) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**keys, **wrong}))
    with pytest.raises(CheckpointError, match=message):
        declare(engine_config(tmp_path, "gemma3n"), catalog)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"per_layer_config": {"1": {"head_dim": 0}}}, "layer 1 must have a positive head_dim"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "layer 1 must have"),
        ({"per_layer_config": {"3": {"intermediate_size": 8}}}, "layer 3 must have"),
        ({"per_layer_config": {"3": 8}}, "layer 3 must have"),
        ({"enable_moe_block": True}, "num_experts"),
        ({"unknown_attention_scale": 2}, "unknown_attention_scale"),
    ],
)
def test_gemma4_refuses_what_it_can_t_follow(wrong, message, checkpoint, catalog, tmp_path):
    keys = json.loads((checkpoint(*CASES["gemma4"][:1], **CASES["gemma4"][1]) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**keys, **wrong}))
    with pytest.raises(CheckpointError, match=message):
        declare(engine_config(tmp_path, "gemma4"), catalog)


def test_layers_of_gemma4_are_scaled(checkpoint, catalog, tmp_path):
    """By a number that is 1 in a model that was not trained."""
    folder = shutil.copytree(config_of("gemma4", checkpoint).model, tmp_path / "scaled")
    tensors = load_file(folder / "model.safetensors")
    scalars = [name for name in tensors if name.endswith("layer_scalar")]
    assert len(scalars) == 4
    for number, name in enumerate(scalars):
        tensors[name] = torch.tensor([0.5 + 0.2 * number])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    check_model(engine_config(folder, "gemma4"), catalog)


def test_published_files_name_the_heads_of_layers_without_a_window(checkpoint, catalog, tmp_path):
    """Beside those of all layers, where transformers writes what each layer has of its own."""
    case = "gemma4 experts"
    keys = json.loads((checkpoint(*CASES[case][:1], **CASES[case][1]) / "config.json").read_text())
    assert keys.pop("per_layer_config")
    keys |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    found, expected = (
        declare(config, catalog).layers for config in (engine_config(tmp_path, "gemma4"), config_of(case, checkpoint))
    )
    assert found == expected
    assert [(layer.head_dim, layer.kv_heads) for layer in found] == [(16, 2), (32, 1)] * 2


def test_only_layers_without_inputs_and_shared_keys_are_cut_into_stages(checkpoint, catalog):
    staged = [declare(config_of(case, checkpoint), catalog).model.staged for case in QUICK]
    assert staged == [False, False, True]


class Ranks:
    """A communicator beside one other rank, whose summands are at hand."""

    def __init__(self, *others):
        self.others = list(others)

    def all_reduce(self, x):
        return x + self.others.pop(0)


def test_ranks_cut_off_activations_alike():
    """Mean and deviation are over the features of all ranks."""
    x, gate = torch.randn(5, 16), torch.randn(32, 16)
    gated = x @ gate.T
    spread = gated.mean(-1, keepdim=True), gated.std(-1, correction=0, keepdim=True)
    for mine, theirs in ((gated[:, :16], gated[:, 16:]), (gated[:, 16:], gated[:, :16])):
        w = place()
        mlp = SparseGatedMLP(w, 16, 32, "gelu_pytorch_tanh", sparsity=0.9)
        mlp.ranks = 2
        variance, mean = torch.var_mean(theirs, -1, correction=0, keepdim=True)
        mlp.down.communicator = Ranks(torch.cat((mean, variance + mean.square()), dim=-1))
        torch.testing.assert_close(mlp._spread(mine), spread)


def test_sparse_activations_are_gemma_s():
    from transformers.models.gemma3n import modeling_gemma3n

    class Config:
        hidden_size, intermediate_size, hidden_activation = 16, [32], "gelu_pytorch_tanh"
        activation_sparsity_pattern = (0.9,)

    theirs = modeling_gemma3n.Gemma3nTextMLP(Config(), 0)
    w, source = place(), TensorsSource(dict(theirs.state_dict()))
    mlp = fill_module(SparseGatedMLP(w, 16, 32, "gelu_pytorch_tanh", sparsity=0.9), w, source)
    x = torch.randn(7, 16)
    torch.testing.assert_close(mlp(x), theirs(x).detach())
    assert mlp.spec().op == "gated_mlp.sparse"
