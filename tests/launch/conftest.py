"""Command lines of other servers, resolved as lsv would run them: nothing is loaded, and no model is fetched."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lsv.cli.context import CommandContext
from lsv.cli.serve import choose_frontends
from lsv.config import EngineConfig
from lsv.resolve import locate, resolve
from lsv.resolve.hub import Hub
from lsv.settings import Settings

_SHAPE: Mapping[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 16,
}
_FP8: Mapping[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CHECKPOINTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "opt": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64,
        "max_position_embeddings": 2048,
    },
    "qwen2_vl": {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "image_token_id": 300, "video_token_id": 301,
        "vision_config": {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
    },
    "qwen2_5_vl": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "image_token_id": 300, "video_token_id": 301,
        "vision_config": {
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
    },
    "moe-fp8": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **_EXPERTS, "quantization_config": _FP8,
    },
}  # fmt: skip
"""Shapes of checkpoints without weights, by the kind of model that a line names."""


class Launch(NamedTuple):
    """What a line came to."""

    config: EngineConfig
    settings: Settings
    warnings: str
    fetched: list[tuple[str, str | None]]
    """Names and revisions of what the Hub would have been asked for."""


Start = Callable[..., Launch]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("LSV_", "VLLM_", "PT_HPU", "CCL_", "OMP_", "QUANT_CONFIG")):
            monkeypatch.delenv(variable)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Start:
    """``start("VAR=value vllm serve org/model --flag", "llama", platform="xpu")``, as far as to the engine's start."""

    def launch(line: str, checkpoint: str = "llama", *, platform: str = "cpu") -> Launch:
        folder = tmp_path / checkpoint
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**_SHAPE, **CHECKPOINTS[checkpoint]}))
        fetched: list[tuple[str, str | None]] = []

        def fetch(name: str, hub: Hub) -> Path:
            fetched.append((name, hub.revision))
            return folder

        monkeypatch.setattr(locate, "fetch", fetch)
        variables, arguments = read_line(line)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if platform != "cpu":
            arguments += ["--platform", platform, "--emulate"]
        context = CommandContext.open(arguments)
        settings = context.settings(arguments, scope="serve")
        config = resolve(settings, context.plugins)
        choose_frontends(settings, context.plugins)
        return Launch(config, settings, capsys.readouterr().err, fetched)

    return launch


def read_line(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables before a command, and what follows its words ``vllm serve`` or ``python3 -m …api_server``."""
    words = shlex.split(line.replace("\\\n", " "))
    variables = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    while words[0] in ("vllm", "serve", "python", "python3", "-m", "numactl", "-C", "0-17") or "api_server" in words[0]:
        words.pop(0)
    return variables, words
