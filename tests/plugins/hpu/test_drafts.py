"""Drafts of every kind on an emulated Gaudi, compiled: no answer changes, and nothing is compiled after warm-up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import LLM, SamplingParams
from lsv_testing.fakes.counting import counting_model
from lsv_testing.fakes.eagle import write_counting_eagle, write_eagle3
from lsv_testing.fakes.medusa import write_counting_medusa
from lsv_testing.fakes.speculator import write_speculator
from lsv_testing.tiny import tiny

SMALL: Mapping[str, Any] = {
    "hpu.prompt_bs_buckets": "1,2", "hpu.prompt_seq_buckets": "4,64", "hpu.prompt_ctx_buckets": "0,4",
    "hpu.decode_bs_buckets": "1,2", "hpu.decode_block_buckets": "8", "hpu.full_warmup": True, "block_size": 16,
    "max_num_batched_tokens": 128, "max_model_len": 64, "max_num_seqs": 2, "dtype": "float32",
}  # fmt: skip
PROMPTS = [{"prompt_token_ids": [5, 9, 40, 41] * 6}, {"prompt_token_ids": [7, 8]}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)


def write_mtp(path: Path) -> Path:
    """A model of two layers, and a third one that predicts further tokens."""
    shape = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "num_hidden_layers": 3}
    folder = tiny("glm4_moe", path, moe_intermediate_size=32, first_k_dense_replace=1, head_dim=16, **shape)
    generator = torch.Generator().manual_seed(4)
    own = {
        name: torch.randn(size, generator=generator) * 0.2 + (len(size) == 1)
        for name, size in {
            "enorm.weight": (64,), "hnorm.weight": (64,), "eh_proj.weight": (64, 128), "shared_head.norm.weight": (64,),
        }.items()
    }  # fmt: skip
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {**load_file(file), **{f"model.layers.2.{name}": tensor for name, tensor in own.items()}}
    save_file(tensors, file, metadata={"format": "pt"})
    keys = {**json.loads(config.read_text()), "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    keys.pop("layer_types", None)
    config.write_text(json.dumps(keys))
    return folder


def make(kind: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A model and how drafts are made for it."""
    if kind in ("eagle", "medusa"):
        write = write_counting_eagle if kind == "eagle" else write_counting_medusa
        return counting_model(folder / "m"), {"model": str(write(folder / "h"))}
    if kind == "mtp":
        return write_mtp(folder / "m"), {"method": "mtp", "num_speculative_tokens": 2}
    model = tiny("llama", folder / "m", rms_norm_eps=1e-6)
    ways: dict[str, dict[str, Any]] = {
        "ngram": {"method": "ngram", "prompt_lookup_min": 1},
        "suffix": {"method": "suffix"},
        "model": {"model": str(model), "num_speculative_tokens": 3},
    }
    if kind in ways:
        return model, ways[kind]
    heads = write_eagle3(folder / "h") if kind == "eagle3" else write_speculator(folder / "h", places=2)
    return model, {"model": str(heads)}


@pytest.mark.row("F-962")
@pytest.mark.parametrize(
    "kind",
    [
        "eagle",
        "model",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("eagle3", "medusa", "mlp", "mtp", "ngram", "suffix")),
    ],
)
def test_drafts_of_every_kind_are_compiled(kind: str, tmp_path: Path) -> None:
    """With full warm-up, in which compiling anything later is an error."""
    model, drafting = make(kind, tmp_path)
    found = []
    for config in (None, {**drafting, "adaptive": False}):
        with LLM(
            str(model), platform="hpu", emulate=True, skip_tokenizer_init=True, speculative_config=config, **SMALL
        ) as llm:
            found.append([one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, use_tqdm=False)])
            assert llm.stats.unwarmed_total == 0
            counts = llm.stats.speculation
    assert found[0] == found[1]
    assert kind in ("ngram", "suffix") or counts.drafts > 10
    assert kind not in ("eagle", "medusa", "model") or counts.accepted == counts.drafts
