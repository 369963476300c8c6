"""OpenVINO GenAI's pipeline with continuous batching and prefix caching."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, Any], room: dict[str, int]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = room["kv_gib"]
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = room["sequences"]
        scheduler.max_num_batched_tokens = 2048
        device = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", device)

    def generate(self, prompts: list[list[int]], count: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        asked = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        return [len(one.m_generation_ids[0]) for one in self._pipeline.generate(asked, [config] * len(asked))]

    def close(self) -> None:
        pass
