"""A small whole model as a GGUF file, written from the format's specification."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from trials.fuzz.mutate import mutate_bytes, mutate_tree

_F32, _Q8_0 = 0, 8
_HIDDEN, _WORDS = 32, 40
_MOST_BYTES = 1 << 16
METADATA: Mapping[str, Any] = {
    "general.architecture": "llama", "general.alignment": 32,
    "llama.block_count": 1, "llama.embedding_length": _HIDDEN, "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1, "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "▁a", "a", *(f"<0x{n:02X}>" for n in range(_WORDS - 6))],
    "tokenizer.ggml.scores": [-float(number) for number in range(_WORDS)],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, *[6] * (_WORDS - 6)],
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}  # fmt: skip
TENSORS: Mapping[str, tuple[int, ...]] = {
    "token_embd.weight": (_WORDS, _HIDDEN), "output_norm.weight": (_HIDDEN,), "output.weight": (_WORDS, _HIDDEN),
    "blk.0.attn_norm.weight": (_HIDDEN,), "blk.0.ffn_norm.weight": (_HIDDEN,),
    "blk.0.attn_q.weight": (32, _HIDDEN), "blk.0.attn_k.weight": (16, _HIDDEN), "blk.0.attn_v.weight": (16, _HIDDEN),
    "blk.0.attn_output.weight": (_HIDDEN, 32), "blk.0.ffn_gate.weight": (64, _HIDDEN),
    "blk.0.ffn_up.weight": (64, _HIDDEN), "blk.0.ffn_down.weight": (_HIDDEN, 64),
}  # fmt: skip
"""Shapes with rows first: vectors in float32, matrices in Q8_0, 34 bytes for 32 numbers."""


def make_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> bytes:
    """A file of these; of tensors that are no shapes only what can be written."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = _typed(value)
        head += _text(key) + struct.pack("<I", kind) + data
    size = 0
    for name, shape in tensors.items():
        axes = [axis % (1 << 64) for axis in shape if isinstance(axis, int)] if isinstance(shape, Sequence) else []
        kind = _F32 if len(axes) == 1 else _Q8_0
        head += _text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes[::-1], kind, size)
        size += min(_MOST_BYTES, 4 * axes[0] if len(axes) == 1 else math.prod(axes) // 32 * 34)
        size += -size % 32
    return head + bytes(-len(head) % 32) + bytes(size)


def mutate_gguf(data: bytes, rng: Random) -> bytes:
    """Bytes of a file changed, or keys and shapes before one is written."""
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    metadata, tensors = METADATA, TENSORS
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.7:
            metadata = mutate_tree(metadata, rng)
        else:
            tensors = mutate_tree(tensors, rng)
    if not isinstance(metadata, dict) or not isinstance(tensors, dict):
        return mutate_bytes(data, rng)
    return make_gguf(metadata, tensors)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> tuple[int, bytes]:
    """The number of a type, and a value of it."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if 0 <= value < 1 << 32 else (11, struct.pack("<q", _signed(value)))
    if isinstance(value, float):
        return 12, struct.pack("<d", value)
    if isinstance(value, str):
        return 8, _text(value)
    if not isinstance(value, list) or not value:
        return 9, struct.pack("<IQ", 4, 0)
    items = [_typed(item) for item in value]
    return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
