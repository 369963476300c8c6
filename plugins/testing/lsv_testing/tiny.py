"""Tiny checkpoints with random weights, of any architecture transformers knows: safetensors, config, tokenizer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsv_testing.tiny_seeing import SEEING, Seeing, write_image_processor

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import nn

SHAPE: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
_MOE: Mapping[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}
# what SHAPE says of keys is for families that choose their number
_ALL_KEYS: Mapping[str, Any] = {"num_key_value_heads": 4}
_NARROW: Mapping[str, Any] = {**_ALL_KEYS, "n_inner": 96}
_FOUR_FOLD: Mapping[str, Any] = {**_ALL_KEYS, "intermediate_size": 256}
_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 24, "head_dim": 16},
    "mixtral": {**_MOE, "sliding_window": None},
    "qwen3_moe": {
        "num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16,
        "norm_topk_prob": True, "mlp_only_layers": [1],
    },
    "gpt2": _NARROW,
    "gpt_bigcode": {"n_inner": 96, "num_key_value_heads": 1},
    "gptj": {**_NARROW, "rotary_dim": 8},
    "codegen": {**_NARROW, "rotary_dim": 8},
    "gpt_neox": _ALL_KEYS,
    "gpt_neo": {**_ALL_KEYS, "attention_types": [[["global", "local"], 1]], "window_size": 9},
    "opt": {**_ALL_KEYS, "ffn_dim": 96},
    "bloom": _FOUR_FOLD,
    "mpt": _FOUR_FOLD,
    "falcon": {"ffn_hidden_size": 96, "num_key_value_heads": 1, "num_kv_heads": 1},
    "persimmon": _ALL_KEYS,
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"logit_scale": 0.5, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},
}  # fmt: skip
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
BYTE_VOCABULARY = 256
"""Ids 0 … 255 of the tiny tokenizer are the bytes; 256, 257 and 258 are ``<bos>``, ``<eos>`` and ``<pad>``.
"""


def tiny(
    family: str,
    path: str | Path,
    *,
    seed: int = 0,
    spread: float = 0.2,
    tokenizer: bool = False,
    **shape: Any,
) -> Path:
    """Write a checkpoint of a ``model_type`` (``"llama"``, ``"qwen2"`` …) to the folder ``path`` and return it.

    ``shape`` overrides keys of the config; weights are normal with standard deviation ``spread``, large enough for
    attention and logits to differ visibly between tokens. ``tokenizer`` adds a byte-level ``tokenizer.json``. A family
    that sees comes with its image processor; its ``text_config`` and ``vision_config`` are laid over the tiny ones.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, content in _make(family, seed, spread, tokenizer, json.dumps(shape)).items():
        (path / name).write_bytes(content)
    return path


@lru_cache(maxsize=16)
def _make(family: str, seed: int, spread: float, tokenizer: bool, shape: str) -> Mapping[str, bytes]:
    """The files of a checkpoint: tests that differ in other things ask for the same one again and again."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    seeing = SEEING.get(family)
    config = CONFIG_MAPPING[family](**_keys(family, seeing, json.loads(shape)))
    make: Any = (AutoModelForImageTextToText if seeing else AutoModelForCausalLM).from_config
    with torch.random.fork_rng(devices=()), tempfile.TemporaryDirectory() as made:
        torch.manual_seed(seed)
        model = make(config, dtype=torch.float32)
        draw_weights(model, spread)
        model.save_pretrained(made)
        if seeing:
            write_image_processor(seeing, Path(made))
        if tokenizer:
            write_tokenizer(Path(made), seeing)
        return {file.name: file.read_bytes() for file in Path(made).iterdir()}


def draw_weights(model: nn.Module, spread: float) -> None:
    """Norms stay near one, biases and matrices near zero; what can't be trained (a table of sines) stays."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        mean = 1.0 if parameter.ndim == 1 and not name.endswith("bias") else 0.0
        parameter.data.normal_(mean, spread)


def _keys(family: str, seeing: Seeing | None, shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a tiny config.json."""
    if seeing is None:
        return {**SHAPE, **_FAMILIES.get(family, {}), **shape}
    text = shape.get("text_config", {})
    kind = text.get("model_type", seeing.language)
    laid = {"model_type": kind, **SHAPE, **_FAMILIES.get(kind, {}), **seeing.text, **text}
    keys = {**seeing.config, **shape, "text_config": laid}
    vision = {**seeing.config.get("vision_config", {}), **shape.get("vision_config", {})}
    return {**keys, "vision_config": vision} if vision else keys


def write_tokenizer(path: Path, seeing: Seeing | None = None, more: Sequence[str] = ()) -> None:
    """tokenizer.json and its settings; ``more`` are special tokens behind the others."""
    from tokenizers import AddedToken

    tokenizer = bytes_tokenizer()
    specials = ("<bos>", "<eos>", "<pad>", *(seeing.specials if seeing else ()), *more)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": seeing.template if seeing else _TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def bytes_tokenizer() -> Tokenizer:
    """Byte-level, without merges: every byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = _byte_characters()
    tokenizer = Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(BYTE_VOCABULARY)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (Radford et al. 2019): itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, spare = [], 0x100
    for byte in range(BYTE_VOCABULARY):
        characters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return characters
