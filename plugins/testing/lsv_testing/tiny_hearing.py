"""Tiny checkpoints of Whisper and Ultravox with random weights, and the files that published ones have beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv_testing.tiny import BYTE_VOCABULARY, bytes_tokenizer, draw_weights, tiny, write_tokenizer

LANGUAGES = ("en", "de")
_FRAMES_A_SECOND = 50
_MARKS = tuple(f"<|{mark / 50:.2f}|>" for mark in range(1501))
_WIDTH: Mapping[str, Any] = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_mel_bins": 16,
    "max_target_positions": 64,
}  # fmt: skip


def tiny_hearing(
    path: str | Path,
    *,
    seconds: int = 30,
    languages: Sequence[str] = LANGUAGES,
    seed: int = 0,
    spread: float = 0.2,
    **shape: Any,
) -> Path:
    """Write the checkpoint to the folder ``path`` and return it. ``shape`` overrides keys of the config.

    It hears ``seconds`` at a time, as 50 positions each. One without ``languages`` knows English alone, and no tasks.
    The first 256 ids are bytes; specials follow in the order of published vocabularies, the timestamps last.
    """
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    path = Path(path)
    ids = _special_ids(languages)
    end = ids["<|endoftext|>"]
    config = WhisperConfig(
        vocab_size=BYTE_VOCABULARY + len(ids),
        max_source_positions=seconds * _FRAMES_A_SECOND,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        begin_suppress_tokens=_not_first(ids),
        **{**_WIDTH, **shape},
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    draw_weights(model, spread)
    model.save_pretrained(path)
    make: Any = WhisperFeatureExtractor
    extractor = make(feature_size=config.num_mel_bins, chunk_length=seconds)
    extractor.save_pretrained(path)
    _write_tokenizer(path, ids)
    generation = _generation(ids, languages, config.max_target_positions)
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def tiny_ultravox(
    path: str | Path, *, whole: bool = False, norm_mid: bool = True, seconds: int = 2, **shape: Any
) -> Path:
    """Write an Ultravox checkpoint to ``model`` in the folder ``path``, and return that: its projector, and the names
    of its parts, Llama's checkpoint in ``text`` and Whisper's in ``audio`` beside it. ``whole`` has all in one.

    It hears ``seconds`` at a time. Its tokenizer has Llama 3's reserved token for sounds, its template takes texts
    alone. ``shape`` overrides keys of the config.
    """
    import torch
    from safetensors.torch import load_file, save_file

    path = Path(path)
    model, text, audio = (path / name for name in ("model", "text", "audio"))
    model.mkdir(parents=True)
    tiny("llama", text)
    tiny_hearing(audio, seconds=seconds)
    parts = {"text_model_id": str(text), "audio_model_id": str(audio)}
    described = {
        f"{kind}_config": json.loads((part / "config.json").read_text())
        for kind, part in (("text", text), ("audio", audio))
    }
    config = {
        "architectures": ["UltravoxModel"], "model_type": "ultravox", "torch_dtype": "float32", "stack_factor": 8,
        "hidden_size": 96, "projector_act": "swiglu", "projector_ln_mid": norm_mid, "norm_init": 0.4,
        "ignore_index": -100, "audio_token_index": 32000, "audio_latency_block_size": None, "initializer_range": 0.02,
        "text_model_lora_config": {"r": 0, "lora_alpha": 8, "target_modules": ["k_proj"]}, "vocab_size": 320,
        "audio_model_lora_config": {"r": 0, "lora_alpha": 8, "target_modules": ["k_proj"]},
        "auto_map": {"AutoConfig": "ultravox_config.UltravoxConfig", "AutoModel": "ultravox_model.UltravoxModel"},
        **(described if whole else parts), **shape,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    sizes = {"ln_pre": (512,), "linear_1": (96, 512), "linear_2": (64, 48)}
    sizes |= {"ln_mid": (48,)} if norm_mid else {"ln_post": (64,)}
    torch.manual_seed(1)
    stored = {
        f"multi_modal_projector.{name}.weight": torch.randn(size) * 0.2 + float(len(size) == 1)
        for name, size in sizes.items()
    }
    if whole:
        heard = load_file(audio / "model.safetensors")
        stored |= {f"language_model.{name}": one for name, one in load_file(text / "model.safetensors").items()}
        stored |= {
            f"audio_tower.{name.removeprefix('model.encoder.')}": one
            for name, one in heard.items() if name.startswith("model.encoder.")
        }  # fmt: skip
    save_file(stored, model / "model.safetensors")
    write_tokenizer(model, more=("<|reserved_special_token_0|>",))
    return model


def _special_ids(languages: Sequence[str]) -> dict[str, int]:
    tasks = ("translate", "transcribe") if languages else ()
    behind = ("startoflm", "startofprev", "nospeech", "notimestamps")
    names = [f"<|{name}|>" for name in ("endoftext", "startoftranscript", *languages, *tasks, *behind)]
    return {name: id for id, name in enumerate((*names, *_MARKS), start=BYTE_VOCABULARY)}


def _write_tokenizer(path: Path, ids: Mapping[str, int]) -> None:
    """tokenizer.json and its settings. As in published files, timestamps are added tokens that are not special, and a
    text is framed as a whole answer is.
    """
    from tokenizers import AddedToken, processors

    tokenizer = bytes_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=name not in _MARKS, normalized=False) for name in ids])
    frame = ("<|startoftranscript|>", "<|notimestamps|>", "$A", "<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(frame), special_tokens=[(name, ids[name]) for name in frame if name in ids]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **names}))


def _not_first(ids: Mapping[str, int]) -> list[int]:
    return [ord(" "), ids["<|endoftext|>"]]


def _generation(ids: Mapping[str, int], languages: Sequence[str], longest: int) -> dict[str, Any]:
    """generation_config.json: the ids of languages and tasks, and what an answer must not hold, or not begin with."""
    end, silent = ids["<|endoftext|>"], ("startoftranscript", "translate", "transcribe", "startoflm", "startofprev")
    unspoken = [ids[name] for part in (*silent, "nospeech") if (name := f"<|{part}|>") in ids]
    common = {
        "begin_suppress_tokens": _not_first(ids),
        "bos_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "eos_token_id": end,
        "is_multilingual": bool(languages),
        "max_initial_timestamp_index": 50,
        "max_length": longest,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "pad_token_id": end,
        "prev_sot_token_id": ids["<|startofprev|>"],
        "return_timestamps": False,
        "suppress_tokens": [*b'"#()*+/:;<=>@[]^_`{|}~', *unspoken],
    }
    if not languages:
        return common
    tasks = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return {**common, "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in languages}, "task_to_id": tasks}
