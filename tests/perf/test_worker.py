"""What a decoding step takes on the cpu platform: native calls, torch's ops, Python calls, as layers and rows grow."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lsv_models.plugin
from lsv.config import EngineConfig
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin, Grown, Kind, Rows, StepPlan
from lsv_cpu import native, plugin
from lsv_runtime.worker.worker import Worker
from lsv_testing.catalog import catalog_of
from lsv_testing.tiny import tiny

BLOCK_SIZE = 16
PROMPT = 5
SIZES = (1, 32)
SHALLOW, DEEP = 2, 4


class Decoding:
    """A worker with rows past their prompts; ``step`` computes one more token for each."""

    def __init__(self, checkpoint: Path, rows: int) -> None:
        config = EngineConfig(
            model=str(checkpoint), served_names=("test",), tokenizer=str(checkpoint), architecture="llama",
            model_offer="llama", platform="cpu", attention="cpu-paged", dtype="bfloat16", block_size=BLOCK_SIZE,
            max_model_len=64, num_blocks=rows + 8, max_num_seqs=rows, options={"cpu.threads": 1},
        )  # fmt: skip
        self.worker = Worker(config, catalog_of(plugin, lsv_models.plugin))
        self.worker.start(lambda stage, done, total: None)
        self.rows, self.steps, self.length = rows, 0, 0
        params = SamplingParams(temperature=0.0, max_tokens=None)
        self._enter = tuple(Begin(slot, tuple(range(PROMPT)), PROMPT, params) for slot in range(rows))
        self._grow = tuple(Grown(slot, 0, (slot + 1,)) for slot in range(rows))
        self._run(PROMPT, self._enter, self._grow)
        self.step()

    def step(self) -> None:
        self._run(1)

    def _run(self, count: int, begin: tuple[Begin, ...] = (), grown: tuple[Grown, ...] = ()) -> None:
        each = (self.rows,)
        rows = Rows(
            tuple(range(*each)), (self.length,) * self.rows, (count,) * self.rows, (0,) * self.rows, (True,) * self.rows
        )
        kind = Kind.PREFILL if begin else Kind.DECODE
        result = self.worker.step(StepPlan(step=self.steps, kind=kind, begin=begin, blocks=grown, rows=rows))
        assert not result.failed
        self.steps, self.length = self.steps + 1, self.length + count

    def close(self) -> None:
        self.worker.close()


@pytest.fixture
def native_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Calls of the kernels' functions by name, from now on; skips where they can't be built."""
    library = native.load("auto")
    if library is None:
        assert shutil.which("c++") is None, "the kernels can't be built"
        pytest.skip("there is no C++ compiler")
    calls: Counter[str] = Counter()
    for name in native.SIGNATURES:
        monkeypatch.setattr(library, name, counting(calls, name, getattr(library, name)))
    yield calls
    native.select()


def counting(calls: Counter[str], name: str, function: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return call


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("perf")
    return {layers: tiny("llama", folder / str(layers), num_hidden_layers=layers) for layers in (SHALLOW, DEEP)}


def test_native_calls_and_ops_of_a_step(frozen, native_calls, count_ops, checkpoints) -> None:
    """Apart for each layer and for the rest of the step."""
    counts: dict[str, float] = {}
    for rows in SIZES:
        found: dict[int, tuple[int, int]] = {}
        for layers, checkpoint in checkpoints.items():
            decoding = Decoding(checkpoint, rows)
            native_calls.clear()
            ops = count_ops(decoding.step).total()
            found[layers] = native_calls.total(), ops
            decoding.close()
        for index, name in enumerate(("native calls", "torch ops")):
            shallow, deep = found[SHALLOW][index], found[DEEP][index]
            layer = (deep - shallow) / (DEEP - SHALLOW)
            counts[f"{name} a layer at {rows} rows"] = layer
            counts[f"{name} around the layers at {rows} rows"] = shallow - SHALLOW * layer
    frozen.check(counts)


def test_python_calls_of_a_step(frozen, native_calls, count_calls, checkpoints) -> None:
    counts: dict[str, float] = {}
    for rows in SIZES:
        found = {}
        for layers, checkpoint in checkpoints.items():
            decoding = Decoding(checkpoint, rows)
            found[layers] = count_calls(decoding.step)
            decoding.close()
        layer = (found[DEEP] - found[SHALLOW]) / (DEEP - SHALLOW)
        counts[f"calls a layer at {rows} rows"] = layer
        counts[f"calls around the layers at {rows} rows"] = found[SHALLOW] - SHALLOW * layer
    frozen.check(counts)
