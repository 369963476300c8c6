"""Converts a Whisper model of CTranslate2, the form that faster-whisper publishes, to a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

Variables = Mapping[str, NDArray[Any]]
Tensors = dict[str, NDArray[Any]]

_VERSION = 6
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_HEAD_DIM = 64
_LANGUAGE_LENGTHS = range(6, 8)
"""The lengths of language tokens, from <|de|> to <|haw|>. Task tokens are longer."""


def convert_whisper(source: Path, target: Path) -> None:
    """Write the model in float32 with its tokenizer. ``source`` has model.bin, config.json and tokenizer.json."""
    variables = read_variables((source / "model.bin").read_bytes())
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = rename(variables)
    model = WhisperForConditionalGeneration(make_config(tensors, settings))
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(values.astype(np.float32)) for name, values in tensors.items()}, strict=False
    )
    if unexpected or missing != ["proj_out.weight"]:  # it is tied to the embedding
        raise ValueError(f"{source} is not the Whisper that was expected: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    tokens = {
        token["content"]: token["id"]
        for token in json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    }
    model.generation_config = make_generation_config(tokens, settings)
    model.save_pretrained(target)
    WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(target)
    shutil.copy(source / "tokenizer.json", target)
    end = "<|endoftext|>"
    named = {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor"}
    named |= {"bos_token": end, "eos_token": end, "unk_token": end}
    (target / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")


def read_variables(data: bytes) -> Variables:
    """The arrays of a model.bin, by name, as CTranslate2's python/ctranslate2/specs/model_spec.py writes them."""
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return int(value)

    def take(size: int) -> bytes:
        nonlocal place
        place += size
        return data[place - size : place]

    def text() -> str:
        return take(number("H"))[:-1].decode()  # C's strings end with a zero

    version, kind, _revision = number("I"), text(), number("I")
    if version != _VERSION or kind != "WhisperSpec":
        raise ValueError(f"model.bin holds a {kind} of format {version}; expected a WhisperSpec of format {_VERSION}")
    variables = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = _DTYPES[number("B")]
        variables[name] = np.frombuffer(take(number("I")), dtype).reshape(shape)
    return variables


def rename(variables: Variables) -> Tensors:
    """Transformers' tensors from CTranslate2's."""
    found: Tensors = {}
    for side in ("encoder", "decoder"):
        found |= _norm(variables, f"{side}/layer_norm", f"model.{side}.layer_norm")
        found[f"model.{side}.embed_positions.weight"] = variables[f"{side}/position_encodings/encodings"]
        for number in range(_count_layers(variables, side)):
            found |= _layer(variables, f"{side}/layer_{number}", f"model.{side}.layers.{number}")
    for theirs, ours in (
        ("encoder/conv1", "model.encoder.conv1"),
        ("encoder/conv2", "model.encoder.conv2"),
        ("decoder/embeddings", "model.decoder.embed_tokens"),
    ):
        found |= _linear(variables, theirs, [ours])
    return found


def _layer(variables: Variables, theirs: str, ours: str) -> Tensors:
    attention = [("self_attention", "self_attn", [["q_proj", "k_proj", "v_proj"], ["out_proj"]])]
    if f"{theirs}/attention/linear_0/weight" in variables:
        attention.append(("attention", "encoder_attn", [["q_proj"], ["k_proj", "v_proj"], ["out_proj"]]))
    found = _norm(variables, f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
    for name, module, products in attention:
        found |= _norm(variables, f"{theirs}/{name}/layer_norm", f"{ours}.{module}_layer_norm")
        for index, parts in enumerate(products):
            found |= _linear(
                variables, f"{theirs}/{name}/linear_{index}", [f"{ours}.{module}.{part}" for part in parts]
            )
    for index, part in enumerate(("fc1", "fc2")):
        found |= _linear(variables, f"{theirs}/ffn/linear_{index}", [f"{ours}.{part}"])
    return found


def _linear(variables: Variables, theirs: str, ours: Sequence[str]) -> Tensors:
    """A product, or several that CTranslate2 has fused along their outputs."""
    found = dict(zip(_add(ours, "weight"), np.split(variables[f"{theirs}/weight"], len(ours)), strict=True))
    if f"{theirs}/bias" in variables:
        biases = zip(_add(ours, "bias"), np.split(variables[f"{theirs}/bias"], len(ours)), strict=True)
        found |= {name: bias for name, bias in biases if "k_proj" not in name}  # Whisper's keys have none
    return found


def _norm(variables: Variables, theirs: str, ours: str) -> Tensors:
    return {f"{ours}.weight": variables[f"{theirs}/gamma"], f"{ours}.bias": variables[f"{theirs}/beta"]}


def _add(names: Sequence[str], suffix: str) -> Iterator[str]:
    return (f"{name}.{suffix}" for name in names)


def _count_layers(variables: Variables, side: str) -> int:
    return sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/weight") for name in variables)


def make_config(tensors: Tensors, settings: Mapping[str, Any]) -> WhisperConfig:
    vocabulary, width = tensors["model.decoder.embed_tokens.weight"].shape
    shape: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        shape[f"{side}_layers"] = sum(
            name.startswith(f"model.{side}.") and name.endswith("fc1.weight") for name in tensors
        )
        shape[f"{side}_attention_heads"] = width // _HEAD_DIM
        shape[f"{side}_ffn_dim"] = len(tensors[f"model.{side}.layers.0.fc1.weight"])
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=tensors["model.encoder.conv1.weight"].shape[1],
        max_source_positions=len(tensors["model.encoder.embed_positions.weight"]),
        max_target_positions=len(tensors["model.decoder.embed_positions.weight"]),
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        **shape,
    )


def make_generation_config(tokens: Mapping[str, int], settings: Mapping[str, Any]) -> GenerationConfig:
    end = tokens["<|endoftext|>"]
    return GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=tokens["<|startoftranscript|>"],
        prev_sot_token_id=tokens["<|startofprev|>"],
        no_timestamps_token_id=tokens["<|notimestamps|>"],
        lang_to_id={text: id for text, id in tokens.items() if len(text) in _LANGUAGE_LENGTHS and text[2:-2].isalpha()},
        task_to_id={task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")},
        is_multilingual=True,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        max_initial_timestamp_index=50,
        max_length=448,
        return_timestamps=False,
    )
