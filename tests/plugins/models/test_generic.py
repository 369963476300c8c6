"""The transformers adapter: architectures it runs as transformers does, and those it refuses by name."""

import json
from typing import Any

import pytest
import torch

from lsv.errors import CheckpointError, ConfigError
from lsv.platform import Communicator, Group
from lsv.testing.model import Sequences, check_model, engine_config, load, reference_model
from lsv.weights.quantizer import PlainLinear
from lsv.worker.load.declared import declare

LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.3 * i for i in range(8)],
}
RUN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {},
    "phi": {},
    "gemma2": {"sliding_window": 9},
    "stablelm": {},
    "olmo2": {},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "cohere": {"logit_scale": 0.5},
    "opt": {},
    "apertus": {},
}
RUN_SLOWLY: dict[str, dict[str, Any]] = {
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
}
REFUSED = {
    "falcon": "attention interface",
    "bloom": "attention interface",
    "mamba": "layers of type",
    "jamba": "layers of type",
    "rwkv": "not a KV cache",
    "olmoe": "stacks experts",
    "bert": "looks ahead",
    "deepseek_v3": "differ in size",
    "llama4_text": "chunked_attention",
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


@pytest.mark.parametrize("family", REFUSED)
def test_architecture_is_refused_by_name(family, tmp_path, catalog):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from lsv.testing.tiny import SHAPE

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
    ],
)
def test_config_is_refused(overrides, reason, checkpoint, catalog):
    with pytest.raises(CheckpointError, match=reason):
        declare(engine_config(checkpoint("llama"), "transformers", overrides=overrides), catalog)


def test_linear_layers_are_ours(checkpoint, catalog):
    declared = declare(engine_config(checkpoint("gpt_neox"), "transformers"), catalog)
    ours = [module for module in declared.model.modules() if isinstance(module, PlainLinear)]
    assert len(ours) == 2 * 4 + 1
    assert {module.layer.role for module in ours} == {"column", "head"}


def test_layers_carry_what_the_architecture_asks_for(checkpoint, catalog):
    declared = declare(engine_config(checkpoint("gemma2", sliding_window=9), "transformers"), catalog)
    assert [layer.window for layer in declared.layers] == [9, None]
    assert declared.layers[0].soft_cap == 50.0
    assert declared.layers[0].scale == 16**-0.5


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


def test_more_than_one_rank_is_refused(checkpoint, catalog):
    with pytest.raises(ConfigError, match="one rank"):
        declare(engine_config(checkpoint("phi"), "transformers"), catalog, communicator=TwoRanks())
