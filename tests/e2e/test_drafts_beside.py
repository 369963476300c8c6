"""Drafts beside what came with them: requests with adapters of their own, and texts that an encoder reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from lsv import LLM, LoRARequest, SamplingParams
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.fakes.drafter import ForcedDrafter
from lsv_testing.tiny import tiny, write_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 4}
"""As few streams as every platform has shapes for whose rows have drafts."""
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prompt lookup is replaced by what knows the answers, and is right up to anywhere."""
    monkeypatch.setattr("lsv_drafters.ngram.NgramDrafter", ForcedDrafter)
    yield
    ForcedDrafter.tell((), "right")


def check(model: Path, prompts: list[Any], more: dict[str, Any], **asked: Any) -> None:
    """Answers with drafts, some of which are accepted, are those without."""
    answers = []
    for drafts in (None, DRAFTS):
        with LLM(str(model), **PLAIN, **more, speculative_config=drafts) as llm:
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False, **asked)
            speculation = llm.stats.speculation
        answers.append([(tuple(one.prompt_token_ids), tuple(one.checked().outputs[0].token_ids)) for one in outputs])
        ForcedDrafter.tell([(*prompt, *tokens) for prompt, tokens in answers[0]], "mixed")
    assert answers[0] == answers[1]
    assert speculation is not None
    assert 0 < speculation.accepted < speculation.drafts


@pytest.mark.parametrize("more", [{}, {"max_num_batched_tokens": 24}, {"max_loras": 1}], ids=str)
def test_each_row_is_verified_through_its_adapter(more: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model", tokenizer=True)
    modules, draw = list(linear_layers(model)), random.Random(1)
    adapters = [
        LoRARequest(f"a{n}", n, str(write_adapter(tmp_path / str(n), model, modules, seed=n, rank=2, spread=0.3)))
        for n in (1, 2, 3)
    ]
    prompts = [{"prompt_token_ids": draw.choices(range(5, 250), k=7 + 5 * n)} for n in range(8)]
    lora = [None if n % 4 == 3 else adapters[n % 4] for n in range(8)]
    check(model, prompts, {"enable_lora": True, "max_loras": 3, **more}, lora_request=lora)


def test_answers_to_texts_that_are_encoded(tmp_path: Path) -> None:
    save(make_model(transformers.BartForConditionalGeneration, tiny_config("bart")), tmp_path)
    write_tokenizer(tmp_path)
    check(tmp_path, ["Rain fell on the hills all night.", "A llama hums.", "Bread"], {})
