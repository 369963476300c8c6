"""transformers' generate: one static batch, eager."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, Any], room: dict[str, int]) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    def generate(self, prompts: list[list[int]], count: int) -> list[int]:
        config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
        self._model.generation_config = config
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return [found.shape[1] - ids.shape[1]] * len(prompts)

    def close(self) -> None:
        pass
