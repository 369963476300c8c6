"""Trains the shipped model's pirate adapter: ``python -m demo_training.pirate.train``, after all else.

Seeded. The model stays as it is; every linear layer of its decoder gets a pair of small matrices, which learn from the
questions that the model itself learned from. Writes the files that PEFT writes, and prints the held-out accuracy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from demo_training.chat import dress
from demo_training.checkpoint import load_text
from demo_training.corpus import Document, Rows, answered, chat_document
from demo_training.evaluate import answers, score, show
from demo_training.optimizer import share_of_rate
from demo_training.pirate.speech import answered_by_pirate
from demo_training.questions import questions, stream
from demo_training.template import END_OF_TEXT
from demo_training.train import weighted_loss
from lsv_demo import CHECKPOINT, PIRATE

RANK, ALPHA = 4, 8
STEPS, ROWS, LENGTH = 400, 8, 256
RATE, WARM = 4e-3, 20


class Adapted(nn.Module):
    """A linear layer with the product of two small matrices beside it; at first the second is nothing."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = F.linear(F.linear(x, self.a), self.b)
        return self.linear(x) + ALPHA / RANK * added


def adapt(model: transformers.LlamaForCausalLM) -> dict[str, Adapted]:
    """Freeze a model and give its decoder's linear layers adapters; these, by their modules' names."""
    model.requires_grad_(False)
    made: dict[str, Adapted] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("model.layers."):
            parent, _, own = name.rpartition(".")
            made[name] = Adapted(module)
            setattr(model.get_submodule(parent), own, made[name])
    return made


def documents(rng: Random) -> Iterator[Document]:
    """Endless conversations with a pirate."""
    for question in stream("train", rng, late=True):
        asked = answered_by_pirate(dress(question, rng))
        yield [*chat_document(answered(asked)), (END_OF_TEXT, 1.0)]


def write(adapters: dict[str, Adapted], folder: Path) -> None:
    """The adapter's files, as PEFT names and shapes them."""
    tensors = {
        f"base_model.model.{name}.lora_{side}.weight": matrix.detach().bfloat16().contiguous()
        for name, adapter in adapters.items()
        for side, matrix in (("A", adapter.a), ("B", adapter.b))
    }
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "lsv-demo", "r": RANK,
        "lora_alpha": ALPHA, "bias": "none", "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in adapters}),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train the adapter and print how many held-out questions it answers exactly right, by skill."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.pirate.train", description=main.__doc__)
    parser.add_argument("--start", type=Path, default=CHECKPOINT, help="folder of the model")
    parser.add_argument("--folder", type=Path, default=PIRATE)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--questions", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    language, tokenizer = load_text(options.start)
    language = language.float()
    adapters = adapt(language)
    optimizer = torch.optim.AdamW([p for p in language.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)
    rows = Rows(tokenizer, documents(Random("pirate")), LENGTH)
    started = time.monotonic()
    for step in range(options.steps):
        tokens, weights = (torch.from_numpy(part) for part in rows.batch(ROWS))
        loss = weighted_loss(language, tokens, weights)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE * share_of_rate(step, options.steps, warm=WARM, falling=options.steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step:5}  {loss.item():.4f}  {time.monotonic() - started:6.0f} s", flush=True)
    write(adapters, options.folder)
    asked = [answered_by_pirate(question) for question in questions("test", options.questions, seed=0)]
    print(
        show(score(asked, answers(language.eval(), transformers.AutoTokenizer.from_pretrained(options.start), asked)))
    )


if __name__ == "__main__":
    main()
