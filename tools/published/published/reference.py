"""Answers of transformers in float32, which tests/real/golden keeps. It reads GGUF files with the package ``gguf``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from transformers import AutoModelForCausalLM

from lsv_quant.gguf.file import read_gguf
from lsv_quant.gguf.tokenizer import write_tokenizer

TOP = 5
Scores = list[tuple[int, float]]
"""Tokens with their log probabilities, the likeliest first."""


class Answer(msgspec.Struct):
    """A greedy answer to a prompt, and what was likeliest at each place of it."""

    name: str
    prompt: list[int]
    tokens: list[int]
    scores: list[Scores]


def load_reference(file: Path) -> Any:
    """The model of a GGUF file, its weights dequantised by transformers."""
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return cast(Any, model).eval()


@torch.inference_mode()
def answer_greedily(model: Any, name: str, prompt: Sequence[int], count: int) -> Answer:
    """The likeliest ``count`` tokens after a prompt, one after the other, whether or not the answer ends before."""
    model.generation_config.eos_token_id = None
    given = torch.tensor([prompt])
    made = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    answer = Answer(name, list(prompt), made.sequences[0, len(prompt) :].tolist(), [])
    for (logits,) in made.logits:
        best = logits.double().log_softmax(-1).topk(TOP)
        answer.scores.append([(int(token), round(float(score), 6)) for score, token in zip(*best, strict=True)])
    return answer


@torch.inference_mode()
def log_likelihood(model: Any, ids: Sequence[int], first: int) -> float:
    """The summed log probability of ``ids`` from ``first`` on, each after all before it."""
    logits = model(torch.tensor([ids])).logits[0, first - 1 : -1]
    found = logits.double().log_softmax(-1).gather(1, torch.tensor(ids[first:])[:, None])
    return float(found.sum())


def save_plain(file: Path, target: Path) -> None:
    """Write a GGUF file's model in float32. lsv converts the tokenizer: transformers' misses how digits are split."""
    model = load_reference(file)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    write_tokenizer(read_gguf(file).metadata, target)
