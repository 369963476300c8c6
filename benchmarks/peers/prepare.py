"""Write the models that run.py compares: a random checkpoint in the shape of a real model, and its forms for the peers.

    python benchmarks/peers/prepare.py --models DIR [--shape qwen2.5-0.5b] [--forms checkpoint,w8a8,w4a16,openvino,gguf]
        [--optimum PATH/bin/optimum-cli] [--gguf PATH/bin/python]

``checkpoint``, ``w8a8`` (compressed-tensors, int8 by output row, activations quantised by token) and ``w4a16``
(compressed-tensors, int4 in groups of 128 inputs, activations as they are) need lsv's own environment. ``openvino``
calls optimum-cli, of an environment with ``optimum-intel[openvino,nncf]``; ``gguf`` calls gguf_files.py with the
interpreter of one that has ``gguf`` and ``numpy``. What is there already is left alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from checkpoints import SHAPES, make_checkpoint  # noqa: E402

FORMS = ("checkpoint", "w8a8", "w4a16", "openvino", "gguf")
GROUP = 128
CODES_OF_WORD = 8
OPENVINO_FORMATS = {"fp16": (), "int8": (), "int4": ("--group-size", "64", "--ratio", "1.0", "--sym")}
GGUF_TYPES = ("bf16", "q8_0", "q4_0")
SPECIAL = ("<bos>", "<eos>", "<pad>")
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def main() -> None:
    options = read_options()
    target = options.models / f"{options.shape}-shape"
    if "checkpoint" in options.forms and not (target / "tokenizer.json").exists():
        options.models.mkdir(parents=True, exist_ok=True)
        make_checkpoint(options.shape, options.models).rename(target)
        write_tokenizer(target)
    if "w8a8" in options.forms:
        write_w8a8(target, Path(f"{target}-w8a8"))
    if "w4a16" in options.forms:
        write_w4a16(target, Path(f"{target}-w4a16"))
    if "openvino" in options.forms:
        for name, arguments in OPENVINO_FORMATS.items():
            export_openvino(options.optimum, target, name, arguments)
    if "gguf" in options.forms:
        for name in GGUF_TYPES:
            subprocess.run([options.gguf, str(HERE / "gguf_files.py"), str(target), name], check=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS))
    parser.add_argument("--optimum", default="optimum-cli")
    parser.add_argument("--gguf", default=sys.executable)
    return parser.parse_args()


def write_tokenizer(folder: Path) -> None:
    """Bytes, then made-up words up to the size of the vocabulary: every id decodes to a text of its own."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"\u0120w{number:06d}" for number in range(config["vocab_size"] - len(alphabet) - len(SPECIAL))]
    vocabulary = {text: index for index, text in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT}
    settings |= dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def write_w8a8(source: Path, target: Path) -> None:
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
    }
    write_compressed(source, target, "int-quantized", group, quantise_w8)


def write_w4a16(source: Path, target: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    write_compressed(source, target, "pack-quantized", group, quantise_w4)


def quantise_w8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """By the names that follow a linear layer's."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return {"weight": (weight.float() / scale).round().to(torch.int8), "weight_scale": scale.to(torch.bfloat16)}


def quantise_w4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same; eight codes of consecutive inputs lie in a word, the first in its lowest bits, each as value + 8."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True) / 7
    codes = ((groups / scale).round() + 8).to(torch.int64).view(outputs, -1, CODES_OF_WORD)
    words = (codes << (4 * torch.arange(CODES_OF_WORD))).sum(2)
    return {
        "weight_packed": torch.where(words >= 2**31, words - 2**32, words).to(torch.int32),
        "weight_scale": scale[..., 0].to(torch.bfloat16),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def write_compressed(
    source: Path,
    target: Path,
    form: str,
    group: dict[str, Any],
    quantise: Callable[[torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    """A copy of a checkpoint in a form of compressed-tensors; its projections are quantised."""
    if target.exists():
        return
    fresh = target.with_name(f".{target.name}")
    shutil.copytree(source, fresh, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        tensors |= {name.removesuffix("weight") + part: held for part, held in quantise(tensor).items()}
    save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((fresh / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }  # fmt: skip
    (fresh / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    fresh.rename(target)


def export_openvino(program: str, source: Path, name: str, arguments: tuple[str, ...]) -> None:
    target = Path(f"{source}-openvino-{name}")
    if not target.exists():
        task = ("--task", "text-generation-with-past", "--weight-format", name)
        subprocess.run(
            [program, "export", "openvino", "--model", str(source), *task, *arguments, str(target)], check=True
        )


if __name__ == "__main__":
    main()
