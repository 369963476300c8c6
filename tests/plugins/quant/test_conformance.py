"""Every format on the CPU's kernels: prompts, decoding, experts and two ranks compute what the reference does on one.

Weights are random in the stored form itself. ``docs/quantization.md`` shows the formats and what was found for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import lsv_models.plugin
import lsv_quant.plugin
from lsv import LLM, SamplingParams
from lsv.offers import QuantizerOffer
from lsv.plugins.catalog import Catalog
from lsv.request.outputs import TokenLogprobs
from lsv_runtime.weights.checkpoint import DummySource
from lsv_runtime.worker.load.declared import declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config
from lsv_testing.tiny import tiny

pytestmark = pytest.mark.onednn

DOCUMENT = Path(__file__).parents[3] / "docs" / "quantization.md"
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
EXPERTS = {"qwen3_moe": {"moe_intermediate_size": 256}}
PROMPT, TOKENS = tuple(range(20, 60)), 8
Scores = tuple[np.ndarray, list[int], np.ndarray]
"""Log-likelihoods of the prompt's tokens, the answer, and its tokens' log-likelihoods."""


def compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}
    if inputs is not None:
        group["input_activations"] = dict(inputs)
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": {"0": group}}


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
BY_TOKEN = {"symmetric": True, "dynamic": True, "strategy": "token"}
GPTQ = {"quant_method": "gptq", "group_size": 32, "desc_act": False, "checkpoint_format": "gptq", "lm_head": False}
BY_ROW = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
TORCHAO = {
    "_type": "Int8WeightOnlyConfig", "_version": 2,
    "_data": {"set_inductor_config": True, "group_size": None, "granularity": BY_ROW},
}  # fmt: skip
CHECKPOINTS: Mapping[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "gptq 3 bits": {**GPTQ, "bits": 3, "sym": False},
    "gptq 4 bits": {**GPTQ, "bits": 4, "sym": False},
    "gptq 8 bits": {**GPTQ, "bits": 8, "sym": False},
    "auto-round": {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32,
        "sym": False, "data_type": "int",
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
    "fp8 blocks": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    "compressed-tensors W8A8": compressed("int-quantized", INT8, {**BY_TOKEN, "num_bits": 8, "type": "int"}),
    "compressed-tensors W4A16": compressed("pack-quantized", INT4),
    "compressed-tensors FP8": compressed("float-quantized", FLOAT8, {**BY_TOKEN, "num_bits": 8, "type": "float"}),
    "torchao int8": {"quant_method": "torchao", "quant_type": {"default": TORCHAO}},
}  # fmt: skip
ONLINE = tuple(o.name for o in lsv_quant.plugin.lsv_quantizers() if o.online and not o.experts)
ELSEWHERE = {"bitsandbytes checkpoints": "test_bitsandbytes.py", "gguf": "test_gguf.py"}
"""Formats whose files need more than random numbers, and the tests that write them."""
QUICK = ("awq", "fp8 blocks", "compressed-tensors W8A8")
CLOSE, NEAR = 0.02, 0.5
ACTIVATIONS_ROUNDED = ("int8", "sym_int4", "sym_int4_g32", "sym_int4_g64", "sym_int4_g128", "compressed-tensors W8A8")
"""A last bit of float32 decides now and then to which of two codes an activation goes."""
ROUNDED_BY_RANK = (*ACTIVATIONS_ROUNDED, "fp8", "fp8_tensor", "int8_weight_only")
"""What a rank rounds on its own, weights or activations, differs from what one rank alone would round it to."""


def formats(*quick: str) -> Any:
    names = [*CHECKPOINTS, *(name for name in ONLINE if name not in CHECKPOINTS)]
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in quick)) for n in names]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@cache
def catalog() -> Catalog:
    return catalog_of(lsv_models.plugin, lsv_quant.plugin)


@cache
def plain(family: str, folder: Path) -> Path:
    return tiny(family, folder / family, **SHAPE, **EXPERTS.get(family, {}))


@cache
def checkpoint(name: str, family: str, folder: Path) -> Path:
    """A tiny model whose linear layers are stored in a format, as random numbers; or the plain one."""
    source = plain(family, folder)
    if name not in CHECKPOINTS:
        return source
    target = folder / f"{name} {family}"
    target.mkdir(exist_ok=True)
    declared_format = CHECKPOINTS[name]
    config = {**json.loads((source / "config.json").read_text()), "quantization_config": declared_format}
    (target / "config.json").write_text(json.dumps(config))
    (offer,) = (o for o in catalog().offers(QuantizerOffer) if o.recognises and o.recognises(declared_format))
    slots = declare(engine_config(target, family, quantization=offer.name), catalog()).slots
    random, known = DummySource(slots), load_file(source / "model.safetensors")
    tensors = {}
    for tensor, info in random.tensors().items():
        rows = info.shape[0] if info.shape else 1
        whole = known.get(tensor)
        taken = whole if whole is not None and info.dtype == torch.float32 else random.read(tensor, 0, rows)
        tensors[tensor] = taken.clone()
    save_file(tensors, target / "model.safetensors")
    return target


def scores(name: str, family: str, folder: Path, **options: Any) -> Scores:
    online = {} if name in CHECKPOINTS else {"quantization": name}
    params = SamplingParams(
        temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=0, prompt_logprobs=0
    )
    options = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, **online, **options}
    with LLM(str(checkpoint(name, family, folder)), **options) as llm:
        (answer,) = llm.generate([{"prompt_token_ids": list(PROMPT)}], params, use_tqdm=False)
    (output,) = answer.outputs
    prompt = [chosen(entries) for entries in answer.prompt_logprobs[1:]]
    return np.array(prompt), list(output.token_ids), np.array(list(map(chosen, output.logprobs)))


def chosen(entries: TokenLogprobs) -> float:
    return next(iter(entries.values())).logprob


def check_same(found: Scores, wanted: Scores, tolerance: float) -> None:
    """Prompts agree, and answers as long as their tokens do: where results are close, at least for the first."""
    assert np.isfinite(wanted[0]).all()
    np.testing.assert_allclose(found[0], wanted[0], atol=tolerance, rtol=tolerance)
    same = next((at for at, (a, b) in enumerate(zip(found[1], wanted[1], strict=True)) if a != b), TOKENS)
    assert same > 0 or tolerance == NEAR
    np.testing.assert_allclose(found[2][:same], wanted[2][:same], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@formats(*QUICK)
def test_kernels_compute_what_the_reference_does(name: str, family: str, folder: Path) -> None:
    tolerance = NEAR if name in ACTIVATIONS_ROUNDED else CLOSE
    check_same(scores(name, family, folder), scores(name, family, folder, reference_ops=True), tolerance)


@formats("awq")
def test_two_ranks_compute_what_one_does(name: str, folder: Path) -> None:
    tolerance = NEAR if name in ROUNDED_BY_RANK else CLOSE
    check_same(scores(name, "llama", folder, tensor_parallel_size=2), scores(name, "llama", folder), tolerance)


def test_the_document_shows_all_formats() -> None:
    table = DOCUMENT.read_text().partition("| format | prefill |")[2].partition("\n\n")[0]
    rows = {cells[1].strip("` "): cells[2:-1] for cells in (line.split("|") for line in table.splitlines()[2:])}
    assert list(rows) == [*ONLINE, *(name for name in CHECKPOINTS if name not in ONLINE), *ELSEWHERE]
    assert all(cell.strip() for cells in rows.values() for cell in cells)
