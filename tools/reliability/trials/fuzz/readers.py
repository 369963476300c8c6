"""Targets: the readers of checkpoints, in a folder of their own as a model's author would have left it."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import lsv_demo
from lsv import plugins
from lsv.plugins import Plugins
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv.text.tokenizer import Tokenizer
from lsv_quant.gguf.config import read_config, read_generation
from lsv_quant.gguf.file import read_gguf
from lsv_quant.gguf.source import GgufSource
from lsv_quant.gguf.tokenizer import write_tokenizer
from lsv_runtime.nn.rope import Rope, frequencies
from lsv_runtime.weights.checkpoint import CheckpointSource, SafetensorsSource
from lsv_runtime.worker.load.declared import declare
from lsv_testing.tiny import tiny
from trials.fuzz.gguf_seed import METADATA, TENSORS, make_gguf, mutate_gguf
from trials.fuzz.mutate import framed_json, mutate_json
from trials.fuzz.target import Read, Target

_DEMO = Path(lsv_demo.__file__).parent / "checkpoint"
_FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "llava", "qwen2_vl")
_TEXT = "Hello, what is 3 plus 4? Ünïcode 日本語 😀"
_MOST_ROWS, _POSITIONS = 4, 128
_CODED = (
    {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "dynamic": {"-:.*x": {}}},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
        }}},
    },
)  # fmt: skip


def _read_rows(source: CheckpointSource) -> None:
    """The first rows of each tensor, as loading begins to."""
    try:
        for name, info in source.tensors().items():
            source.read(name, 0, min(_MOST_ROWS, info.shape[0]) if info.shape else 1)
    finally:
        source.close()


def _read_safetensors(folder: Path) -> Read:
    def read(data: bytes) -> None:
        (folder / "model.safetensors").write_bytes(data)
        _read_rows(SafetensorsSource(folder))

    return read


def _safetensors() -> Sequence[bytes]:
    head = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "b.weight": {"dtype": "F32", "shape": [4], "data_offsets": [64, 80]},
        "c": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [80, 81]},
    }
    text = json.dumps(head).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(81)]


def _read_index(folder: Path) -> Read:
    (folder / "model.safetensors").write_bytes(_safetensors()[0])

    def read(data: bytes) -> None:
        (folder / "model.safetensors.index.json").write_bytes(data)
        _read_rows(SafetensorsSource(folder))

    return read


def _index() -> Sequence[bytes]:
    names = dict.fromkeys(("a.weight", "b.weight", "c"), "model.safetensors")
    return [json.dumps({"metadata": {"total_size": 81}, "weight_map": names}).encode()]


def _read_gguf(folder: Path) -> Read:
    """As ``prepare`` and loading read a file."""
    file = folder / "model.gguf"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        found = read_gguf(file)
        read_config(found)
        read_generation(found.metadata)
        (folder / "tokenizer.json").unlink(missing_ok=True)
        write_tokenizer(found.metadata, folder)
        _read_rows(GgufSource(found))
        Tokenizer.load(folder)

    return read


class _Configs:
    """config.json, from its bytes to the model on meta."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plugins: Plugins = plugins.load(["core", "cpu", "models", "quant", "demo", "multimodal"])
        self._declared = Declared(options.for_scope("engine", self._plugins.settings()))

    def read(self, data: bytes) -> None:
        (self._folder / "config.json").write_bytes(data)
        given = parse(["--model", str(self._folder)], self._declared).given
        config = resolve(gather(self._declared, given), self._plugins)
        for module in declare(config, self._plugins.catalog).model.modules():
            if isinstance(module, Rope):
                frequencies(module.rope, min(module.max_len, _POSITIONS))


def _configs() -> Sequence[bytes]:
    """lsv-demo's, and those of tiny models of other families."""
    found = [(_DEMO / "config.json").read_bytes()]
    for family in _FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found.append((tiny(family, folder) / "config.json").read_bytes())
    plain = json.loads(found[1])
    return [*found, *(json.dumps({**plain, "quantization_config": coded}).encode() for coded in _CODED)]


def _tokenizer_reader(name: str) -> Callable[[Path], Read]:
    """Reads a tokenizer's folder in which the file ``name`` is damaged, and uses what it read."""

    def reader(folder: Path) -> Read:
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copyfile(_DEMO / file, folder / file)

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            tokenizer = Tokenizer.load(folder)
            tokenizer.decode(tokenizer.encode(_TEXT)[:20])
            tokenizer.token_text(5)
            if tokenizer.has_chat_template:
                tokenizer.render_chat([{"role": "user", "content": "x"}])

        return read

    return reader


def _files(name: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [(_DEMO / name).read_bytes()]


READERS = (
    Target("safetensors", _safetensors, framed_json, _read_safetensors),
    Target("safetensors-index", _index, mutate_json, _read_index),
    Target("gguf", lambda: [make_gguf(METADATA, TENSORS)], mutate_gguf, _read_gguf),
    Target("config", _configs, mutate_json, lambda folder: _Configs(folder).read),
    *(
        Target(name.partition(".")[0], _files(name), mutate_json, _tokenizer_reader(name))
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    ),
)
