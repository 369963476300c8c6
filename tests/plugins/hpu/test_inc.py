"""Neural Compressor's FP8 mode: its files, what is derived from them, and a model measured and then quantised."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.kv.spec import KVGroup
from lsv.offers import load_object
from lsv_base.errors import CheckpointError, ConfigError
from lsv_hpu import plugin, selection
from lsv_hpu.attention.cache import make_cache
from lsv_hpu.devices import Gaudi
from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.formats.neural_compressor import Inc, Measured, StaticFp8, module_names
from lsv_hpu.neural_compressor.calibration import Calibration
from lsv_hpu.neural_compressor.files import Selection, read_config, read_measured
from lsv_runtime.attention import AttentionLayer, CacheSpec
from lsv_runtime.nn.linear import Column
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear
from lsv_testing.ops import check_kernel
from lsv_testing.tensors import TensorsSource, fill_module, place
from lsv_testing.tiny import tiny

QUANTIZE = {
    "mode": "QUANTIZE", "observer": "maxabs", "scale_method": "maxabs_hw", "scale_format": "CONST",
    "allowlist": {"types": [], "names": []}, "blocklist": {"types": ["Softmax"], "names": ["lm_head"]},
    "dump_stats_path": "g2/inc_output",
}  # fmt: skip
LAYER = "model.layers.0.self_attn.qkv_proj"
NODES = {
    LAYER: {"inputs": [[[30.0]]], "outputs": [[[7.5]]], "params": {"weight": [[0.75]]}},
    "model.layers.0.self_attn.attn.impl.k_cache": {"inputs": [[[300.0]]], "outputs": [[[300.0]]]},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Paths in a configuration are relative to where the process runs."""
    monkeypatch.chdir(tmp_path)
    selected = selection.Selection(fake_ops())
    selection.select(selected)
    yield tmp_path
    selection.deselect(selected)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def measured(path: Path, nodes: Any = NODES, **changes: Any) -> Path:
    return write(path, {"GlobalRank": None, "LocalRank": 0, "Mode": "DynamicRange", "Nodes": nodes, **changes})


def calibration(folder: Path, gaudi: Gaudi = "gaudi2", **changes: Any) -> Calibration:
    return Calibration(read_config(write(folder / "quant.json", {**QUANTIZE, **changes})), gaudi)


def test_a_configuration(folder: Path) -> None:
    config = read_config(write(folder / "quant.json", QUANTIZE))
    assert (config.mode, config.observer, config.scale_method) == ("QUANTIZE", "maxabs", "maxabs_hw")
    assert config.blocklist == Selection(names=("lm_head",), types=("Softmax",))
    assert config.covers(LAYER, frozenset())
    assert not config.covers("lm_head", frozenset())
    old = {"method": "HOOKS", "mode": "measure", "whitelist": {"names": ["a"]}, "scale_params": {"input_backoff": 0.5}}
    config = read_config(write(folder / "old.json", old))
    backoffs = (config.scale_params.input_backoff, config.scale_params.weight_backoff)
    assert (config.mode, config.allowlist.names, backoffs) == ("MEASURE", ("a",), (0.5, 0.5))
    assert not config.covers("b", frozenset({"Linear"}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mode": "SOMETIMES"}, "'SOMETIMES'"),
        ({"observer": "save"}, "'save'"),
        ({"colour": "red"}, "`colour`"),
        ({"blocklist": {"colours": ["red"]}}, "`colours`"),
        ({"scale_method": "MAXABS_HW_OPT_WEIGHT"}, "'maxabs_hw_opt_weight'"),
        ({"dynamic_quantization": True}, "true"),
    ],
)
def test_configurations_that_are_refused(folder: Path, change: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(write(folder / "quant.json", {**QUANTIZE, **change}))
    assert problem.lower() in caught.value.message.lower()


def test_configurations_that_are_no_json(folder: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read_config(folder / "missing.json")
    (folder / "a.json").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=r"a\.json"):
        read_config(folder / "a.json")


def test_where_measurements_are(folder: Path) -> None:
    config = calibration(folder).config
    two = measured(folder / "g2/inc_output_hooks_maxabs_0_2.json")
    assert config.found(0, 2).resolve() == two
    with pytest.raises(ConfigError, match=r"maxabs_1_4\.json does not exist: measure the model on 4 devices"):
        config.found(1, 4)
    one = measured(folder / "g2/inc_output_hooks_maxabs.json")
    assert config.found(0, 1).resolve() == one


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"nodes": {"a": {"inputs": ["x"]}}}, "x is not a number"),
        ({"nodes": {"a": {"inputs": [[-1.0]]}}}, "negative"),
        ({"nodes": {"a": None}}, "null"),
        ({"nodes": None}, "null"),
        ({"Mode": "Scale"}, "Mode is Scale"),
    ],
)
def test_measurements_that_are_refused(folder: Path, content: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_measured(measured(folder / "a.json", **content), "gaudi2")
    assert problem in caught.value.message


def test_measurements_of_another_device_are_refused(folder: Path) -> None:
    path = measured(folder / "a.json", Device="gaudi3")
    assert read_measured(path, "gaudi3")[LAYER] == 30
    with pytest.raises(ConfigError, match="measured on gaudi3, and this is gaudi2"):
        read_measured(path, "gaudi2")


@pytest.mark.parametrize(("gaudi", "largest"), [("gaudi2", 240.0), ("gaudi3", 448.0)])
def test_scales_from_what_was_measured(folder: Path, gaudi: Gaudi, largest: float) -> None:
    exact = (30 / (largest * 0.25), 0.75 / (largest * 0.5))
    wanted = {
        "maxabs_arbitrary": exact,
        "maxabs_pow2": tuple(2.0 ** math.ceil(math.log2(scale)) for scale in exact),
        "unit_scale": (1.0, 1.0),
    }
    measured(folder / "g2/inc_output_hooks_maxabs_0_1.json")
    for method, scales in wanted.items():
        made = calibration(folder, gaudi, scale_method=method.upper())
        assert (made.input_scale((LAYER,)), made.scale(0.75)) == pytest.approx(scales)


def test_scales_that_cost_a_device_nothing(folder: Path) -> None:
    config = calibration(folder).config
    peaks = [1e-9, 0.001, 0.3, 60.0, 61.0, 5000.0, 1e9]
    second, third = ([config.scale(peak, 0.25, gaudi) for peak in peaks] for gaudi in ("gaudi2", "gaudi3"))
    assert second == [2.0**-8, 2.0**-8, 2.0**-4, 1.0, 16.0, 16.0, 16.0]
    assert third == [2.0 ** min(7, math.ceil(math.log2(peak / 112))) for peak in peaks]


def test_names_of_modules() -> None:
    parts = tuple(f"model.layers.0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj"))
    fused = LinearLayer("model.layers.0.self_attn", "column", 8, (8, 4, 4), False, torch.float32, parts)
    assert module_names(fused) == (LAYER, *parts)
    head = LinearLayer("lm_head", "head", 8, (8,), False, torch.float32)
    assert module_names(head) == ("lm_head", "lm_head")


def test_parts_of_a_fused_layer_share_what_was_measured_of_each(folder: Path) -> None:
    parts = [f"a.{name}" for name in ("gate_proj", "up_proj")]
    nodes = {part: {"inputs": [number]} for part, number in zip(parts, (3.0, 6.0), strict=True)}
    measured(folder / "g2/inc_output_hooks_maxabs_0_1.json", nodes)
    made = calibration(folder, scale_method="maxabs_arbitrary")
    assert made.input_scale(("a.gate_up_proj", *parts)) == 6 / 60
    with pytest.raises(ConfigError, match=r"no measurement of b\.down_proj: measure the model"):
        made.input_scale(("b.down_proj", "b.down_proj"))


def layer(w: Weights, made: Calibration) -> Bindable:
    w = Weights(replace(w.declaration, quantizer=Inc(made)))
    found = Column.even(w / "model.layers.0.self_attn", ("q_proj", "k_proj", "v_proj"), 64, 24).linear
    assert isinstance(found, Bindable)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_static_fp8(folder: Path, dtype: torch.dtype) -> None:
    """The vendor's product and the plain one agree, and inputs beyond what was measured become the largest number."""
    measured(folder / "g2/inc_output_hooks_maxabs_0_1.json", {LAYER: {"inputs": [4.0]}})
    made = calibration(folder)
    (offer,) = (offer for offer in plugin.lsv_kernels() if offer.op == "linear.fp8_static")
    inputs = [(torch.randn(rows, 64, dtype=dtype) * scale,) for rows, scale in ((1, 1), (5, 1), (3, 100))]
    check_kernel(offer, lambda w: layer(w, made), inputs, dtype=dtype, tolerance=1e-2)


def test_static_fp8_is_near_the_plain_layer(folder: Path) -> None:
    x = torch.randn(9, 64)
    nodes = {LAYER: {"inputs": [float(x.abs().max())]}}
    measured(folder / "g2/inc_output_hooks_maxabs_0_1.json", nodes)
    w = place()
    module = layer(w, calibration(folder))
    assert isinstance(module, StaticFp8)
    weights = {
        f"model.layers.0.self_attn.{name}.weight": torch.randn(24, 64) for name in ("q_proj", "k_proj", "v_proj")
    }
    fill_module(module, w, TensorsSource(weights))
    wanted = x @ torch.cat(list(weights.values())).T
    error = (module(x) - wanted).norm() / wanted.norm()
    assert 1e-3 < error < 0.05


def test_measuring(folder: Path) -> None:
    """A layer computes as ever; the largest input of all steps is written, for the next run to read."""
    made = calibration(folder, mode="MEASURE")
    w = place()
    module = layer(w, made)
    assert isinstance(module, Measured)
    weights = {
        f"model.layers.0.self_attn.{name}.weight": torch.randn(24, 64) for name in ("q_proj", "k_proj", "v_proj")
    }
    fill_module(module, w, TensorsSource(weights))
    made.save()
    assert not (folder / "g2").exists(), "nothing was measured"
    for largest in (2.0, 7.5, 1.0):
        x = torch.linspace(-largest, 0.5, 64)[None]
        assert torch.equal(module(x), PlainLinear.reference(module, x.clone()))
    made.join(1, 2)
    made.save()
    assert read_measured(folder / "g2/inc_output_hooks_maxabs_1_2.json", "gaudi2") == {LAYER: 7.5}


def test_what_is_left_as_it_is(folder: Path) -> None:
    chosen = Inc(calibration(folder, mode="MEASURE"))
    for name, role in (("lm_head", "head"), ("model.layers.0.mlp.experts.3.down_proj", "row")):
        plain = LinearLayer(name, role, 8, (8,), False, torch.float32)  # type: ignore[arg-type]
        assert chosen.choose(plain).name == "none"


@pytest.mark.row("F-396")
def test_scales_of_the_cache(folder: Path) -> None:
    """Keys were measured and are in units of that; values have what the checkpoint says."""
    measured(folder / "g2/inc_output_hooks_maxabs_0_1.json")
    one, group = AttentionLayer(0, 2, 2, 16, 1.0, key_scale=0.5, value_scale=0.25), KVGroup(0, "full", (0,), 0)
    made = calibration(folder)
    spec = CacheSpec([group], [one], 2, 16, torch.float8_e4m3fn)
    cache = make_cache(spec, torch.device("cpu"), fake_ops(), made)
    keys, values = cache.scales[0]
    assert (float(keys.scale), float(values.scale)) == (16.0, 0.25)
    k, slots = torch.full((2, 2, 16), 16.0 * 26), torch.tensor([16, 17])
    kept, _ = cache.of(one).write(k, k, one, slots)
    assert torch.equal(kept, k)


def ask(checkpoint: Path, config: dict[str, Any], **options: Any) -> list[tuple[int, ...]]:
    named = str(write(Path("quant.json"), config))
    fixed: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "block_size": 16, "skip_tokenizer_init": True,
        "platform": "hpu", "emulate": True, "quantization": "inc", "num_gpu_blocks_override": 20,
        "enforce_eager": True, "hpu.skip_warmup": True, "hpu.quant_config": named,
    }  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    with LLM(str(checkpoint), **{**fixed, **options}) as llm:
        outputs = llm.generate([{"prompt_token_ids": [5, 9, 30, 7]}] * 2, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.row("F-438")
def test_a_model_is_measured_and_then_quantised(folder: Path) -> None:
    checkpoint = tiny("llama", folder / "llama")
    plain = ask(checkpoint, {**QUANTIZE, "mode": "MEASURE"})
    found = read_measured(folder / "g2/inc_output_hooks_maxabs_0_1.json", "gaudi2")
    assert {name.split(".")[-1] for name in found} == {
        "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "k_cache", "v_cache",
    }  # fmt: skip
    assert all(number > 0 for number in found.values())
    coded = ask(checkpoint, QUANTIZE, kv_cache_dtype="fp8_inc")
    assert len(coded[0]) == len(plain[0]) == 8


@pytest.mark.parametrize(
    ("config", "options", "problem"),
    [
        (QUANTIZE, {}, r"maxabs_0_1\.json does not exist"),
        ({**QUANTIZE, "mode": "MEASURE"}, {"hpu.skip_warmup": False}, "warming up would be measured too"),
        (QUANTIZE, {"quantization": None}, "is for --quantization inc"),
        (QUANTIZE, {"hpu.quant_config": None}, "needs the file"),
        (QUANTIZE, {"platform": "cpu", "emulate": False}, "needs platform hpu"),
    ],
)
def test_what_does_not_go_together_is_refused(
    folder: Path, config: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        ask(tiny("llama", folder / "llama"), config, **options)


def test_every_kernel_can_be_loaded() -> None:
    for offer in plugin.lsv_kernels():
        assert callable(load_object(offer.load))
