"""Trains the MLP speculator of lsv-demo: what drafts the next few tokens of an answer from the model's last state.

`python -m demo_training.speculator` is seeded and takes about half an hour on a free core. The model
itself is not changed.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo_training.checkpoint import load_text
from demo_training.corpus import Rows, documents
from demo_training.optimizer import share_of_rate
from demo_training.train import SHORT
from lsv_demo import CHECKPOINT, SPECULATOR

PLACES, WIDTH = 5, 192
"""Tokens that are drafted, and the size of the states in between."""
ROWS, RATE, WARM = 8, 4e-3, 50
EPSILON = 1e-6


class Speculator(nn.Module):
    """All places share their weights but the first projection; the arithmetic is that of IBM's `fms-extras`."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.first, self.further = nn.Linear(hidden, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.emb, self.head = nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        for weight in (self.first.weight, self.further.weight, self.emb.weight, self.head.weight):
            nn.init.normal_(weight, std=WIDTH**-0.5)
        state = 0.5 ** (0.5 / PLACES)
        self.share = math.sqrt((1 - state**2) * (WIDTH / 2)) / state

    def forward(self, states: Tensor, tokens: Tensor, place: int) -> Tensor:
        """The next states [..., WIDTH], from those before and the tokens [...] that follow them."""
        project = self.further if place else self.first
        x = project(states) + self.share * self.emb(tokens)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
        return F.gelu(x * self.scale + self.shift)

    def named_tensors(self) -> dict[str, Tensor]:
        """By the names of the published checkpoints, where places share them each once."""
        return {
            "speculator.emb.0.weight": self.emb.weight, "speculator.head.0.weight": self.head.weight,
            "speculator.proj.0.weight": self.first.weight, "speculator.proj.1.weight": self.further.weight,
            "speculator.ln.0.weight": self.scale, "speculator.ln.0.bias": self.shift,
        }  # fmt: skip


@torch.no_grad()
def read(model: transformers.LlamaForCausalLM, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The normed states [rows, length, hidden] of tokens [rows, length], and the likeliest token behind each."""
    states = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return states.float(), model.lm_head(states).argmax(-1)


def losses(
    speculator: Speculator, states: Tensor, said: Tensor, tokens: Tensor, answer: Tensor
) -> tuple[Tensor, list[float]]:
    """The mean loss over all places, and of each how often it is right once those before it are.

    Behind state t stands token t + 1, which is known; the first place is to say what the model says behind that. Only
    what follows a token for which `answer` [rows, length] holds is learnt.
    """
    counted = answer[:, : -PLACES - 1].flatten().nonzero().squeeze(1)
    x, losses, right = pick(states, 0, counted), [], []
    good = torch.ones(len(counted), dtype=torch.bool)
    for place in range(PLACES):
        x = speculator(x, pick(tokens, place + 1, counted), place)
        logits, wanted = speculator.head(x), pick(said, place + 1, counted)
        losses.append(F.cross_entropy(logits, wanted))
        good &= logits.argmax(-1) == wanted
        right.append(float(good.float().mean()))
    return torch.stack(losses).mean(), right


def pick(values: Tensor, behind: int, places: Tensor) -> Tensor:
    """Of values [rows, length, …] those that stand `behind` some places of the rows without their last tokens."""
    size = values.shape[1] - PLACES - 1
    return values[:, behind : behind + size].flatten(0, 1)[places]


def save(speculator: Speculator, vocabulary: int, hidden: int, folder: Path) -> None:
    """Write the checkpoint in the format of the published ones."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": hidden,
        "inner_dim": WIDTH, "n_predict": PLACES, "vocab_size": vocabulary, "tie_weights": True, "scale_input": False,
        "n_candidates": 1, "top_k_tokens_per_head": [1] * PLACES, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().bfloat16().contiguous() for name, tensor in speculator.named_tensors().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def take_up(speculator: Speculator, folder: Path) -> None:
    """The weights that `save` wrote there."""
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, tensor in speculator.named_tensors().items():
            tensor.copy_(tensors[name])


def train(steps: int, seed: int, folder: Path, first: Path | None) -> None:
    """Teach a speculator what the model says in the assistant's turns of its own training text."""
    torch.manual_seed(seed)
    model, tokenizer = load_text(CHECKPOINT)
    model.eval()
    hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
    speculator = Speculator(hidden, vocabulary)
    if first is not None:
        take_up(speculator, first)
    optimizer = torch.optim.AdamW(speculator.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    rows = Rows(tokenizer, documents(Random(f"speculator {seed}"), long=False, late=True), SHORT)
    seen = [0.0] * PLACES
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * share_of_rate(step, steps, warm=WARM, falling=0.7 * steps)
        tokens, weights = map(torch.from_numpy, rows.batch(ROWS))
        states, said = read(model, tokens)
        # what is said behind a token is the assistant's where the token that follows it is
        loss, right = losses(speculator, states, said, tokens, F.pad(weights[:, 2:], (0, 2)) >= 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen = [0.95 * before + 0.05 * now for before, now in zip(seen, right, strict=True)] if step else right
        if step % 50 == 0:
            print(f"step {step:5}  loss {loss.item():.3f}  right {' '.join(f'{one:.2f}' for one in seen)}", flush=True)
            save(speculator, vocabulary, hidden, folder)
    save(speculator, vocabulary, hidden, folder)


def main() -> None:
    """Train the speculator and write its checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.speculator", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=SPECULATOR)
    parser.add_argument("--first", type=Path, help="a folder whose weights to begin with")
    options = parser.parse_args()
    train(options.steps, options.seed, options.folder, options.first)


if __name__ == "__main__":
    main()
