"""GGUF: blocks decoded as ggml's own code says, files of mixed types beside the plain model they mean, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lsv_cpu.plugin
import lsv_models.plugin
import lsv_quant.plugin
from lsv import LLM, SamplingParams
from lsv.resolve.files import check_load_format
from lsv.resolve.locate import locate_model
from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant.gguf import config
from lsv_quant.gguf.blocks import TABLES, decode, read_codes, read_offsets, read_scales
from lsv_quant.gguf.file import read_gguf
from lsv_quant.gguf.prepare import prepare
from lsv_quant.gguf.quantizer import make
from lsv_quant.gguf.source import open_source
from lsv_quant.gguf.types import TYPES, Form
from lsv_runtime.nn.linear import Row
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load, load_bound
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import fill_module, place

Array = np.ndarray[Any, np.dtype[Any]]
Tensor = tuple[str, tuple[int, ...], Array]
Write = Callable[[Path, Mapping[str, Any], Mapping[str, Tensor]], Path]

CODED = sorted(kind for kind, block in TYPES.items() if block.form)
HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "MXFP4": (),
}  # fmt: skip
NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def random_blocks(kind: str, rows: int, inputs: int, seed: int = 0) -> Array:
    """Bytes [rows, row bytes] of small weights: only the float16 numbers in them are not just random."""
    draw, block = np.random.default_rng(seed), TYPES[kind]
    data = draw.integers(0, 256, (rows, inputs // block.weights, block.size), dtype=np.uint8)
    size = 0.0005 if kind.endswith("K") else 0.005 if kind == "Q8_0" else 0.05
    if kind == "MXFP4":
        data[..., 0] = draw.integers(118, 124, data.shape[:2])
    for at in HALVES.get(kind, (0,)):
        scales = draw.normal(0, size, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def k_scale(q: Array, j: int) -> tuple[Array, Array]:
    """``get_scale_min_k4``."""
    if j < 4:
        return q[:, j] & 63, q[:, j + 4] & 63
    return q[:, j + 4] & 15 | q[:, j - 4] >> 6 << 4, q[:, j + 4] >> 4 | q[:, j] >> 6 << 4


def golden(kind: str, data: Array) -> Array:
    """``dequantize_row_*`` of ggml-quants.c, over all blocks at once: float32 [rows, inputs]."""
    x = data.reshape(-1, TYPES[kind].size).astype(np.int32)
    y = np.zeros((len(x), TYPES[kind].weights), np.float32)

    def half(at: int) -> Array:
        return x[:, at : at + 2].astype(np.uint8).view(np.float16)[:, 0].astype(np.float32)

    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        moved, five = kind.endswith("1"), kind.startswith("Q5")
        at = 4 if moved else 2
        high = sum(x[:, at + n].astype(np.int64) << 8 * n for n in range(4)) if five else np.zeros(len(x), np.int64)
        at += 4 if five else 0
        for j in range(16):
            low, top = x[:, at + j] & 15 | (high >> j << 4) & 16, x[:, at + j] >> 4 | (high >> (j + 12)) & 16
            for place_, code in ((j, low), (j + 16, top)):
                value = code if moved else code - (16 if five else 8)
                y[:, place_] = value.astype(np.float32) * half(0) + (half(2) if moved else np.float32(0))
    elif kind == "Q8_0":
        y[:] = x[:, 2:].astype(np.uint8).view(np.int8) * half(0)[:, None]
    elif kind in ("IQ4_NL", "MXFP4"):
        first = 2 if kind == "IQ4_NL" else 1
        scale = half(0) if kind == "IQ4_NL" else np.exp2(x[:, 0] - 127).astype(np.float32)
        for j in range(16):
            for place_, code in ((j, x[:, first + j] & 15), (j + 16, x[:, first + j] >> 4)):
                y[:, place_] = scale * (NONLINEAR if kind == "IQ4_NL" else E2M1)[code]
    elif kind == "IQ4_XS":
        high = x[:, 2] | x[:, 3] << 8
        for part in range(8):
            scale = x[:, 4 + part // 2] >> 4 * (part % 2) & 15 | (high >> 2 * part & 3) << 4
            for j in range(16):
                byte = x[:, 8 + 16 * part + j]
                for place_, code in ((j, byte & 15), (j + 16, byte >> 4)):
                    y[:, 32 * part + place_] = half(0) * (scale - 32).astype(np.float32) * NONLINEAR[code]
    elif kind in ("Q2_K", "Q3_K"):
        three = kind == "Q3_K"
        first = 32 if three else 16
        for half_ in (0, 1):
            for pair in range(4):
                for j in range(32):
                    part = 8 * half_ + 2 * pair + j // 16
                    code = x[:, first + 32 * half_ + j] >> 2 * pair & 3
                    at = 128 * half_ + 32 * pair + j
                    if three:
                        low = x[:, 96 + part % 8] >> 4 * (part // 8) & 15
                        scale = (low | (x[:, 104 + part % 4] >> 2 * (part // 4) & 3) << 4) - 32
                        code = code - np.where(x[:, j] >> (4 * half_ + pair) & 1, 0, 4)
                        y[:, at] = half(108) * scale.astype(np.float32) * code
                    else:
                        y[:, at] = half(80) * (x[:, part] & 15).astype(np.float32) * code
                        y[:, at] -= half(82) * (x[:, part] >> 4).astype(np.float32)
    elif kind == "Q6_K":
        scales = x[:, 192:208].astype(np.uint8).view(np.int8).astype(np.float32)
        for n in (0, 1):
            for j in range(32):
                low, next_, high = x[:, 64 * n + j], x[:, 64 * n + j + 32], x[:, 128 + 32 * n + j]
                codes = (low & 15, next_ & 15, low >> 4, next_ >> 4)
                for part, code in enumerate(codes):
                    scale = half(208) * scales[:, 8 * n + 2 * part + j // 16]
                    y[:, 128 * n + 32 * part + j] = scale * ((code | (high >> 2 * part & 3) << 4) - 32)
    else:
        five = kind == "Q5_K"
        quants = x[:, 48:] if five else x[:, 16:]
        for part in range(8):
            scale, least = k_scale(x[:, 4:16], part)
            for j in range(32):
                pair = quants[:, 32 * (part // 2) + j]
                code = (pair >> 4 if part % 2 else pair & 15) + (16 * (x[:, 16 + j] >> part & 1) if five else 0)
                y[:, 32 * part + j] = half(0) * scale.astype(np.float32) * code - half(2) * least.astype(np.float32)
    return y.reshape(len(data), -1)


@pytest.mark.parametrize("kind", CODED)
def test_blocks_mean_what_ggml_says(kind: str) -> None:
    data = random_blocks(kind, 5, 3 * TYPES[kind].weights)
    wanted, rows = torch.from_numpy(golden(kind, data)), torch.from_numpy(data)
    assert torch.equal(decode(rows, kind), wanted)
    own = TYPES[kind].form
    for form in (own, Form(8, 16, True)):
        assert form
        codes = read_codes(rows, kind, form).int()
        if form.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
        values = codes - (128 if form.bits == 8 else 0 if form.offsets else 8)
        if form.table:
            values = torch.tensor(TABLES[form.table])[codes]
        found = values.unflatten(-1, (-1, form.group)) * read_scales(rows, kind, form)[..., None]
        if form.offsets:
            found += read_offsets(rows, kind, form)[..., None]
        assert torch.equal(found.flatten(-2), wanted)


@pytest.mark.parametrize("kind", CODED)
def test_blocks_mean_what_the_gguf_package_says(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    data = random_blocks(kind, 4, 2 * TYPES[kind].weights, seed=1)
    wanted = torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))
    assert torch.equal(decode(torch.from_numpy(data), kind), wanted)


@pytest.mark.parametrize(("form", "low", "tolerance"), [(Form(4, 32, False), 8, 0.15), (Form(8, 16, True), 128, 0.01)])
def test_suite(form: Form, low: int, tolerance: float) -> None:
    def encode(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        groups = weight.unflatten(1, (-1, form.group))
        moved = groups.mean(dim=-1) if form.offsets else torch.zeros(groups.shape[:2])
        scales = (groups - moved[..., None]).abs().amax(dim=-1) / (low - 1)
        codes = (((groups - moved[..., None]) / scales[..., None]).round() + low).flatten(1).to(torch.uint8)
        codes = codes[:, ::2] | codes[:, 1::2] << 4 if form.bits == 4 else codes
        return {"codes": codes, "scales": scales} | ({"offsets": moved} if form.offsets else {})

    method = {"quant_method": "gguf", "layers": {str(number): form for number in range(3)}}
    check_quantizer(lambda: make(method), encode, tolerance=tolerance)


LLAMA = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 256,
    "llama.feed_forward_length": 512, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.context_length": 512, "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.eos_token_id": 257,
}  # fmt: skip
QWEN3_MOE = {
    "general.architecture": "qwen3moe", "qwen3moe.block_count": 2, "qwen3moe.embedding_length": 64,
    "qwen3moe.feed_forward_length": 96, "qwen3moe.attention.head_count": 4, "qwen3moe.attention.head_count_kv": 2,
    "qwen3moe.attention.key_length": 16, "qwen3moe.attention.value_length": 16,
    "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6, "qwen3moe.context_length": 512,
    "qwen3moe.rope.freq_base": 10000.0, "qwen3moe.expert_count": 4, "qwen3moe.expert_used_count": 2,
    "qwen3moe.expert_feed_forward_length": 32, "tokenizer.ggml.eos_token_id": 257,
}  # fmt: skip
MIXED = {"q": "Q4_K", "k": "Q5_K", "v": "Q6_K", "output": "Q4_K", "gate": "Q5_0", "up": "Q5_1", "down": "Q8_0"}
SECOND = {"q": "Q4_1", "k": "Q4_0", "v": "Q4_0", "output": "F16", "gate": "Q4_0", "up": "Q4_0", "down": "Q5_K"}
HF = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


class Model:
    """Tensors of a file, and those of the plain model they mean."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.plain: dict[str, torch.Tensor] = {}

    def add(self, name: str, plain: str, kind: str, *shape: int) -> torch.Tensor:
        seed = len(self.tensors)
        if kind in ("F32", "F16"):
            dtype = np.float32 if kind == "F32" else np.float16
            middle = 1.0 if len(shape) == 1 else 0.0
            data = np.random.default_rng(seed).normal(middle, 0.1, shape).astype(dtype)
            values = torch.from_numpy(data.astype(np.float32))
        else:
            data = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1], seed)
            values = torch.from_numpy(golden(kind, data)).reshape(shape)
        self.tensors[name] = (kind, shape, data)
        self.plain[plain] = values
        return values


def llama() -> Model:
    """Two layers of mixed types, q and k interleaved as llama.cpp has them, the table also the head."""
    model = Model()
    model.add("token_embd.weight", "model.embed_tokens.weight", "Q6_K", 320, 256)
    model.add("output_norm.weight", "model.norm.weight", "F32", 256)
    shapes = {"q": (256, 256), "k": (128, 256), "v": (128, 256), "output": (256, 256)}
    shapes |= {"gate": (512, 256), "up": (512, 256), "down": (256, 512)}
    for layer, kinds in enumerate((MIXED, SECOND)):
        stored, plain = f"blk.{layer}", f"model.layers.{layer}"
        model.add(f"{stored}.attn_norm.weight", f"{plain}.input_layernorm.weight", "F32", 256)
        model.add(f"{stored}.ffn_norm.weight", f"{plain}.post_attention_layernorm.weight", "F32", 256)
        for part, shape in shapes.items():
            place_ = "ffn" if part in ("gate", "up", "down") else "attn"
            name = f"{plain}.{HF[part]}.weight"
            values = model.add(f"{stored}.{place_}_{part}.weight", name, kinds[part], *shape)
            if part in "qk":
                pairs = values.reshape(-1, 32, 2, 256)  # head, pair, which of it
                model.plain[name] = pairs.transpose(1, 2).reshape(shape).clone()
    return model


def llama_with_a_head() -> Model:
    model = llama()
    model.add("output.weight", "lm_head.weight", "Q8_0", 320, 256)
    return model


def qwen3_moe() -> Model:
    model = Model()
    model.add("token_embd.weight", "model.embed_tokens.weight", "F16", 320, 64)
    model.add("output.weight", "lm_head.weight", "Q8_0", 320, 64)
    model.add("output_norm.weight", "model.norm.weight", "F32", 64)
    for layer in range(2):
        stored, plain = f"blk.{layer}", f"model.layers.{layer}"
        for name, target, size in (
            ("attn_norm", "input_layernorm", 64), ("ffn_norm", "post_attention_layernorm", 64),
            ("attn_q_norm", "self_attn.q_norm", 16), ("attn_k_norm", "self_attn.k_norm", 16),
        ):  # fmt: skip
            model.add(f"{stored}.{name}.weight", f"{plain}.{target}.weight", "F32", size)
        for part, rows in (("q", 64), ("k", 32), ("v", 32), ("output", 64)):
            model.add(f"{stored}.attn_{part}.weight", f"{plain}.{HF[part]}.weight", "Q8_0", rows, 64)
        model.add(f"{stored}.ffn_gate_inp.weight", f"{plain}.mlp.gate.weight", "F32", 4, 64)
        for part, shape in (("gate", (4, 32, 64)), ("up", (4, 32, 64)), ("down", (4, 64, 32))):
            stack = model.add(f"{stored}.ffn_{part}_exps.weight", "stack", "Q4_0" if layer else "Q8_0", *shape)
            for expert, values in enumerate(stack):
                model.plain[f"{plain}.mlp.experts.{expert}.{part}_proj.weight"] = values.clone()
            del model.plain["stack"]
    return model


def answer(model: Path, **options: Any) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with LLM(str(model), dtype="float32", skip_tokenizer_init=True, reference_ops=True, **options) as llm:
        (output,) = llm.generate([{"prompt_token_ids": list(range(20, 60))}], params)
    return tuple(output.outputs[0].token_ids)


@pytest.mark.parametrize(("metadata", "make_model"), [(LLAMA, llama), (QWEN3_MOE, qwen3_moe)])
def test_a_file_answers_like_the_plain_model_it_means(
    metadata: dict[str, Any], make_model: Callable[[], Model], tmp_path: Path, write_gguf: Write
) -> None:
    model, plain = make_model(), tmp_path / "plain"
    file = write_gguf(tmp_path / "model.gguf", metadata, model.tensors)
    plain.mkdir()
    save_file(model.plain, plain / "model.safetensors")
    read = config.read_config(read_gguf(file))
    read.pop("quantization_config")
    (plain / "config.json").write_text(json.dumps({**read, "dtype": "float32"}))
    assert answer(file) == answer(plain)
    assert len(answer(file, load_format="dummy")) == 12


def test_every_tensor_of_a_file_means_what_it_should(tmp_path: Path, write_gguf: Write) -> None:
    model = llama()
    source = open_source(prepare(str(write_gguf(tmp_path / "m.gguf", LLAMA, model.tensors))))
    names = {name.rpartition(".")[0] for name in source.tensors()}
    assert names == {name.removesuffix(".weight") for name in model.plain}
    for name, info in source.tensors().items():
        if name.endswith(".weight"):
            assert torch.equal(source.read(name, 0, info.shape[0]).float(), model.plain[name])
            assert torch.equal(source.read(name, 3, 40).float(), model.plain[name][3:40])
    q = "model.layers.0.self_attn.q_proj"
    whole = source.read(f"{q}.codes", 0, 256)
    assert torch.equal(torch.cat([source.read(f"{q}.codes", n, n + 60)[:37] for n in (0, 37)]), whole[:74])
    source.close()


@pytest.mark.parametrize("platform", [None, "cpu"])
@pytest.mark.parametrize("make_model", [llama, llama_with_a_head])
def test_embeddings_are_read_from_the_stored_table_alone(
    make_model: Callable[[], Model], platform: str | None, tmp_path: Path, write_gguf: Write
) -> None:
    """Of a file whose table is the head, and of one that has a head; rows have the bits of the decoded numbers."""
    model, catalog = make_model(), catalog_of(lsv_quant.plugin, lsv_models.plugin, lsv_cpu.plugin)
    folder = Path(prepare(str(write_gguf(tmp_path / "m.gguf", LLAMA, model.tensors))))
    config = engine_config(folder, "llama", dtype="bfloat16", quantization="gguf")
    declared = load(config, catalog) if platform is None else load_bound(config, catalog, platform)[0]
    embed: Any = declared.model.embed
    head: Any = declared.model.head
    assert (head.linear is embed.table) == ("output.weight" not in model.tensors)
    ids = torch.tensor([0, 319, 5, 5])
    assert torch.equal(embed(ids, None), model.plain["model.embed_tokens.weight"][ids].bfloat16())
    tensors = [*embed.parameters(), *embed.buffers()]
    assert sum(one.nbytes for one in tensors if not one.is_meta) < 320 * 256 * 1.4  # Q6_K has scales of 16 weights


def test_a_file_in_parts_and_a_folder_of_one_model(tmp_path: Path, write_gguf: Write) -> None:
    model, folder = llama(), tmp_path / "folder"
    folder.mkdir()
    names = list(model.tensors)
    for number, part in enumerate((names[:9], names[9:])):
        write_gguf(
            folder / f"m-0000{number + 1}-of-00002.gguf",
            (LLAMA if number == 0 else {}) | {"split.no": number, "split.tensors.count": len(names)},
            {name: model.tensors[name] for name in part},
        )
    catalog = catalog_of(lsv_quant.plugin)
    made = locate_model(str(folder), catalog)
    assert made == locate_model(str(folder / "m-00002-of-00002.gguf"), catalog) == locate_model(str(made), catalog)
    assert len(open_source(str(made)).tensors()) > len(names)
    (folder / "m-00002-of-00002.gguf").rename(folder / "other.gguf")
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf is not beside it"):
        locate_model(str(folder / "m-00001-of-00002.gguf"), catalog)
    (folder / "m-00001-of-00002.gguf").rename(folder / "one.gguf")
    with pytest.raises(CheckpointError, match=r"name one of them: one.gguf, other.gguf"):
        locate_model(str(folder), catalog)


def test_the_file_of_a_tower_is_passed_over(tmp_path: Path, write_gguf: Write) -> None:
    model, folder = llama(), tmp_path / "folder"
    folder.mkdir()
    own = write_gguf(folder / "m-Q8_0.gguf", LLAMA, model.tensors)
    write_gguf(folder / "mmproj-m-F16.gguf", {"general.architecture": "clip"}, {})
    catalog = catalog_of(lsv_quant.plugin)
    assert locate_model(str(folder), catalog) == locate_model(str(own), catalog)


def test_inputs_are_cut_between_groups(tmp_path: Path, write_gguf: Write) -> None:
    model = llama()
    made = prepare(str(write_gguf(tmp_path / "m.gguf", LLAMA, model.tensors)))
    method = json.loads((Path(made) / "config.json").read_text())["quantization_config"]
    name = "model.layers.1.mlp.down_proj"
    found = []
    for rank in range(4):  # within the 256 weights of a block
        w = place(quantizer=make(method), rank=rank, size=4)
        reads = w.shard.split(512, "inputs")
        row = fill_module(Row(w, name, 512, 256, reads=reads), w, only(open_source(made), name))
        found.append(row.linear.weight())  # type: ignore[operator]
    assert torch.equal(torch.cat(found, dim=1), model.plain[f"{name}.weight"])


def only(source: Any, layer: str) -> Any:
    """A source that shows one layer's tensors."""
    source._infos = {name: info for name, info in source.tensors().items() if name.startswith(f"{layer}.")}
    return source


def changed(metadata: dict[str, Any], model: Model) -> dict[str, tuple[Callable[[], None], str]]:
    tensors = model.tensors
    rows = random_blocks("Q4_K", 320, 256)
    scaling = {"llama.rope.scaling.type": "su", "llama.rope.scaling.factor": 2.0}

    def retype(kind: str) -> None:
        tensors["token_embd.weight"] = (kind, (320, 256), rows)

    return {
        "a type": (lambda: retype("IQ2_XS"), "token_embd.weight is of type IQ2_XS; what can be read is F32"),
        "another type": (lambda: retype("TQ1_0"), "token_embd.weight is of type TQ1_0"),
        "a third type": (lambda: retype("IQ3_S"), "token_embd.weight is of type IQ3_S"),
        "a tower": (lambda: metadata.update({"general.architecture": "clip"}), "tower of a model that takes media"),
        "an architecture": (lambda: metadata.update({"general.architecture": "mamba"}), "architecture 'mamba'"),
        "a key": (lambda: metadata.update({"llama.logit_scale": 2.0}), "llama.logit_scale = 2.0"),
        "a missing key": (lambda: void(metadata.pop("llama.context_length")), "llama.context_length must be int"),
        "a tensor": (lambda: tensors.update({"blk.0.ffn_norm_2.weight": tensors["output_norm.weight"]}), "no place"),
        "no table": (lambda: void(tensors.pop("token_embd.weight")), "has no token_embd.weight"),
        "scaling": (lambda: metadata.update(scaling), "rope.scaling.type is 'su'"),
        "heads": (lambda: metadata.update({"llama.rope.dimension_count": 32}), "rope.dimension_count is 32"),
        "a magnitude": (lambda: metadata.update({"llama.rope.scaling.attn_factor": 1.5}), "attn_factor is 1.5"),
    }  # fmt: skip


def void(_: object) -> None:
    """Nothing."""


@pytest.mark.parametrize("case", list(changed({}, Model())))
def test_what_cannot_be_honoured_is_refused(case: str, tmp_path: Path, write_gguf: Write) -> None:
    metadata, model = dict(LLAMA), llama()
    change, message = changed(metadata, model)[case]
    change()
    with pytest.raises(CheckpointError, match=message):
        prepare(str(write_gguf(tmp_path / "m.gguf", metadata, model.tensors)))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_damaged_files_are_refused(tmp_path: Path, write_gguf: Write) -> None:
    file = write_gguf(tmp_path / "m.gguf", LLAMA, llama().tensors)
    data = file.read_bytes()
    for count, message in ((len(data) - 9, "is cut short"), (200, "cut short|damaged"), (2, "damaged")):
        file.write_bytes(data[:count])
        with pytest.raises(CheckpointError, match=message):
            prepare(str(file))
    file.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.1.attn_k.weight"))
    with pytest.raises(CheckpointError, match=r"it has blk.1.attn_k.weight twice"):
        prepare(str(file))
    file.write_bytes(b"GGUX" + data[4:])
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        prepare(str(file))
    file.write_bytes(data[:4] + b"\0\0\0\3" + data[8:])
    with pytest.raises(CheckpointError, match="little endian"):
        prepare(str(file))


def test_the_magnitude_of_yarn_is_read(tmp_path: Path, write_gguf: Write) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "attn_factor": 1.5}
    metadata = LLAMA | {f"llama.rope.scaling.{name}": value for name, value in yarn.items()}
    found = config.read_config(read_gguf(write_gguf(tmp_path / "m.gguf", metadata, llama().tensors)))
    assert found["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "attn_factor": 1.5}


def test_the_scaling_of_llama_3_is_read_from_its_factors(tmp_path: Path, write_gguf: Write) -> None:
    model = llama()
    wanted = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    frequencies = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    lengths = 2 * np.pi / frequencies
    smooth = (8192 / lengths - 1) / 3
    middle = 1 / ((1 - smooth) / 8 + smooth)
    factors = np.where(lengths < 8192 / 4, 1.0, np.where(lengths > 8192, 8.0, middle)).astype(np.float32)
    metadata = {**LLAMA, "llama.rope.freq_base": 500000.0}
    tensors = {**model.tensors, "rope_freqs.weight": ("F32", (32,), factors)}
    found = config.read_config(read_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors)))
    assert found["rope_scaling"] == wanted
    tensors["rope_freqs.weight"] = ("F32", (32,), factors * factors)
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight is not the scaling of Llama 3.1"):
        config.read_config(read_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors)))


def test_the_format_of_a_folder_without_its_files(tmp_path: Path) -> None:
    catalog = catalog_of(lsv_quant.plugin)
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"load_format gguf: .* give a file \*\.gguf as the model, or leave"):
        check_load_format("gguf", tmp_path, catalog)
    (tmp_path / "gguf.json").write_text("{}")
    assert check_load_format("gguf", tmp_path, catalog) == "gguf"
