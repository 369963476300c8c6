"""Profiles of an engine on the CPU: files that show which layers ran, and no trace of them afterwards."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import BadRequest, RequestFailed
from lsv_testing.tiny import tiny

PROMPT = [{"prompt_token_ids": list(range(20))}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.mark.row("F-107", "F-854", "F-865", "F-866")
@pytest.mark.parametrize("reference", [False, True])
def test_a_profile_names_the_layers(tmp_path: Path, reference: bool) -> None:
    model, folder = tiny("llama", tmp_path / "model", tokenizer=True), tmp_path / "profiles"
    with LLM(
        str(model), platform="cpu", dtype="float32", max_model_len=64, max_num_seqs=4, reference_ops=reference,
        torch_profiler_dir=str(folder), enable_sleep_mode=True,
    ) as llm:  # fmt: skip
        before = llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        runner = llm.llm_engine.client._engine._executor._worker.live.runner  # type: ignore[attr-defined]
        forwards = [module.__dict__.get("forward") for module in runner.model.modules()]
        llm.start_profile()
        with pytest.raises(BadRequest, match="already"):
            llm.start_profile()
        with pytest.raises(BadRequest, match="stop that first"):
            llm.sleep()
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == before
        assert not folder.exists()
        llm.stop_profile()
        assert [module.__dict__.get("forward") for module in runner.model.modules()] == forwards
        with pytest.raises(BadRequest, match="start one first"):
            llm.stop_profile()
    (trace,) = folder.glob("rank0.*.pt.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert {"layers.0 (layer)", "layers.1 (layer)"} <= names
    assert ("layers.0.attn.qkv.linear (linear)" in names) == reference
    (table,) = folder.glob("rank0.*.ops.txt")
    assert "layers.0 (layer)" in table.read_text()


@pytest.mark.row("F-869")
def test_a_profile_of_calls(tmp_path: Path) -> None:
    pytest.importorskip("viztracer")
    config = {"profiler": "viztracer", "torch_profiler_dir": str(tmp_path / "profiles")}
    with LLM(
        str(tiny("llama", tmp_path / "model", tokenizer=True)), platform="cpu", dtype="float32", max_model_len=64,
        max_num_seqs=4, profiler_config=config,
    ) as llm:  # fmt: skip
        before = llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        llm.start_profile()
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == before
        llm.stop_profile()
    (trace,) = (tmp_path / "profiles").glob("rank0.*.calls.json.gz")
    names = {event.get("name", "") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    for file in ("scheduler/scheduler.py", "worker/worker.py"):
        assert any(file in name for name in names), file


def test_a_profile_that_can_not_be_written_costs_nothing_else(tmp_path: Path) -> None:
    model, folder = tiny("llama", tmp_path / "model", tokenizer=True), tmp_path / "profiles"
    folder.touch()
    with LLM(
        str(model), platform="cpu", dtype="float32", max_model_len=64, max_num_seqs=4, torch_profiler_dir=str(folder)
    ) as llm:
        llm.start_profile()
        llm.generate(PROMPT, GREEDY, use_tqdm=False)
        with pytest.raises(RequestFailed, match="could not be written to"):
            llm.stop_profile()
        llm.start_profile()
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)


def test_profiles_have_to_be_enabled(tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model", tokenizer=True)
    with (
        LLM(str(model), platform="cpu", dtype="float32", max_model_len=64, max_num_seqs=4) as llm,
        pytest.raises(BadRequest, match="--torch-profiler-dir"),
    ):
        llm.start_profile()
