"""A trace of a device's steps as a JSON file that ui.perfetto.dev and perfetto.habana.ai show.

The form is the array of Chrome's trace events (google/catapult, "Trace Event Format"). It is written as it grows: a
killed process leaves it without the last bracket, which the format allows. Names of counters are those of the Gaudi
fork's high-level profiler. Source: HabanaAI/vllm-hpu-extension, vllm_hpu_extension/profiler.py.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lsv_base.errors import ConfigError
from lsv_hpu.steps.facts import StepFacts
from lsv_runtime.devices.shapes import Shape

log = logging.getLogger(__name__)

_COUNTERS, _WARMUP, _STEPS = 1, 2, 3
_TRACKS: Mapping[int, str] = {_COUNTERS: "counters", _WARMUP: "warm-up", _STEPS: "steps"}


class StepTrace:
    """The file of one device's process: ``server_events_hpu<device>_<process>.json`` in ``folder``, which is made.

    Times are given in seconds of ``time.perf_counter``. Raises ``ConfigError`` if the file can't be written.
    """

    def __init__(self, folder: Path, device: int) -> None:
        self._pid = os.getpid()
        file = folder.absolute() / f"server_events_hpu{device}_{self._pid}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = file.open("w", buffering=1)
        except OSError as cause:
            raise ConfigError(
                f"hpu.profiler_enabled: {file} can't be written ({cause.strerror}): set hpu.profiler_dir",
                param="hpu.profiler_dir",
            ) from cause
        self._zero = time.time() - time.perf_counter()
        self._iteration = 0
        self._write({"ph": "M", "name": "process_name", "args": {"name": f"hpu {device}"}}, before="[")
        for track, name in _TRACKS.items():
            self._write({"ph": "M", "name": "thread_name", "tid": track, "args": {"name": name}})
        log.info("Profiler enabled: steps are written to %s", file)

    def begin(self, facts: StepFacts, padded: Shape, began: float) -> Callable[[], None]:
        """A step that was launched at ``began``, in a bucket; to be called when it has ended."""
        return partial(self._end, facts, padded, began)

    def add_warmup(self, name: str, began: float) -> None:
        self._add(_WARMUP, name, began, time.perf_counter(), {})

    def close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()

    def _end(self, facts: StepFacts, padded: Shape, began: float) -> None:
        ended = time.perf_counter()
        phase = "prompt" if facts.is_prompt else "decode"
        counters = _count(phase, facts, padded, ended - began)
        self._write({"ph": "C", "name": "utils", "tid": _COUNTERS, "ts": self._stamp(began), "args": counters})
        about = {
            "engine_iteration": self._iteration,
            "rows": facts.rows,
            "tokens": facts.tokens,
            "longest": facts.longest,
            "bucket": [padded.rows, padded.query, padded.blocks],
        }
        self._iteration += 1
        self._add(_STEPS, f"{phase} step", began, ended, about)

    def _add(self, track: int, name: str, began: float, ended: float, about: Mapping[str, Any]) -> None:
        stamp, length = self._stamp(began), round(1e6 * (ended - began), 3)
        self._write({"ph": "X", "name": name, "tid": track, "ts": stamp, "dur": length, "args": about})

    def _stamp(self, seconds: float) -> float:
        """Microseconds of the system's clock."""
        return round(1e6 * (self._zero + seconds), 3)

    def _write(self, event: Mapping[str, Any], before: str = ",") -> None:
        if not self._file.closed:
            self._file.write(f"{before}\n{json.dumps({'pid': self._pid, 'tid': 0, **event})}")


def _count(phase: str, facts: StepFacts, padded: Shape, seconds: float) -> dict[str, float]:
    """Batch, length and rate of a step, beside those of its bucket."""
    length = {"bucket_seq_len": padded.query} if facts.is_prompt else {"bucket_num_blocks": padded.blocks}
    counted = {
        "bucket_batch_size": padded.rows,
        "batch_size": facts.rows,
        **length,
        "seq_len": facts.longest,
        "bucket_gen_throughput": padded.rows / seconds,
        "real_gen_throughput": facts.rows / seconds,
        "batch_token_utilization": facts.tokens / padded.size,
    }
    if facts.is_prompt:
        counted |= {
            "bucket_in_throughput": padded.size / seconds,
            "real_in_throughput": facts.tokens / seconds,
        }
    return {f"{phase}_{name}": value for name, value in counted.items()}
