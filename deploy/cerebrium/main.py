"""What Cerebrium serves: the engine is made with the container, ``run`` is called for each request."""

from __future__ import annotations

from lsv import LLM, SamplingParams

llm = LLM()
"""LSV_MODEL and other variables of lsv say which model it is and how it runs."""


def run(prompts: list[str], temperature: float = 0.8, top_p: float = 0.95) -> dict[str, list[dict[str, str]]]:
    """The answer to each prompt."""
    answers = llm.generate(prompts, SamplingParams(temperature=temperature, top_p=top_p), use_tqdm=False)
    return {"results": [{"prompt": answer.prompt or "", "text": answer.outputs[0].text} for answer in answers]}
