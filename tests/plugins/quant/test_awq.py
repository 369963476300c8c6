"""AWQ: tensors packed in the test as AutoAWQ documents them, decoded, cut, refused, and answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lsv_models.plugin
import lsv_quant.plugin
from lsv import LLM, SamplingParams
from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant.checkpoints.awq import make
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Part
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.quantised import check_adapted, check_answers, fused_layer, write_quantised
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

Tensors = dict[str, torch.Tensor]
CONFIG: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip


def pack(weight: torch.Tensor, group: int = 32, *, symmetric: bool = False) -> tuple[Tensors, torch.Tensor]:
    """The tensors of a weight, and what they mean: (code - zero) * scale."""
    group = weight.shape[1] if group == -1 else group
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = ((torch.maximum(-low, high) / 7.5) if symmetric else (high - low) / 15).half()
    zeros = torch.full_like(low, 8) if symmetric else (-low / scales.float()).round().clamp(0, 15)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    meant = ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)
    tensors = {"qweight": words(codes.flatten(1).T.int()), "qzeros": words(zeros.T.int()), "scales": scales.T}
    return tensors, meant


def words(codes: torch.Tensor) -> torch.Tensor:
    """[rows, outputs] -> int32 [rows, outputs / 8], eight codes in a word."""
    found = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for i, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        found += codes[:, output::8].long() << 4 * i
    return torch.where(found < 1 << 31, found, found - (1 << 32)).int()


def decoded(parts: list[Tensors], widths: list[int], inputs: int, config: dict[str, Any] = CONFIG) -> torch.Tensor:
    weight: torch.Tensor = fused_layer(make(config), parts, widths, inputs).weight()
    return weight


@pytest.mark.row("F-939")
def test_a_layer_takes_a_quarter_of_its_plain_bytes() -> None:
    tensors, meant = pack(torch.randn(256, 1024), 128)
    declared = fused_layer(make({**CONFIG, "group_size": 128}), [tensors], [256], 1024)
    held = sum(tensor.nbytes for tensor in (*declared.parameters(), *declared.buffers()) if not tensor.is_meta)
    assert held <= 0.3 * meant.numel() * 2


@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_are_what_the_format_says(group: int, symmetric: bool) -> None:
    found = [pack(torch.randn(outputs, 384), group, symmetric=symmetric) for outputs in (64, 24)]
    config = {**CONFIG, "group_size": group, "zero_point": not symmetric}
    weight = decoded([tensors for tensors, _ in found], [64, 24], 384, config)
    assert torch.equal(weight, torch.cat([meant for _, meant in found]))


def test_more_words_than_are_unpacked_at_once() -> None:
    tensors, meant = pack(torch.randn(4112, 64))
    assert torch.equal(decoded([tensors], [4112], 64), meant)


@pytest.mark.parametrize("group", [32, -1])
def test_suite(group: int) -> None:
    config = {**CONFIG, "group_size": group}
    check_quantizer(lambda: make(config), lambda weight: pack(weight, group)[0], tolerance=0.12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    tensors, meant = pack(torch.randn(32, 64))
    w = place(quantizer=make(CONFIG), dtype=dtype)
    column = fill_module(Column.even(w, ("0",), 64, 32), w, TensorsSource({f"0.{k}": v for k, v in tensors.items()}))
    x = torch.randn(5, 64).to(dtype)
    assert torch.equal(column(x), torch.nn.functional.linear(x.float(), meant).to(dtype))


def test_zero_points_of_a_symmetric_checkpoint() -> None:
    tensors, meant = pack(torch.randn(16, 64), symmetric=True)
    symmetric = {**CONFIG, "zero_point": False}
    assert torch.equal(decoded([{k: v for k, v in tensors.items() if k != "qzeros"}], [16], 64, symmetric), meant)
    with pytest.raises(CheckpointError, match=r"0\.qzeros: not all zero points are 8"):
        decoded([pack(torch.randn(16, 64))[0]], [16], 64, symmetric)


def test_layers_that_do_not_fill_their_words_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"0 has 64 inputs and 20 outputs: .* multiples of 8"):
        decoded([], [20], 64)


def test_cuts_fall_between_words_and_groups() -> None:
    w = place(quantizer=make(CONFIG))
    with pytest.raises(ConfigError, match=r"0\.qweight: features 4 to 12 can't be taken"):
        Column(w, [Part("0", 16, 4, 12)], 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "gemv"}, "version is 'gemv'; what can be read is 'gemm'"),
        ({"backend": "llm-awq"}, "backend is 'llm-awq'"),
        ({"bits": 8}, "bits is 8; what can be read is 4"),
        ({"w_bit": 3}, "w_bit is 3"),
        ({"group_size": 12}, "group_size must be -1 or a multiple of 8, got 12"),
        ({"group_size": None}, "group_size must be -1 or a multiple of 8, got None"),
        ({"zero_point": "yes"}, "zero_point is 'yes'"),
        ({"modules_to_not_convert": [3]}, r"modules_to_not_convert must be names of layers, got \[3\]"),
        ({"desc_act": True}, "desc_act is True"),
        ({"smoothing": 3}, "smoothing = 3 can't be honoured"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make({**CONFIG, **change})


def test_spellings_of_a_config() -> None:
    make({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"})
    make({**CONFIG, "desc_act": False, "sym": True, "meta": {"quantizer": "x"}, "damp_percent": 0.1, "backend": "auto"})


def plain_in_the_middle(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    return None if "self_attn" in name or name == "lm_head" else pack(weight)


@pytest.mark.row("F-408")
@pytest.mark.parametrize(
    ("family", "shape"), [("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("qwen3_moe", {})]
)
def test_a_checkpoint_answers_like_what_it_means(tmp_path: Path, family: str, shape: dict[str, Any]) -> None:
    config = {**CONFIG, "modules_to_not_convert": ["self_attn"]}
    check_answers(family, tmp_path, config, plain_in_the_middle, **shape)


def test_names_that_users_know_it_by(tmp_path: Path) -> None:
    folder, _ = write_quantised(
        "llama", tmp_path, CONFIG, lambda name, weight: None if name == "lm_head" else pack(weight)
    )
    for quantization, dtype in (("awq_marlin", "float16"), ("AWQ", "bfloat16")):
        with LLM(str(folder), dtype=dtype, quantization=quantization, skip_tokenizer_init=True) as llm:
            (output,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=3, ignore_eos=True))
            assert len(output.outputs[0].token_ids) == 3
    with pytest.raises(ConfigError, match="quantised as awq; --quantization gptq contradicts it"):
        LLM(str(folder), quantization="gptq")


@pytest.mark.row("F-728")
def test_adapters_go_on_top(tmp_path: Path) -> None:
    check_adapted("llama", tmp_path, {**CONFIG, "modules_to_not_convert": ["self_attn"]}, plain_in_the_middle)


@pytest.mark.parametrize("zero_point", [True, False])
def test_random_weights(tmp_path: Path, zero_point: bool) -> None:
    folder, _ = write_quantised("llama", tmp_path, {**CONFIG, "zero_point": zero_point}, lambda name, weight: None)
    catalog = catalog_of(lsv_models.plugin, lsv_quant.plugin)
    declared = load(engine_config(folder, "llama", quantization="awq", load_format="dummy"), catalog)
    assert all(torch.isfinite(tensor).all() for tensor in declared.model.buffers() if not tensor.is_meta)
