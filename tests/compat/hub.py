"""A cache of the Hub in which published names stand for tiny checkpoints, so that examples run as they were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, processors

import lsv_demo
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_quant.gguf import tokenizer as gguf
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.quantised import write_quantised
from lsv_testing.tiny import SHAPE, draw_weights, tiny, write_tokenizer
from trials.fuzz.gguf_seed import METADATA, TENSORS, make_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DEMO = Path(lsv_demo.__file__).parent

Write = Callable[[Path], object]


def fill(hub: Path, names: tuple[str, ...]) -> None:
    """Write the repositories of these names into the folder ``hub``, as the Hub's own library keeps them."""
    for name in names:
        place = hub / f"models--{name.replace('/', '--')}"
        snapshot = place / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)
        REPOSITORIES[name](snapshot)


def _copy(source: Path, folder: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            target = folder / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file)


_language = partial(tiny, tokenizer=True, max_position_embeddings=1024)


def _adapter(folder: Path) -> None:
    """Of the layers of a tiny Llama."""
    plain = tiny("llama", folder.parent / "plain")
    write_adapter(folder, plain, list(linear_layers(plain)))


def _awq(layer: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    outputs, inputs = weight.shape
    if layer == "lm_head":
        return None
    groups = inputs // 32
    packed = {
        "qweight": _words(inputs, outputs // 8),
        "qzeros": _words(groups, outputs // 8),
        "scales": torch.full((groups, outputs), 0.02, dtype=torch.float16),
    }
    return packed, weight


def _gptq(layer: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    outputs, inputs = weight.shape
    if layer == "lm_head":
        return None
    groups = inputs // 32
    packed = {
        "qweight": _words(inputs // 8, outputs),
        "qzeros": _words(groups, outputs // 8),
        "scales": torch.full((groups, outputs), 0.02, dtype=torch.float16),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // 32,
    }
    return packed, weight


def _words(*shape: int) -> torch.Tensor:
    """Eight random codes in each."""
    return torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int64).int()


def _quantised(config: Mapping[str, Any], pack: Any, folder: Path) -> None:
    made = folder.parent / "made"
    made.mkdir()
    packed, _ = write_quantised("llama", made, config, pack, max_position_embeddings=1024)
    write_tokenizer(packed)
    _copy(packed, folder)


def _bart(folder: Path) -> None:
    save(make_model(transformers.BartForConditionalGeneration, tiny_config("bart")), folder)
    write_tokenizer(folder)


def _classifier(family: str, labels: int, folder: Path, **keys: Any) -> None:
    torch.manual_seed(0)
    usual = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
    config = transformers.CONFIG_MAPPING[family](**{**usual, "num_labels": labels, **keys})
    model = transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    draw_weights(model, 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder)


def _cross_encoder(folder: Path) -> None:
    _classifier("xlm-roberta", 1, folder, type_vocab_size=1, pad_token_id=1)
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.post_processor = processors.BertProcessing(("<eos>", 257), ("<bos>", 256))
    tokenizer.save(file)


def _tiny_llama(folder: Path) -> None:
    """With the tokenizer of the GGUF file."""
    tiny("llama", folder, vocab_size=40, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    gguf.write_tokenizer(METADATA, folder)


def _gguf(folder: Path) -> None:
    metadata = {**METADATA, "llama.context_length": 1024}
    (folder / "tinyllama-1.1b-chat-v1.0.Q4_0.gguf").write_bytes(make_gguf(metadata, TENSORS))


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
_demo = partial(_copy, DEMO / "checkpoint")

REPOSITORIES: Mapping[str, Write] = {
    "BAAI/bge-reranker-v2-m3": _cross_encoder,
    "Qwen/Qwen2.5-0.5B-Instruct": _demo,
    "Qwen/Qwen2.5-3B-Instruct": _demo,
    "TheBloke/TinyLlama-1.1B-Chat-v0.3-AWQ": partial(_quantised, _AWQ, _awq),
    "TheBloke/TinyLlama-1.1B-Chat-v0.3-GPTQ": partial(_quantised, _GPTQ, _gptq),
    "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF": _gguf,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _tiny_llama,
    "facebook/bart-large-cnn": _bart,
    "facebook/opt-125m": partial(_language, "opt"),
    "huggyllama/llama-7b": partial(_language, "llama"),
    "ibm-fms/llama-13b-accelerator": partial(_copy, DEMO / "speculator"),
    "intfloat/e5-mistral-7b-instruct": partial(_language, "mistral"),
    "jashing/tinyllama-colorist-lora": _adapter,
    "jason9693/Qwen2.5-1.5B-apeach": partial(_classifier, "qwen2", 3, num_key_value_heads=2),
    "llava-hf/llava-1.5-7b-hf": partial(tiny, "llava", tokenizer=True, text_config={"max_position_embeddings": 4096}),
    "meta-llama/Llama-2-13b-chat-hf": _demo,
    "meta-llama/Llama-2-7b-hf": partial(_language, "llama"),
    "meta-llama/Meta-Llama-3-8B-Instruct": _demo,
    "timdettmers/qlora-flan-7b": _adapter,
    "yard1/llama-2-7b-sql-lora-test": _adapter,
}
