"""What steps leave in the log and in a trace, of an engine on an emulated Gaudi and of the real software's counters."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.settings import Declared, gather
from lsv_base.errors import ConfigError
from lsv_hpu.emulation.counting import FakeCpuFallback
from lsv_hpu.settings import HpuOptions, declare, read
from lsv_hpu.steps.counters import StepCounter, chosen_counters
from lsv_hpu.steps.trace import StepTrace
from lsv_hpu.vendor import Habana
from lsv_testing.tiny import tiny

FEW = {"hpu.prompt_seq_buckets": "16,32", "max_num_seqs": 2, "block_size": 16, "max_model_len": 64}
COMPILED = "VLLM_HPU_STEP_GRAPH_COMPILATION: [('TotalNumber', "
FELL_BACK = "VLLM_HPU_STEP_CPU_FALLBACK: [('TotalNumber', 0), ('FallbackOps', {})]"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1}
    return str(tiny("llama", tmp_path_factory.mktemp("steps") / "llama", num_key_value_heads=1, **shape))


@contextmanager
def engine(checkpoint: str, **options: Any) -> Iterator[LLM]:
    with LLM(checkpoint, platform="hpu", emulate=True, skip_tokenizer_init=True, **FEW, **options) as llm:
        yield llm


def ask(llm: LLM, length: int, tokens: int = 3) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": list(range(5, 5 + length))}], params, use_tqdm=False)
    llm.reset_prefix_cache()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "lsv_hpu.steps.counters"]
    caplog.clear()
    return found


@pytest.mark.row("F-508", "F-872")
def test_steps_that_compile_are_logged(checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    """A step without a bucket compiles its ops, once. Warmed-up steps compile nothing for layers."""
    with engine(checkpoint, **{"hpu.log_step_graph_compilation": True}, enable_chunked_prefill=False) as llm:
        ask(llm, 7)
        ask(llm, 7)
        lines(caplog)
        ask(llm, 7)
        assert lines(caplog) == []
        ask(llm, 40)
        prompt = lines(caplog)[0]
        assert prompt.startswith(COMPILED)
        assert prompt.endswith("is_prompt: True, num_seqs: 1, max_context_len: 40, max_num_blocks 3")
        ask(llm, 40)
        assert lines(caplog) == []
        assert llm.stats.unwarmed_total == 2


@pytest.mark.row("F-509", "F-511")
def test_all_steps_are_logged(checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"hpu.log_step_graph_compilation_all": True, "hpu.log_step_cpu_fallbacks_all": True}
    with engine(checkpoint, **options) as llm:
        assert lines(caplog) == [], "of warm-up nothing is logged"
        ask(llm, 7)
        lines(caplog)
        steps = llm.stats.steps_total
        ask(llm, 7)
        found, steps = lines(caplog), llm.stats.steps_total - steps
    assert steps >= 3
    assert len(found) == 2 * steps
    facts = "is_prompt: True, num_seqs: 1, max_context_len: 7, max_num_blocks 1"
    assert found[0] == f"{COMPILED}0), ('TotalTime', 0), ('AvgTime', 0)], {facts}"
    assert found[1] == f"{FELL_BACK}, {facts}"
    assert found[2].endswith("is_prompt: False, num_seqs: 1, max_context_len: 8, max_num_blocks 1")


@pytest.mark.row("F-510")
def test_steps_whose_ops_fall_back_to_the_host_are_logged(
    checkpoint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing falls back in emulation, so the counts are set."""
    with engine(checkpoint, **{"hpu.log_step_cpu_fallbacks": True}) as llm:
        ask(llm, 7)
        assert lines(caplog) == []
        counted = [("TotalNumber", 2), ("FallbackOps", {"aten::sort": 2})]
        monkeypatch.setattr(FakeCpuFallback, "stats", lambda self: counted)
        ask(llm, 7, tokens=1)
    assert lines(caplog) == [
        f"VLLM_HPU_STEP_CPU_FALLBACK: {counted}, is_prompt: True, num_seqs: 1, max_context_len: 7, max_num_blocks 1"
    ]


@pytest.mark.row("F-508", "F-509", "F-510", "F-511")
@pytest.mark.parametrize(
    ("variable", "counter"),
    [
        ("GRAPH_COMPILATION", StepCounter("graph_compilation", "GRAPH_COMPILATION", False)),
        ("GRAPH_COMPILATION_ALL", StepCounter("graph_compilation", "GRAPH_COMPILATION", True)),
        ("CPU_FALLBACKS", StepCounter("cpu_fallback", "CPU_FALLBACK", False)),
        ("CPU_FALLBACKS_ALL", StepCounter("cpu_fallback", "CPU_FALLBACK", True)),
    ],
)
def test_variables_choose_counters(monkeypatch: pytest.MonkeyPatch, variable: str, counter: StepCounter) -> None:
    monkeypatch.setenv(f"VLLM_HPU_LOG_STEP_{variable}", "1")
    assert chosen_counters(read(gather(Declared(declare()), {}).plugin_options())) == (counter,)
    assert chosen_counters(HpuOptions()) == ()


def test_the_softwares_own_counters_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name and the call that its source has; the module here only answers."""
    module = ModuleType("habana_frameworks.torch.hpu.metrics")

    @contextmanager
    def metric_localcontext(name: str) -> Iterator[str]:
        yield f"the metric {name}"

    monkeypatch.setattr(module, "metric_localcontext", metric_localcontext, raising=False)
    for name in ("habana_frameworks", "habana_frameworks.torch", "habana_frameworks.torch.hpu"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with Habana.metric(object.__new__(Habana), "cpu_fallback") as found:
        assert found == "the metric cpu_fallback"  # type: ignore[comparison-overlap]


@pytest.mark.row("F-507", "F-872")
def test_a_trace_of_steps(
    checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valid JSON of Chrome's trace format: a span a step and a shape of warm-up, and counters beside each step."""
    caplog.set_level(logging.INFO, "lsv_hpu.steps.trace")
    monkeypatch.setenv("VLLM_PROFILER_ENABLED", "true")
    with engine(checkpoint, **{"hpu.profiler_dir": str(tmp_path / "traces")}) as llm:
        ask(llm, 20)
        steps = llm.stats.steps_total
    (file,) = (tmp_path / "traces").glob("server_events_hpu0_*.json")
    assert f"Profiler enabled: steps are written to {file}" in caplog.text
    events = json.loads(file.read_text())
    spans = [event for event in events if event["ph"] == "X"]
    of_steps = [event for event in spans if "step" in event["name"]]
    assert [event["name"] for event in of_steps] == ["prompt step"] + ["decode step"] * (len(of_steps) - 1)
    assert 3 <= len(of_steps) <= steps
    assert all(event["dur"] > 0 and event["ts"] > 1e15 for event in spans)
    assert any(event["name"].startswith("warm-up batch_size:1 seq_len:16") for event in spans)
    assert of_steps[0]["args"] == {"engine_iteration": 0, "rows": 1, "tokens": 20, "longest": 20, "bucket": [1, 32, 0]}
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert len(counters) == len(of_steps)
    assert counters[0]["prompt_bucket_seq_len"] == 32
    assert counters[0]["prompt_batch_token_utilization"] == 20 / 32
    assert counters[1]["decode_batch_size"] == 1


def test_a_trace_is_readable_while_it_grows(tmp_path: Path) -> None:
    """The last bracket comes at the end, and may be missing."""
    trace = StepTrace(tmp_path, 1)
    trace.add_warmup("warm-up", 0.0)
    (file,) = tmp_path.glob("server_events_hpu1_*.json")
    assert len(json.loads(file.read_text() + "]")) == 5
    trace.close()
    assert len(json.loads(file.read_text())) == 5


def test_a_folder_that_cant_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"server_events_hpu0_\d+.json can't be written \(.*\): set hpu.profiler_dir"):
        StepTrace(tmp_path / "file", 0)
