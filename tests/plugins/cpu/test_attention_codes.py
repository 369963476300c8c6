"""Keys and values in 8 bits: what is written, what is read, where the scales come from, and whole engines over them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lsv_models.plugin
from lsv import LLM, SamplingParams
from lsv.capabilities import Capabilities
from lsv.kv.spec import KVGroup
from lsv.resolve import Choices, _choose_kv_dtype
from lsv_base.errors import CheckpointError, ConfigError
from lsv_cpu import native, plugin
from lsv_cpu.attention import CpuAttention
from lsv_cpu.cache import KVCache
from lsv_cpu.codes import decode
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_runtime.weights.kv_scales import WithFile, read_file, with_scales
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, engine_config, run_schedule
from lsv_testing.tensors import TensorsSource
from lsv_testing.tiny import tiny

DTYPES = pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
NAMES = pytest.mark.parametrize("name", ["fp8", "fp8_e5m2", "int8"])
ISAS = ("auto", "generic")
LAYER = AttentionLayer(0, 2, 2, 256, 0.1, key_scale=0.5, value_scale=2.0)
GROUP = KVGroup(0, "full", (0,), 0)


def backend(isa: str) -> CpuAttention:
    """Native code for ``isa``, or plain torch."""
    native.select(enabled=isa != "torch")
    return CpuAttention(None if isa == "torch" else native.load(isa))


def attend(attention: CpuAttention, cache: KVCache, q: torch.Tensor, *kv: torch.Tensor) -> torch.Tensor:
    """One request of as many tokens as ``q`` has, in block 1; without ``kv`` the cache is only read."""
    lengths = np.array([len(q)], np.int32)
    plan = attention.plan(BatchLayout(lengths, lengths, (np.array([[1]], np.int32),)), GROUP)
    k, v = kv or (None, None)
    return attention.attend(q, k, v, LAYER, cache, plan)


def numbers(cache: KVCache) -> list[torch.Tensor]:
    """What stands in block 1, without the scales, and these."""
    scales = [one[1] for one in cache.scales(LAYER) if one is not None]
    codes = [kept[1].contiguous() for kept in (cache.keys(LAYER), cache.values(LAYER))]
    ones = [torch.ones(each.shape[:-1]) if scales else None for each in codes]
    return [*(decode(each, cache.dtype, 1.0, one) for each, one in zip(codes, ones, strict=True)), *scales]


@pytest.mark.row("F-392", "F-393")
@DTYPES
@pytest.mark.parametrize("isa", ISAS)
def test_native_code_writes_what_torch_writes(isa: str, dtype: torch.dtype, device: Device) -> None:
    """Ties, subnormals, what is too large, infinity and NaN among them."""
    steps = torch.arange(-2048.0, 2048.0).view(8, 2, 256)
    rows = [steps * 2.0**-11, steps * 2.0**-15, steps * 0.25, steps * 64.0]
    rows[1][0, 0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    k = torch.cat(rows)
    written = []
    for kind in (isa, "torch"):
        attention = backend(kind)
        cache = attention.allocate(CacheSpec([GROUP], [LAYER], 2, 32, dtype), device)
        attend(attention, cache, torch.zeros_like(k), k, k.flip(0))
        written.append(numbers(cache))
    for found, wanted in zip(*written, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.row("F-392", "F-393")
@DTYPES
@pytest.mark.parametrize("isa", [*ISAS, "torch"])
@pytest.mark.parametrize("compute", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.row("F-960")
def test_every_code_is_read_as_the_number_it_stands_for(
    isa: str, dtype: torch.dtype, compute: torch.dtype, device: Device
) -> None:
    """The output of a token that sees itself alone is its value."""
    attention = backend(isa)
    cache = attention.allocate(CacheSpec([GROUP], [LAYER], 2, 32, dtype), device)
    cache.pages.zero_()
    codes = torch.arange(256, dtype=torch.uint8)
    cache.values(LAYER)[1, :, 0, :, 0] = codes
    for scales in cache.scales(LAYER):
        if scales is not None:
            scales.fill_(2.0)
    found = attend(attention, cache, torch.zeros(1, 2, 256, dtype=compute))[0, 1]
    own = torch.tensor(2.0) if dtype == torch.int8 else None
    wanted = decode(codes, dtype, 2.0, own).to(compute)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@NAMES
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_fused_layer_is_its_parts(family: str, name: str, tmp_path: Path, device: Device) -> None:
    checkpoint, kv = tiny(family, tmp_path), {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    catalog, logits = catalog_of(plugin, lsv_models.plugin), []
    for plainly in (False, True):
        config = engine_config(checkpoint, family, dtype="float32", kv_dtype=name)
        declared = declare(config, catalog)
        bind_ops(declared, catalog, "cpu", plainly)
        source = open_source(config, declared, catalog)
        fill(declared, source)
        source.close()
        attention = backend("torch" if plainly else "auto")
        sequences = Sequences(declared, attention, block_size=16, kv_dtype=kv.get(name, torch.int8))
        logits.append(run_schedule(sequences, SCHEDULES["mixed"]))
    fused, plain = logits
    # a number at the border of two codes may fall to either side
    largest = max(float(one.abs().max()) for one in plain.values())
    for sequence, wanted in plain.items():
        assert float((fused[sequence] - wanted).abs().mean()) <= 2e-3 * largest


@pytest.mark.row("F-393")
def test_scales_come_from_the_checkpoint() -> None:
    layers = [AttentionLayer(i, 2, 2, 16, 1.0, key_scale=9.0) for i in range(3)]
    tensors = {
        "model.layers.0.self_attn.k_scale": torch.tensor(0.5),
        "model.layers.0.self_attn.v_scale": torch.tensor([0.25], dtype=torch.bfloat16),
        "model.layers.1.self_attn.attn.k_scale": torch.tensor(2.0),
        "model.layers.1.self_attn.v_proj.v_scale": torch.tensor(4.0),
        "model.layers.2.mlp.k_scale": torch.tensor(7.0),
    }
    found = [(layer.key_scale, layer.value_scale) for layer in with_scales(layers, TensorsSource(tensors))]
    assert found == [(0.5, 0.25), (2.0, 4.0), (1.0, 1.0)]


def scale_file(folder: Path, scales: dict[str, dict[str, float]], dtype: str = "float8_e4m3fn") -> str:
    """As vLLM's ``kv_cache_scales.json`` is."""
    file = folder / "kv_cache_scales.json"
    file.write_text(json.dumps({"model_type": "llama", "kv_cache": {"dtype": dtype, "scaling_factor": scales}}))
    return str(file)


@pytest.mark.row("F-260", "F-394")
def test_scales_come_from_a_file_before_the_checkpoint(tmp_path: Path) -> None:
    layers = [AttentionLayer(i, 2, 2, 16, 1.0) for i in range(2)]
    file = scale_file(tmp_path, {"0": {"0": 0.5, "1": 2.0}, "1": {"0": 3.0, "1": 4.0}})
    tensors = {"model.layers.0.self_attn.k_scale": torch.tensor(9.0), "model.norm.weight": torch.ones(3)}
    for rank, wanted in enumerate([(0.5, 2.0), (3.0, 4.0)]):
        source = WithFile(TensorsSource(tensors), read_file(file, rank, 2, layers))
        scaled = with_scales(layers, source)
        assert [(layer.key_scale, layer.value_scale) for layer in scaled] == [(scale, scale) for scale in wanted]
        assert torch.equal(source.read("model.norm.weight", 0, 3), torch.ones(3))


@pytest.mark.row("F-260")
@pytest.mark.parametrize(
    ("scales", "dtype", "message"),
    [
        ({"0": {"0": 1.0}}, "float8_e4m3fn", "no scale above 0 for layer 1 of rank 0"),
        ({"0": {"0": 1.0, "1": 0.0}}, "float8_e4m3fn", "no scale above 0 for layer 1 of rank 0"),
        ({"0": {}, "1": {}}, "float8_e4m3fn", "is for 2 ranks, not for 1"),
        ({"0": {"0": 1.0, "1": 1.0}}, "float8_e5m2", "is for a cache of float8_e5m2"),
        ({"0": {"a": 1.0}}, "float8_e4m3fn", "can't be read"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    scales: dict[str, dict[str, float]], dtype: str, message: str, tmp_path: Path
) -> None:
    layers = [AttentionLayer(i, 2, 2, 16, 1.0) for i in range(2)]
    with pytest.raises(ConfigError, match=message):
        read_file(scale_file(tmp_path, scales, dtype), 0, 1, layers)


@pytest.mark.parametrize("wrong", [torch.tensor(0.0), torch.tensor(torch.nan), torch.ones(2), torch.tensor(1)], ids=str)
def test_what_is_no_scale_is_refused(wrong: torch.Tensor) -> None:
    layers = [AttentionLayer(0, 2, 2, 16, 1.0)]
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.k_scale"):
        with_scales(layers, TensorsSource({"layers.0.self_attn.k_scale": wrong}))


@pytest.mark.parametrize(
    ("asked", "declared", "chosen"),
    [
        ("auto", {"kv_cache_scheme": {"type": "float", "num_bits": 8}}, "fp8_e4m3"),
        ("auto", {"kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ("auto", {"kv_cache_scheme": {"type": "int", "num_bits": 4}}, "auto"),
        ("auto", {"kv_cache_scheme": None}, "auto"),
        ("int8", {"kv_cache_quant_algo": "FP8"}, "int8"),
        ("fp8", {}, "fp8_e4m3"),
    ],
)
def test_a_checkpoint_made_for_fp8_gets_it_unless_asked_otherwise(
    asked: str, declared: dict[str, Any], chosen: str
) -> None:
    able = CpuPlatform().capabilities(CpuPlatform().devices()[0])
    assert _choose_kv_dtype(asked, {"quantization_config": declared}, able, Choices()) == chosen
    if asked == "auto":
        unable = Capabilities(dtypes=able.dtypes)
        assert _choose_kv_dtype(asked, {"quantization_config": declared}, unable, Choices()) == "auto"


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    able = CpuPlatform().capabilities(CpuPlatform().devices()[0])
    with pytest.raises(ConfigError, match="fp8_inc is not one of auto, fp8, fp8_e4m3, fp8_e5m2, int8"):
        _choose_kv_dtype("fp8_inc", {}, able, Choices())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny("llama", tmp_path_factory.mktemp("codes") / "llama", head_dim=64))


def generate(checkpoint: str, name: str, **options: Any) -> tuple[list[tuple[int, ...]], Any, int]:
    """Tokens of six prompts that share 40 of their own, the engine's counts, and its number of blocks."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [*range(5, 45), *range(50 + i, 60 + 3 * i)]} for i in range(6)]
    own = {"cpu.kvcache_space": 0.01, "cpu.isa": "auto"}  # which the fixture turns into what LSV_CPU_ISA asks for
    given = {"max_model_len": 128, "block_size": 16, "kv_cache_dtype": name, **own, **options}
    with LLM(checkpoint, dtype="float32", skip_tokenizer_init=True, **given) as llm:
        answers = llm.generate(prompts, params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in answers], llm.stats, llm.fit.num_blocks


@pytest.mark.row("F-260", "F-394")
def test_an_engine_takes_the_scales_of_a_file(checkpoint: str, tmp_path: Path) -> None:
    """Of 1 they are what they are without a file; too large ones make zeros of all that is kept."""
    answers = {}
    for scale in (None, 1.0, 1e6):
        file = scale and scale_file(tmp_path, {"0": {str(layer): scale for layer in range(2)}})
        answers[scale], _, _ = generate(checkpoint, "fp8", quantization_param_path=file)
    assert answers[1.0] == answers[None]
    assert answers[1e6] != answers[None]
    with pytest.raises(ConfigError, match="quantization_param_path requires an fp8 KV cache, not int8"):
        generate(checkpoint, "int8", quantization_param_path="x.json")


@NAMES
def test_sharing_and_preempting_change_no_token(checkpoint: str, name: str) -> None:
    alone, _, _ = generate(checkpoint, name, enable_prefix_caching=False, max_num_seqs=1)
    shared, stats, _ = generate(checkpoint, name, num_gpu_blocks_override=14, max_num_batched_tokens=24)
    assert stats.prefix_hits_total > 0
    assert stats.preemptions_total > 0
    assert shared == alone


@pytest.mark.row("F-937")
def test_the_same_memory_holds_more_blocks(checkpoint: str) -> None:
    blocks = {name: generate(checkpoint, name)[2] for name in ("auto", "fp8", "int8")}
    assert blocks["fp8"] == pytest.approx(4 * blocks["auto"], rel=0.02)  # bytes for float32
    assert blocks["int8"] == pytest.approx(4 * blocks["auto"] * 64 / 68, rel=0.02)


def test_a_layer_with_other_scales_has_another_record(device: Device) -> None:
    """So a reloaded checkpoint's scales count."""
    attention = backend("auto")
    cache = attention.allocate(CacheSpec([GROUP], [LAYER], 2, 32, torch.float8_e4m3fn), device)
    before = attention.layer_record(LAYER, cache).key_scale
    assert (before, attention.layer_record(replace(LAYER, key_scale=3.0), cache).key_scale) == (0.5, 3.0)
