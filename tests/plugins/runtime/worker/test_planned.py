"""For formats made while loading, the plan counts the bytes of the loaded weights, not of the stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM
from lsv_base.errors import ConfigError
from lsv_runtime.worker.load import loaded
from lsv_testing.tiny import tiny

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}


@dataclass
class Weights:
    """Bytes of a model's weights."""

    planned: int
    told: int
    """What the loaded engine says, as in ``lsv eval``."""
    held: int
    """What its tensors hold, each place in memory once."""


def weigh(model: Path, format: str | None, platform: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Weights:
    """Start an engine, and compare what was planned with what it has."""
    planned: list[int] = []
    models: list[torch.nn.Module] = []
    plan_fit = loaded.plan_fit

    def watched(bound: Any, *more: Any) -> Any:
        planned.append(bound.declared.weight_bytes)
        models.append(bound.declared.model)
        return plan_fit(bound, *more)

    monkeypatch.setattr(loaded, "plan_fit", watched)
    options = {"max_model_len": 64, "num_gpu_blocks_override": 16, **options}
    options |= {"dtype": "bfloat16", "enforce_eager": True}
    options |= {} if platform == "cpu" else {"platform": platform, "emulate": True}
    options |= {} if format is None else {"quantization": format}
    with LLM(str(model), **options) as llm:
        tensors = [one for one in (*models[0].parameters(), *models[0].buffers()) if not one.is_meta]
        return Weights(planned[0], llm.fit.weight_bytes, sum({one.data_ptr(): one.nbytes for one in tensors}.values()))


@pytest.mark.parametrize("platform", ["cpu", "xpu", "cuda", "hpu"])
@pytest.mark.parametrize("format", [None, "int8", "sym_int4", "fp8", "nf4"])
def test_the_plan_is_what_will_be_held(
    format: str | None, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny("llama", tmp_path, tokenizer=True, **SHAPE)
    found = weigh(checkpoint, format, platform, monkeypatch, reference_ops=True)
    assert found.told == pytest.approx(found.planned, rel=0.03)


@pytest.mark.parametrize("platform", ["cpu", "xpu", "cuda", "hpu"])
@pytest.mark.parametrize(("format", "most"), [(None, 2.7), ("fp8", 2.4), ("int8", 1.4), ("sym_int4", 1.3)])
def test_a_table_that_the_head_is_tied_to_is_planned_and_held_once(
    format: str | None, most: float, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the platform's own kernels. ``most`` is in bytes for a number of the table; the layer has 0.3 times as many.

    Two copies take at least one byte more.
    """
    shape = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    checkpoint = tiny("llama", tmp_path, vocab_size=4096, tie_word_embeddings=True, **shape)
    found = weigh(checkpoint, format, platform, monkeypatch, skip_tokenizer_init=True)
    assert found.held == found.told == pytest.approx(found.planned, rel=0.01)
    assert most - 0.4 < found.held / (4096 * 256) < most


@pytest.mark.parametrize("platform", ["cpu", "xpu", "cuda", "hpu"])
@pytest.mark.parametrize(("format", "most"), [("fp8", 4.4), ("int8", 2.4), ("sym_int4", 2.3)])
def test_tables_of_a_model_that_is_not_tied_are_planned_and_held_in_eight_bits(
    format: str, most: float, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding's and the head's, except in fp8."""
    shape = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    checkpoint = tiny("llama", tmp_path, vocab_size=4096, tie_word_embeddings=False, **shape)
    found = weigh(checkpoint, format, platform, monkeypatch, skip_tokenizer_init=True)
    assert found.held == found.told == pytest.approx(found.planned, rel=0.01)
    assert most - 0.4 < found.held / (4096 * 256) < most


@pytest.mark.parametrize(("platform", "format"), [("cpu", "int8"), ("cpu", "asym_int4"), ("hpu", "asym_int4")])
def test_what_kernels_make_of_weights_is_planned(
    platform: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels are padded and have sums; Gaudi's products take scales in 16 bits."""
    checkpoint = tiny("llama", tmp_path, **{**SHAPE, "intermediate_size": 1088})
    found = weigh(checkpoint, format, platform, monkeypatch, skip_tokenizer_init=True)
    assert found.held == pytest.approx(found.planned, rel=0.005)


def test_the_table_of_positions_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny("llama", tmp_path, max_position_embeddings=16384, **SHAPE)
    context: dict[str, Any] = {"max_model_len": 16384, "num_gpu_blocks_override": 600}
    found = weigh(checkpoint, None, "cpu", monkeypatch, skip_tokenizer_init=True, **context)
    assert found.held == pytest.approx(found.planned, rel=0.005)


@pytest.mark.parametrize(("format", "starts"), [(None, False), ("sym_int4", True)])
def test_a_model_that_fits_once_it_is_quantised_starts(format: str | None, starts: bool, tmp_path: Path) -> None:
    """On a device of 12 MiB: plain weights take 18 MB, in four bits 5."""
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4}
    options: dict[str, Any] = {
        "platform": "torch", "emulate": True, "torch_memory": 0.012, "gpu_memory_utilization": 0.95,
        "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 1, "max_num_batched_tokens": 64,
        "dtype": "bfloat16", "quantization": format,
    }  # fmt: skip
    checkpoint = str(tiny("llama", tmp_path, tokenizer=True, **shape))
    if not starts:
        with pytest.raises(ConfigError, match="larger than the available KV cache memory"):
            LLM(checkpoint, **options)
        return
    with LLM(checkpoint, **options) as llm:
        assert llm.fit.kv_tokens > 1000
        assert llm.generate(["Hi"], use_tqdm=False)[0].outputs[0].token_ids
