"""What the predecessors' documents take for granted: folders of models, the Hub's cache, and pictures on the web."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, processors

from lsv_testing.tiny import SHAPE, draw_weights, tiny, write_tokenizer
from lsv_testing.tiny_hearing import tiny_hearing
from suite.sounds import beep

LONG = {"max_position_embeddings": 131072}
REAL = {**LONG, "vocab_size": 1024}
"""Load generators draw random tokens, which a vocabulary of bytes has too few of."""


class Site:
    """Tiny checkpoints where launch lines look for them, with the class and the positions of the published ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models, self.cache, self.web = folder / "models", folder / "cache", folder / "web"
        self.web.mkdir()
        (self.models / "test").mkdir(parents=True)  # which the lines of models that see and hear name
        Image.new("RGB", (64, 48), (200, 30, 30)).save(self.web / "picture.png")
        (self.web / "sound.wav").write_bytes(beep(440))
        handler = functools.partial(QuietHandler, directory=str(self.web))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> Site:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, file: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{file}"

    def variables(self) -> dict[str, str]:
        """What makes a process find the models by their names on the Hub, without a network."""
        return {"HF_HOME": str(self.cache), "HF_HUB_OFFLINE": "1"}

    def provide(self, name: str, kind: str) -> Path:
        """Write a checkpoint of a kind as ``name``: a folder below the models', or ``org/model`` of the Hub."""
        if "/" in name:
            place = self.cache / "hub" / f"models--{name.replace('/', '--')}"
            folder = place / "snapshots" / "0123abcd"
            (place / "refs").mkdir(parents=True, exist_ok=True)
            (place / "refs" / "main").write_text("0123abcd")
        else:
            folder = self.models / name
        if not folder.exists():
            folder.mkdir(parents=True)
            KINDS[kind](folder)
        return folder


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None: ...


def _decoder(family: str, **keys: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        tiny(family, folder, tokenizer=True, **{**REAL, **keys})
        file = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.add_tokens([f"word{id}" for id in range(tokenizer.get_vocab_size(), REAL["vocab_size"])])
        tokenizer.save(str(file))

    return write


def _encoder(auto: Any, positions: int, **keys: Any) -> Callable[[Path], object]:
    """XLM-RoBERTa as bge has it: ``positions`` count the two rows of its table that no token has."""

    def write(folder: Path) -> None:
        shape = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
        shape |= {"max_position_embeddings": positions, "pad_token_id": 1, "type_vocab_size": 1, **keys}
        torch.manual_seed(0)
        model = auto.from_config(transformers.CONFIG_MAPPING["xlm-roberta"](**shape), dtype=torch.float32)
        draw_weights(model, 0.2)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        file = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.post_processor = processors.BertProcessing(("<eos>", 257), ("<bos>", 256))
        tokenizer.save(str(file))

    return write


def _whisper(folder: Path) -> None:
    tiny_hearing(folder, max_target_positions=448)


def _experts(folder: Path) -> None:
    """Qwen3 MoE in block-scaled FP8, as its FP8 checkpoint is published."""
    whole = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 256, "head_dim": 128}
    tiny("qwen3_moe", folder, tokenizer=True, num_experts=8, **whole, **LONG)
    _quantise_blocks(folder)


def _quantise_blocks(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    stored: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.ndim == 2 and "_proj" in name:
            rows, columns = (-(-size // 128) for size in tensor.shape)
            scale = torch.full((rows, columns), float(tensor.abs().amax()) / 448)
            stored |= {name: (tensor / scale[0, 0]).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


KINDS: dict[str, Callable[[Path], object]] = {
    "qwen2": _decoder("qwen2"),
    "llama": _decoder("llama"),
    "mistral": _decoder("mistral", sliding_window=None),
    "opt": _decoder("opt", max_position_embeddings=2048),
    "bge-m3": _encoder(transformers.AutoModel, 8194),
    "bge-reranker": _encoder(transformers.AutoModelForSequenceClassification, 514, num_labels=1),
    "qwen2_5_vl": lambda folder: tiny("qwen2_5_vl", folder, tokenizer=True, text_config=LONG),
    "qwen2_vl": lambda folder: tiny("qwen2_vl", folder, tokenizer=True, text_config=LONG),
    "omni": lambda folder: tiny("qwen2_5_omni_thinker", folder, tokenizer=True, text_config=LONG),
    "llava": lambda folder: tiny("llava", folder, tokenizer=True, text_config={"max_position_embeddings": 4096}),
    "whisper": _whisper,
    "experts": _experts,
}
"""What writes a checkpoint of a kind into an empty folder."""
