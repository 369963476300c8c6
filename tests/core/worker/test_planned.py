"""For formats made while loading, the plan counts the bytes of the loaded weights, not of the stored ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM
from lsv.errors import ConfigError
from lsv.testing.tiny import tiny
from lsv.worker.load import loaded

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}


@pytest.mark.parametrize("platform", ["cpu", "xpu", "cuda", "hpu"])
@pytest.mark.parametrize("format", [None, "int8", "sym_int4", "fp8", "nf4"])
def test_the_plan_is_what_will_be_held(
    format: str | None, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    plan_fit = loaded.plan_fit

    def watched(bound: Any, *more: Any) -> Any:
        planned.append(bound.declared.weight_bytes)
        return plan_fit(bound, *more)

    monkeypatch.setattr(loaded, "plan_fit", watched)
    options: dict[str, Any] = {"max_model_len": 64, "dtype": "bfloat16", "reference_ops": True, "enforce_eager": True}
    options |= {} if platform == "cpu" else {"platform": platform, "emulate": True}
    options |= {} if format is None else {"quantization": format}
    with LLM(str(tiny("llama", tmp_path, tokenizer=True, **SHAPE)), num_gpu_blocks_override=16, **options) as llm:
        assert llm.fit.weight_bytes == pytest.approx(planned[0], rel=0.03)


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
