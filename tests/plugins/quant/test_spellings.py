"""Lists of layers in quantised checkpoints of models that see, with any of the names published ones write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lsv.plugins import load
from lsv.resolve.locate import read_config
from lsv_models.llava import Llava
from lsv_models.qwen2_vl import Qwen2VL
from lsv_models.rms.internlm import InternLM2
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.weights.naming import rename, spellings
from lsv_runtime.weights.quantizer import Linear
from lsv_runtime.worker.load.declared import declare
from lsv_testing.fakes.client import fake_config
from lsv_testing.tiny import tiny

OFFERS = {"qwen2_vl": "qwen2_vl", "llava": "llava", "qwen3_omni_moe_thinker": "qwen3_omni"}
BLOCKS = {
    "qwen2_vl": ("encoder.layers.0.attn.qkv.linear", "encoder.merger.first.linear"),
    "llava": ("encoder.tower.layers.0.attn.qkv.linear", "encoder.projector.first.linear"),
    "qwen3_omni_moe_thinker": (
        "encoder.vision.deep_mergers.1.mlp.first.linear", "encoder.vision.merger.second.linear",
        "encoder.hearing.layers.0.attn.out.linear", "encoder.hearing.stem.out.linear",
    ),
}  # fmt: skip
DECODER = "layers.{}.mlp.down.linear"
DENSE = {"qwen2_vl": 0, "llava": 0, "qwen3_omni_moe_thinker": 1}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
AUTOROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
INT8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True},
    }},
}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QWEN = "model.visual.blocks.{}.attn.qkv"
CLIP = "vision_tower.vision_model.encoder.layers.{}.self_attn.{}_proj"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: tiny(family, tmp_path_factory.mktemp(family)) for family in OFFERS}


def formats(folder: Path, family: str, declared: dict[str, Any]) -> dict[str, str]:
    """The formats of a model's linear layers by the names of their modules."""
    catalog = load(["core", "cpu", "models", "quant"]).catalog
    config = fake_config(
        model=str(folder),
        model_offer=OFFERS[family],
        quantization=declared["quant_method"],
        overrides={"quantization_config": declared},
        max_model_len=64,
    )
    assert read_config(folder, config.overrides)["quantization_config"] == declared
    model = declare(config, catalog).model
    return {name: module.format for name, module in model.named_modules() if isinstance(module, Linear)}


@pytest.mark.parametrize(
    ("family", "declared"),
    [
        ("qwen2_vl", {**AWQ, "modules_to_not_convert": ["visual"]}),
        ("qwen2_vl", {**AWQ, "modules_to_not_convert": ["model.visual", "lm_head"]}),
        ("qwen2_vl", {**INT8, "ignore": ["re:visual.*", "lm_head"]}),
        ("qwen2_vl", {**INT8, "ignore": ["re:model.visual.*", "lm_head"]}),
        ("qwen2_vl", {**INT8, "ignore": [*map(QWEN.format, range(2)), *(
            f"model.visual.{name}" for name in ("merger.mlp.0", "merger.mlp.2"))]}),
        ("qwen2_vl", {**FP8, "modules_to_not_convert": [*map(QWEN.format, range(2)), "model.visual.merger"]}),
        ("qwen2_vl", {**GPTQ, "dynamic": {r"-:^model\.visual\.": {}}}),
        ("qwen2_vl", {**AUTOROUND, "block_name_to_quantize": "model.language_model.layers"}),
        ("qwen2_vl", {**AUTOROUND, "extra_config": {r".*model\.visual.*": {"bits": 16}}}),
        ("llava", {**AWQ, "modules_to_not_convert": ["vision_tower", "multi_modal_projector"]}),
        ("llava", {**AWQ, "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector"]}),
        ("llava", {**INT8, "ignore": ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"]}),
        ("llava", {**INT8, "ignore": ["re:model.vision_tower.*", "re:model.multi_modal_projector.*"]}),
        ("llava", {**INT8, "ignore": [*(CLIP.format(i, name) for i in range(3) for name in "qkv"),
            "multi_modal_projector.linear_1"]}),
        ("llava", {**AUTOROUND, "block_name_to_quantize": ["language_model.model.layers"]}),
        ("qwen3_omni_moe_thinker", {**INT8, "ignore": ["re:.*visual.*", "re:.*audio_tower.*", "re:.*gate$"]}),
        ("qwen3_omni_moe_thinker", {**INT8, "ignore": [f"thinker.{name}" for name in (
            "visual.merger_list.1.mlp.0", "visual.merger.mlp.2", "audio_tower.layers.0.self_attn.out_proj",
            "audio_tower.conv_out")]}),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[-48:],
)  # fmt: skip
def test_towers_are_left_out_by_any_of_their_names(folders: dict[str, Path], family: str, declared: Any) -> None:
    found = formats(folders[family], family, declared)
    assert {name: found[name] for name in BLOCKS[family]} == dict.fromkeys(BLOCKS[family], "plain")
    assert found[DECODER.format(DENSE[family])] != "plain"


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen2_vl", "model.language_model.layers.0"),
        ("qwen2_vl", "model.layers.0"),
        ("llava", "language_model.model.layers.0"),
        ("llava", "model.language_model.layers.0.mlp.down_proj"),
    ],
)
def test_so_are_layers_of_the_language_model(folders: dict[str, Path], family: str, name: str) -> None:
    found = formats(folders[family], family, {**AWQ, "modules_to_not_convert": [name, "visual", "vision_tower"]})
    assert [found[DECODER.format(layer)] == "plain" for layer in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("model", "own", "theirs"),
    [
        (Qwen2VL, "visual.blocks.0.attn.qkv", {"model.visual.blocks.0.attn.qkv"}),
        (Qwen2VL, "model.layers.0.mlp", {"model.language_model.layers.0.mlp"}),
        (Qwen2VL, "lm_head", set()),
        (InternLM2, "model.layers.7.mlp.up_proj", {"model.layers.7.feed_forward.w3"}),
        (
            InternLM2,
            "model.layers.7.self_attn.o_proj",
            {"model.layers.7.attention.wo", "model.layers.7.attention.o_proj"},
        ),
        (Llava, "lm_head", {"language_model.lm_head"}),
        (
            Llava,
            "model.layers.0.mlp",
            {"model.language_model.layers.0.mlp", "language_model.model.layers.0.mlp", "language_model.layers.0.mlp"},
        ),
        (
            Llava,
            "vision_tower.encoder",
            {
                "model.vision_tower.encoder", "vision_tower.vision_model.encoder",
                "model.vision_tower.vision_model.encoder",
            },
        ),
    ],
)  # fmt: skip
def test_a_name_and_its_spellings_mean_the_same(model: type[Decoder], own: str, theirs: set[str]) -> None:
    found = spellings(own, model.prefixes)
    assert found[0] == own
    assert set(found[1:]) == theirs
    assert {rename(name, model.prefixes) for name in found} == {own}


def test_names_that_only_begin_alike_stay_as_they_are() -> None:
    assert rename("model.visual_projection.weight", Qwen2VL.prefixes) == "model.visual_projection.weight"
