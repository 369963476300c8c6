"""lsv's offline API."""

from __future__ import annotations

from typing import Any

from lsv.request.params import SamplingParams
from lsv_offline.llm import LLM


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, Any], room: dict[str, int]) -> None:
        self._llm = LLM(
            model, skip_tokenizer_init=True, max_model_len=room["context"], max_num_seqs=room["sequences"], **options
        )

    def generate(self, prompts: list[list[int]], count: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [len(one.outputs[0].token_ids) for one in self._llm.generate(asked, params, use_tqdm=False)]

    def close(self) -> None:
        self._llm.close()
