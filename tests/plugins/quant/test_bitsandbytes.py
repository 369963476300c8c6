"""bitsandbytes: checkpoints packed here as its documentation says, in nf4 and fp4, with nested scales, in int8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import LLM, SamplingParams
from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant.checkpoints.bitsandbytes import make
from lsv_quant.checkpoints.bitsandbytes_source import BitsandbytesSource
from lsv_quant.tables import EXACT_NF4
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights.place import Part
from lsv_testing.quantised import answer, check_adapted
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place
from lsv_testing.tiny import tiny

Tensors = dict[str, torch.Tensor]

FP4 = [0, 0.0052083333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
VALUES = {"nf4": torch.tensor(EXACT_NF4), "fp4": torch.tensor([*FP4, *(-value for value in FP4)])}
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0}


def pack(
    weight: torch.Tensor, kind: str = "nf4", *, block: int = 64, nested: bool = False
) -> tuple[Tensors, torch.Tensor]:
    """The tensors of one weight by suffix, and what they mean: codes of the flat weight, high half first."""
    values = VALUES[kind]
    blocks = weight.flatten().reshape(-1, block)
    scales = blocks.abs().amax(dim=1)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    tensors: Tensors = {}
    if nested:
        offset, levels = float(scales.mean()), torch.linspace(-1, 1, 256)
        groups = torch.nn.functional.pad(scales - offset, (0, -len(scales) % 256)).reshape(-1, 256)
        outer = groups.abs().amax(dim=1)
        inner = (groups / outer[:, None])[..., None].sub(levels).abs().argmin(dim=-1)
        scales = (levels[inner] * outer[:, None] + offset).flatten()[: len(scales)]
        tensors = {
            "weight.absmax": inner.flatten()[: len(scales)].to(torch.uint8),
            "weight.nested_absmax": outer, "weight.nested_quant_map": levels,
        }  # fmt: skip
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    codes = (blocks / scales[:, None])[..., None].sub(values).abs().argmin(dim=-1)
    flat = codes.flatten().to(torch.uint8)
    tensors = {"weight.absmax": scales, **tensors}
    tensors["weight"] = (flat[::2] << 4 | flat[1::2])[:, None]
    tensors["weight.quant_map"] = values.clone()
    text = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
    held = values.bfloat16().float() if kind == "nf4" else values
    return tensors, (held[codes] * scales[:, None]).reshape(weight.shape)


def pack8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    largest = weight.abs().amax(dim=1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, codes.float() * (largest / 127)[:, None]


def source_of(tensors: Tensors, name: str = "0") -> BitsandbytesSource:
    return BitsandbytesSource(TensorsSource({f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}))


def decoded(tensors: Tensors, shape: torch.Size, config: dict[str, Any], rank: int = 0, size: int = 1) -> torch.Tensor:
    """The weights of a rank, outputs cut."""
    w = place(quantizer=make(config), rank=rank, size=size)
    layer: Any = fill_module(Column.even(w, ("0",), shape[1], shape[0]), w, source_of(tensors)).linear
    return layer.weight()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_four_bits(kind: str, nested: bool, block: int) -> None:
    tensors, wanted = pack(torch.randn(70, 384), kind, block=block, nested=nested)
    found = decoded(tensors, wanted.shape, {**FOUR, "bnb_4bit_quant_type": kind})
    torch.testing.assert_close(found, wanted, rtol=0 if kind == "nf4" else 2e-7, atol=0 if kind == "nf4" else 2e-8)
    halves = [decoded(tensors, wanted.shape, {**FOUR, "bnb_4bit_quant_type": kind}, rank, 2) for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), found)


@pytest.mark.parametrize(("kind", "tolerance"), [("nf4", 0.12), ("fp4", 0.2), ("int8", 0.02)])
def test_suite(kind: str, tolerance: float) -> None:
    config = EIGHT if kind == "int8" else {**FOUR, "bnb_4bit_quant_type": kind}

    def encode(weight: torch.Tensor) -> Tensors:
        source = source_of(pack8(weight)[0] if kind == "int8" else pack(weight, kind, nested=True)[0])
        return {n.removeprefix("0."): source.read(n, 0, info.shape[0]) for n, info in source.tensors().items()}

    check_quantizer(lambda: make(config), encode, tolerance=tolerance)


def test_eight_bits() -> None:
    tensors, wanted = pack8(torch.randn(30, 70))
    assert torch.equal(decoded(tensors, wanted.shape, EIGHT), wanted)
    tensors["weight_format"] += 1
    with pytest.raises(CheckpointError, match=r"0\.weight_format is not 0"):
        source_of(tensors)


def test_inputs_are_cut_between_blocks_only() -> None:
    tensors, wanted = pack(torch.randn(16, 256), nested=True)
    parts = []
    for rank in (0, 1):
        w = place(quantizer=make(FOUR), rank=rank, size=2)
        row = fill_module(Row(w, "0", 256, 16, reads=w.shard.split(256, "inputs")), w, source_of(tensors))
        parts.append(row.linear.weight())  # type: ignore[operator]
    assert torch.equal(torch.cat(parts, dim=1), wanted)
    w = place(quantizer=make(FOUR), rank=1, size=8)
    with pytest.raises(ConfigError, match=r"0\.nf4_scales: features 32 to 64"):
        Row(w, "0", 256, 16, reads=(32, 64))


def test_fused_layers_have_scales_of_their_own() -> None:
    packed = [pack(torch.randn(outputs, 128), nested=True) for outputs in (64, 32)]
    tensors = {f"{n}.{suffix}": tensor for n, (found, _) in enumerate(packed) for suffix, tensor in found.items()}
    w = place(quantizer=make(FOUR))
    column = Column(w, [Part("0", 64, 0, 64), Part("1", 32, 0, 32)], 128)
    layer: Any = fill_module(column, w, BitsandbytesSource(TensorsSource(tensors))).linear
    assert torch.equal(layer.weight(), torch.cat([wanted for _, wanted in packed]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(8, 1, dtype=torch.uint8)}, r"0\.weight must be torch.uint8 \[512, 1\]"),
        ({"weight.absmax": torch.zeros(16).half()}, r"0\.weight\.absmax must be torch.float32"),
        ({"weight.quant_map": torch.linspace(-1, 1, 16)}, "0.weight.quant_map has other values than nf4"),
        ({"weight.quant_state.bitsandbytes__nf4": torch.zeros(4, dtype=torch.uint8)}, "not the state of a packed"),
        ({"weight.quant_state.bitsandbytes__af4": None}, "packed as af4; what can be read is nf4, fp4"),
    ],
)
def test_what_contradicts_itself_is_refused(change: Tensors, message: str) -> None:
    tensors, _ = pack(torch.randn(8, 128))
    for suffix, tensor in change.items():
        own = tensors["weight.quant_state.bitsandbytes__nf4"]
        tensors[suffix] = own if tensor is None else tensor
    with pytest.raises(CheckpointError, match=message):
        source_of(tensors)


def test_blocks_over_two_rows_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"0\.weight has 96 inputs in blocks of 64"):
        source_of(pack(torch.randn(4, 96))[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_in_8bit": True}, "one of load_in_4bit and load_in_8bit"),
        ({"bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type is 'nf3'; what can be read is 'nf4', 'fp4'"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight is True"),
        ({"llm_int9": 3}, "llm_int9 = 3 can't be honoured"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make({**FOUR, **change})


def write(model: Path, kind: str, target: Path) -> tuple[Path, Path]:
    """A checkpoint packed, and the plain one of what that means; without the head."""
    plain = load_file(model / "model.safetensors")
    packed: Tensors = {}
    for name, tensor in plain.items():
        if "_proj.weight" in name:
            found, plain[name] = pack8(tensor) if kind == "int8" else pack(tensor, kind, nested=kind == "nf4")
            packed |= {f"{name.removesuffix('weight')}{suffix}": part for suffix, part in found.items()}
        else:
            packed[name] = tensor
    config = json.loads((model / "config.json").read_text())
    method = EIGHT if kind == "int8" else {**FOUR, "bnb_4bit_quant_type": kind}
    for folder, tensors, extra in ((target, packed, {"quantization_config": method}), (model, plain, {})):
        folder.mkdir(exist_ok=True)
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **extra}))
    return target, model


@pytest.mark.parametrize(("family", "kind"), [("llama", "nf4"), ("llama", "int8"), ("qwen3_moe", "fp4")])
def test_a_checkpoint_answers_like_what_its_weights_decode_to(family: str, kind: str, tmp_path: Path) -> None:
    shape = {"intermediate_size": 128} if family == "llama" else {"intermediate_size": 128, "moe_intermediate_size": 64}
    folders = write(tiny(family, tmp_path / "plain", **shape), kind, tmp_path / "packed")
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    answers = []
    for folder in folders:
        with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, reference_ops=True) as llm:
            (output,) = llm.generate([{"prompt_token_ids": list(range(20, 50))}], params)
        answers.append(output.outputs[0].token_ids)
    assert answers[0] == answers[1]
    LLM(str(folders[0]), load_format="dummy", skip_tokenizer_init=True, reference_ops=True).close()


@pytest.mark.row("F-414", "F-728")
def test_adapters_go_on_top(tmp_path: Path) -> None:
    """QLoRA: layers whose inputs are no whole blocks stay plain."""
    plain = ("down_proj", "lm_head")
    config = {**FOUR, "llm_int8_skip_modules": plain}
    check_adapted("llama", tmp_path, config, lambda name, weight: None if name.endswith(plain) else pack(weight))


@pytest.mark.row("F-414")
def test_a_plain_checkpoint_is_quantised_also_where_its_format_is_said(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path, intermediate_size=128)
    said, unsaid = (
        answer(folder, quantization="bitsandbytes", load_format=format) for format in ("bitsandbytes", "auto")
    )
    assert said == unsaid
