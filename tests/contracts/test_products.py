"""Modules multiply through ``lsv_runtime.products``, which keeps rows independent. Only float32 products need not."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {
    *(f"torch.{name}" for name in ("matmul", "bmm", "mm", "addmm", "baddbmm", "einsum")),
    *(f"functional.{name}" for name in ("linear", "scaled_dot_product_attention", "conv1d", "conv2d", "conv3d")),
}
NAMES = {name.partition(".")[2] for name in PLAIN}
FLOAT32 = (
    "plugins/runtime/lsv_runtime/adapters/magnitudes.py",
    "plugins/runtime/lsv_runtime/adapters/vocabulary.py",
    "plugins/runtime/lsv_runtime/attention/chosen.py",
    "plugins/runtime/lsv_runtime/nn/recurrent/",
    "plugins/runtime/lsv_runtime/attention/dense.py",
    "plugins/runtime/lsv_runtime/emulation/",
    "plugins/testing/",
    "plugins/runtime/lsv_runtime/weights/codebook.py",
    "plugins/runtime/lsv_runtime/worker/load/dense.py",
    "plugins/cpu/lsv_cpu/reference.py",
    "plugins/demo/lsv_demo/senses/inputs.py",
    "plugins/doctor/lsv_doctor/measure.py",
    "plugins/doctor/lsv_doctor/models/trials/adapters.py",
    "plugins/hpu/lsv_hpu/attention/flat.py",
    "plugins/hpu/lsv_hpu/emulation/ops.py",
    "plugins/hpu/lsv_hpu/formats/neural_compressor.py",
    "plugins/models/lsv_models/generic/scores.py",
    "plugins/models/lsv_models/seq2seq/prophetnet.py",
    "plugins/multimodal/lsv_multimodal/families/whisper/audio.py",
    "plugins/quant/lsv_quant/conversion/observation.py",
    "plugins/quant/lsv_quant/rounding.py",
    "plugins/torch/lsv_torch/",
    "plugins/triton/lsv_triton/attention/torch_backend.py",
    "plugins/triton/lsv_triton/layers/lora.py",
    "plugins/xpu/lsv_xpu/emulation/",
    "plugins/xpu/lsv_xpu/int4_weights.py",
)
"""Products of float32 or integers, or without data of requests."""


def products(text: str) -> Iterator[int]:
    """The lines that call torch's products."""
    for node in ast.walk(ast.parse(text)):
        called = isinstance(node, ast.Attribute) and node.attr in NAMES and ast.unparse(node) in PLAIN
        if called or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
            yield node.lineno


def test_rows_are_kept_apart() -> None:
    files = [file for folder in ("core", "plugins", "webui") for file in sorted((ROOT / folder).rglob("*.py"))]
    names = {file.relative_to(ROOT).as_posix(): file for file in files}
    multiply = {name: lines for name, file in names.items() if (lines := list(products(file.read_text("utf-8"))))}
    unknown = {name: lines for name, lines in multiply.items() if not name.startswith(FLOAT32)}
    assert set(unknown) == {"plugins/runtime/lsv_runtime/products.py"}, (
        "use lsv_runtime.products, or add the file to FLOAT32 if that is its dtype"
    )
    assert [one for one in FLOAT32 if not any(name.startswith(one) for name in multiply)] == []


def test_products_are_seen() -> None:
    assert list(products("y = a @ b\nz = torch.einsum('ij,jk->ik', a, b)\nw = functional.linear(x, w)\nv = a * b")) == [
        1,
        2,
        3,
    ]
