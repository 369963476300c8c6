"""A GGUF file's metadata as config.json and generation_config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_quant.gguf.architecture import Architecture, Config
from lsv_quant.gguf.ends import read_ends
from lsv_quant.gguf.file import GgufFile, StoredBlocks
from lsv_quant.gguf.layout import TABLE, architecture_of, forms, places
from lsv_quant.gguf.metadata import Metadata
from lsv_quant.gguf.ropes import read_rope
from lsv_quant.gguf.types import TYPES

_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


LLAMA_CPP_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""How llama.cpp samples by default, which GGUF files are made and tried with."""
_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def read_config(file: GgufFile) -> Config:
    """config.json for a file. Raises ``CheckpointError`` for a model that can't be described or run."""
    architecture, keys = architecture_of(file), Metadata(file.metadata)
    given = {key: keys.peek(key, kind) for key, (_, kind) in architecture.keys.items() if keys.has(key)}
    config = _read_common(keys, architecture, file)
    if architecture.rope:
        config |= read_rope(keys, architecture, file, config.get("head_dim", 0))
    for key, value in given.items():
        keys.skip(key)
        name = architecture.keys[key][0]
        for own, content in ({name: value} if isinstance(name, str) else name(value, config)).items():
            _put(config, own, content)
    keys.skip("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "nextn_predict_layers")
    keys.finish()
    return config | read_generation(file.metadata) | _types(file)


def _read_common(keys: Metadata, architecture: Architecture, file: GgufFile) -> Config:
    """What all decoders have."""
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    config: Config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": _table(file).shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": keys.take("block_count", int) - keys.peek("nextn_predict_layers", int, 0),
        "intermediate_size": keys.take("feed_forward_length", int, 0) or hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.take("attention.head_count_kv", int, heads),
        "max_position_embeddings": keys.take("context_length", int),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_read_norms(keys),
        **(_read_latent(keys, heads) if architecture.latent else _read_head_size(keys, hidden // heads)),
        **{name: _is_there(file, tensors) for name, tensors in architecture.there.items()},
    }
    for name, value in architecture.fixed.items():
        if not name.startswith("rope_scaling."):
            _put(config, name, value)
    return {name: value for name, value in config.items() if name not in architecture.without}


def _read_norms(keys: Metadata) -> Config:
    """Families have one epsilon or the other; some files have both."""
    names = {"attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.layer_norm_epsilon": "layer_norm_eps"}
    found = {own: keys.take(key, float) for key, own in names.items() if keys.has(key)}
    return {"rms_norm_eps": found["rms_norm_eps"]} if "rms_norm_eps" in found else found


def _read_head_size(keys: Metadata, usual: int) -> Config:
    size = keys.take("attention.key_length", int, usual)
    values = keys.take("attention.value_length", int, size)
    if values != size:
        raise CheckpointError(
            f"attention.value_length is {values}, and heads have {size}: models here have both alike", param="model"
        )
    return {"head_dim": size}


def _read_latent(keys: Metadata, heads: int) -> Config:
    """Heads of latent attention; newer files say of what is cached how wide it is, and of heads under other names."""
    rotated = keys.peek("rope.dimension_count", int)
    size, values = keys.take("attention.key_length", int), keys.take("attention.value_length", int)
    size, values = (
        keys.take("attention.key_length_mla", int, size),
        keys.take("attention.value_length_mla", int, values),
    )
    ranks = {"kv_lora_rank": keys.take("attention.kv_lora_rank", int)}
    if keys.has("attention.q_lora_rank"):
        ranks["q_lora_rank"] = keys.take("attention.q_lora_rank", int)
    return {
        **ranks, "num_key_value_heads": heads, "qk_nope_head_dim": size - rotated, "qk_rope_head_dim": rotated,
        "v_head_dim": values,
    }  # fmt: skip


def _is_there(file: GgufFile, tensors: str) -> bool:
    """Whether a file has one of several tensors in its first layer, or outside all layers."""
    return any(name in file.tensors or f"blk.0.{name}" in file.tensors for name in tensors.split("|"))


def _put(config: Config, name: str, value: Any) -> None:
    """Set a key; dots are between nested ones."""
    *outer, last = name.split(".")
    for one in outer:
        config = config.setdefault(one, {})
    config[last] = value


def read_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The ids that begin and end texts and turns of a conversation."""
    begin, ends = metadata.get("tokenizer.ggml.bos_token_id"), read_ends(metadata)
    if begin is not None and type(begin) is not int:
        raise CheckpointError(f"the GGUF file's special tokens must be token ids, found {begin!r:.100}", param="model")
    found = {"bos_token_id": begin, "eos_token_id": ends or None}
    return {key: value for key, value in found.items() if value is not None}


def read_sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that chats with the file start from, and who recommends them.

    These are the file's own ``general.sampling.…``, which converters copy from generation_config.json, over
    llama.cpp's defaults. Raises ``CheckpointError`` where they are not numbers.
    """
    own = {name: _read_number(metadata, key) for name, key in _SAMPLING_KEYS.items() if key in metadata}
    missing = [name for name in LLAMA_CPP_SAMPLING if name not in own]
    found: dict[str, Any] = {**LLAMA_CPP_SAMPLING, **own}
    if not own:
        found["sampling_origin"] = "llama.cpp's defaults, because the GGUF file recommends none"
    elif missing:
        found["sampling_origin"] = f"recommended by the GGUF file, {', '.join(missing)} by llama.cpp's defaults"
    else:
        found["sampling_origin"] = "recommended by the GGUF file"
    return found


def _read_number(metadata: Mapping[str, Any], key: str) -> float:
    value = metadata[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"the GGUF file's {key} must be a number, found {value!r:.100}", param="model")
    return value


def _table(file: GgufFile) -> StoredBlocks:
    if TABLE not in file.tensors:
        raise CheckpointError("the GGUF file has no token_embd.weight: it is not a whole model", param="model")
    return file.tensors[TABLE]


def _types(file: GgufFile) -> dict[str, Any]:
    """How weights are held: as codes, or else the dtype of plain matrices."""
    layers = forms(file, places(file))
    if layers:
        return {"quantization_config": {"quant_method": "gguf", "layers": layers}}
    plain = {
        tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1 and TYPES[tensor.type].form is None
    }
    return {"dtype": _DTYPES[plain.pop()]} if len(plain) == 1 else {}
