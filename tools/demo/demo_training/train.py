"""Trains lsv-demo from nothing: text, tokenizer, model, checkpoint, held-out accuracy.

`python -m demo_training.train` is seeded and takes about 25 minutes on two free cores. Where other programs run on the
same cores, `OMP_WAIT_POLICY=passive` keeps its threads from waiting busily for each other.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.corpus import Rows, documents
from demo_training.evaluate import accuracy, answers, score, show
from demo_training.optimizer import MasterWeights, share_of_rate
from demo_training.questions import questions
from demo_training.template import END_OF_TEXT, END_OF_TURN
from demo_training.tokenizer import VOCABULARY, save_tokenizer, train_tokenizer
from lsv_demo import CHECKPOINT

CONTEXT = 2048
KEPT = Path(tempfile.gettempdir()) / "lsv-demo-training.pt"


@dataclass(frozen=True)
class Plan:
    """The course of one training run; `seed` settles the text, the first weights and the order of rows.

    For the `early` steps the learning rate stays high; after them it falls, and the text has its late mix.
    """

    steps: int
    early: int = 900
    seed: int = 0
    tokens: int = 4096
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    warm: int = 60
    check_every: int = 300

    def scale(self, step: int) -> float:
        return share_of_rate(step, self.steps, warm=self.warm, falling=self.steps - self.early)


# Row lengths with the share of steps they get. Short rows cost far less attention; the long ones teach that
# answers do not depend on how much was said before, up to the whole context.
LENGTHS = {256: 0.85, 1024: 0.11, 2048: 0.04}
SHORT = 256


def shape(tokenizer: Tokenizer) -> transformers.LlamaConfig:
    """The model's dimensions: multiples of 256, heads that divide by two for tensor parallelism."""
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END_OF_TURN),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        attn_implementation="sdpa",
        dtype="bfloat16",
    )


def first_weights(model: transformers.LlamaForCausalLM) -> None:
    """Small random matrices; those that write to the residual stream begin at nothing."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)


def rows_by_length(tokenizer: Tokenizer, seed: int, late: bool) -> dict[int, Rows]:
    """A packer for each row length, with the early or the late mix of skills."""
    return {
        length: Rows(
            tokenizer, documents(Random(f"{length} {seed}{' late' * late}"), long=length > SHORT, late=late), length
        )
        for length in LENGTHS
    }


def batches(tokenizer: Tokenizer, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless tokens and loss weights, each of [rows, length + 1], the length drawn anew at each step."""
    rng = Random(f"batches {plan.seed}")
    for step in count():
        if step in (0, plan.early):
            rows = rows_by_length(tokenizer, plan.seed, late=step > 0)
        length = rng.choices(list(LENGTHS), list(LENGTHS.values()))[0]
        tokens, weights = rows[length].batch(plan.tokens // length)
        yield torch.from_numpy(tokens), torch.from_numpy(weights)


def weighted_loss(model: transformers.LlamaForCausalLM, tokens: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of the next token over tokens of [rows, length + 1], by their weights."""
    # On CPUs the flash kernel only pays off for long rows.
    model.set_attn_implementation("eager" if tokens.shape[1] <= SHORT + 1 else "sdpa")
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    losses = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    each = weights[:, 1:].flatten()
    return (losses * each).sum() / each.sum()


def save(model: transformers.LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint in the plain Hugging Face format."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True,
        temperature=0.3,
        eos_token_id=[tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)],
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, CONTEXT)


def check(model: transformers.LlamaForCausalLM, folder: Path, size: int, seed: int) -> dict[str, tuple[int, int]]:
    """The score on `size` held-out questions."""
    asked = questions("test", size, seed)
    model.eval().set_attn_implementation("sdpa")
    table = score(asked, answers(model, transformers.AutoTokenizer.from_pretrained(folder), asked))
    model.train()
    return table


def keep(weights: MasterWeights, plan: Plan, steps: int, kept: Path) -> None:
    """Write what a later run needs to go on after `steps` steps."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"plan": asdict(plan), "steps": steps, "weights": weights.state()}, kept)


def resume(weights: MasterWeights, plan: Plan, kept: Path) -> int:
    """Take up what `keep` wrote for the same plan, if it did; returns the steps already made."""
    if not kept.exists():
        return 0
    found = torch.load(kept, weights_only=True)
    if found["plan"] != asdict(plan):
        return 0
    weights.restore(found["weights"])
    return int(found["steps"])


def train(plan: Plan, folder: Path, kept: Path) -> transformers.LlamaForCausalLM:
    """Train by `plan` into `folder`; a run that was interrupted goes on from `kept`."""
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(plan.seed)
    model = transformers.LlamaForCausalLM(shape(tokenizer)).bfloat16()
    first_weights(model)
    weights = MasterWeights(model, plan.matrix_rate, plan.other_rate)
    first = resume(weights, plan, kept)
    source = islice(batches(tokenizer, plan), first, None)
    started, mean = time.monotonic(), 0.0
    for step in range(first, plan.steps):
        loss = weighted_loss(model, *next(source))
        loss.backward()
        weights.step(plan.scale(step))
        mean = loss.item() if step == first else 0.95 * mean + 0.05 * loss.item()
        if step % 20 == 0:
            print(f"step {step:5}  loss {mean:.4f}  {time.monotonic() - started:6.0f} s", flush=True)
        if (step + 1) % plan.check_every == 0 and step + 1 < plan.steps:
            save(model, tokenizer, folder)
            keep(weights, plan, step + 1, kept)
            print(show(check(model, folder, 90, seed=1)), flush=True)
    save(model, tokenizer, folder)
    kept.unlink(missing_ok=True)
    return model


def main() -> None:
    """Train the model, write the checkpoint and print its held-out accuracy by skill."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.train", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where an interrupted run keeps its state")
    options = parser.parse_args()
    model = train(Plan(options.steps, seed=options.seed), options.folder, options.kept)
    table = check(model, options.folder, 1000, seed=0)
    print(show(table))
    print(f"accuracy {accuracy(table):.1%}")


if __name__ == "__main__":
    main()
