"""The checkpoint's greedy answers to held-out questions, and how many are exactly right, by skill."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from demo_training.checkpoint import load_text
from demo_training.question import Question, correct
from demo_training.questions import questions
from lsv_demo import CHECKPOINT

LONGEST_ANSWER = 192


@torch.inference_mode()
def answers(model: Any, tokenizer: Any, asked: Sequence[Question], batch: int = 64) -> list[str]:
    """The model's greedy answer to each question, in the order asked."""
    prompts = [
        tokenizer.apply_chat_template(list(each.messages), tokenize=False, add_generation_prompt=True) for each in asked
    ]
    # Alike lengths together: less padding, and a batch ends when its longest answer does.
    order = sorted(range(len(asked)), key=lambda place: (len(asked[place].answer), len(prompts[place])))
    texts = [""] * len(asked)
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        inputs = tokenizer(
            [prompts[place] for place in places], return_tensors="pt", padding=True, padding_side="left",
            add_special_tokens=False, return_token_type_ids=False,
        )  # fmt: skip
        outputs = model.generate(
            **inputs, max_new_tokens=LONGEST_ANSWER, do_sample=False, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        new = outputs[:, inputs["input_ids"].shape[1] :]
        for place, text in zip(places, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            texts[place] = text
    return texts


def score(asked: Sequence[Question], texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Right answers and questions, by skill and over "all"."""
    table: dict[str, tuple[int, int]] = {}
    for question, text in zip(asked, texts, strict=True):
        for row in (question.skill, "all"):
            right, total = table.get(row, (0, 0))
            table[row] = (right + correct(question.answer, text), total + 1)
    return table


def accuracy(table: dict[str, tuple[int, int]]) -> float:
    right, total = table["all"]
    return right / total


def show(table: dict[str, tuple[int, int]]) -> str:
    """The table as text, worst skill first."""
    rows = sorted(table.items(), key=lambda row: row[1][0] / row[1][1])
    width = max(16, *map(len, table))
    return "\n".join(f"{name:{width}} {right:4} / {total:4}  {right / total:6.1%}" for name, (right, total) in rows)


def main() -> None:
    """Ask the checkpoint held-out questions and print how many answers are exactly right, by skill."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.evaluate", description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--misses", action="store_true", help="print every wrong answer")
    options = parser.parse_args()
    model = load_text(options.checkpoint)[0].eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.checkpoint)
    asked = questions("test", options.count, options.seed)
    texts = answers(model, tokenizer, asked)
    if options.misses:
        for question, text in zip(asked, texts, strict=True):
            if not correct(question.answer, text):
                ask = question.messages[-1]["content"]
                print(f"{question.skill}: {ask!r} -> {text!r}, not {question.answer!r}")
    print(show(score(asked, texts)))


if __name__ == "__main__":
    main()
