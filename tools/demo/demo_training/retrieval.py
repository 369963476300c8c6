"""Train what makes the demo's hidden states into vectors by which a question finds its fact, and test it.

`python -m demo_training.retrieval` computes the mean state of every fact and of its phrasings with lsv, trains one
linear layer so that a question's vector lies closest to its own fact's, writes the layer and the files of
sentence-transformers into the checkpoint, and prints how many held-out questions find the right one of ten facts,
before and after. A phrasing that is held out was never seen with that fact, in this training as in the model's.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from torch.nn import functional

from demo_training.chat import dress
from demo_training.facts import Fact, all_facts
from demo_training.question import Split, split_of
from demo_training.skills import draw
from lsv import LLM, PoolingParams

KINDS = ("people", "towns", "animals", "things", "capitals")
TEMPERATURE = 0.05
Pair = tuple[str, str]
"""A question and the fact that answers it."""


def pairs(split: Split) -> list[Pair]:
    """Every phrasing of every fact that falls on this side of the split."""
    return [(ask, fact.answer) for fact in all_facts() for ask in fact.asks if split_of(fact.key(ask)) == split]


def dressed(count: int) -> list[Pair]:
    """So many questions for facts as users put them, with their asides and slips."""
    rng = Random(0)
    found = [draw(KINDS[place % len(KINDS)], "train", rng) for place in range(count)]
    return [(dress(question, rng).messages[-1]["content"], question.answer) for question in found]


def cases(count: int, seed: int = 0, choices: int = 10) -> list[tuple[str, list[str], int]]:
    """Held-out questions, each with the answers of `choices` facts of its own kind of subject or others, one of them
    right, and the place of that.
    """
    rng = Random(seed)
    facts = list(all_facts())
    found = []
    for ask, answer in rng.sample(pairs("test"), count):
        others = [other for other in rng.sample(facts, 4 * choices) if not answers(other, ask)]
        documents = list(dict.fromkeys(other.answer for other in others if other.answer != answer))[: choices - 1]
        place = rng.randrange(choices)
        found.append((ask, [*documents[:place], answer, *documents[place:]], place))
    return found


def answers(fact: Fact, ask: str) -> bool:
    """Whether a fact answers a question, too."""
    return ask in fact.asks


def mean_states(llm: LLM, texts: Sequence[str]) -> torch.Tensor:
    """[texts, hidden]."""
    outputs = llm.encode(list(texts), PoolingParams(task="embed", normalize=False), use_tqdm=False)
    return torch.tensor([output.checked().outputs.embedding for output in outputs])


def train(questions: torch.Tensor, facts: torch.Tensor, targets: torch.Tensor, *, epochs: int) -> torch.Tensor:
    """The weight [size, hidden] by which questions come closest to their own of all facts."""
    torch.manual_seed(0)
    size = questions.shape[1]
    weight = torch.nn.Parameter(torch.eye(size) + 0.01 * torch.randn(size, size))
    optimizer = torch.optim.AdamW([weight], lr=2e-3, weight_decay=0.05)
    batch = 256
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(questions) // batch + 1))
    for _ in range(epochs):
        for chosen in torch.randperm(len(questions)).split(batch):
            asked = functional.normalize(functional.linear(questions[chosen], weight), dim=-1)
            known = functional.normalize(functional.linear(facts, weight), dim=-1)
            loss = functional.cross_entropy(asked @ known.T / TEMPERATURE, targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.step()
    return weight.detach()


def share_right(llm: LLM, asked: Sequence[tuple[str, list[str], int]], weight: torch.Tensor | None) -> float:
    """Of questions that find the right fact by the cosine of their vectors."""
    texts = list(dict.fromkeys(text for ask, documents, _ in asked for text in (ask, *documents)))
    states = mean_states(llm, texts)
    vectors = functional.normalize(states if weight is None else functional.linear(states, weight), dim=-1)
    by_text = dict(zip(texts, vectors, strict=True))
    right = 0
    for ask, documents, place in asked:
        scores = torch.stack([by_text[document] for document in documents]) @ by_text[ask]
        right += int(scores.argmax()) == place
    return right / len(asked)


def write(folder: Path, weight: torch.Tensor) -> None:
    """The layer, and the files that say how states become vectors."""
    base = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    written = [
        {"idx": place, "name": str(place), "path": path, "type": f"{base}.{kind}"}
        for place, (path, kind) in enumerate(modules)
    ]
    outputs, inputs = weight.shape
    pooling = {"word_embedding_dimension": inputs, "pooling_mode_mean_tokens": True}
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": inputs, "out_features": outputs, "bias": False, "activation_function": identity}
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir(exist_ok=True)
    for name, content in (
        ("modules.json", written),
        ("1_Pooling/config.json", pooling),
        ("2_Dense/config.json", dense),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    save_file({"linear.weight": weight.bfloat16().contiguous()}, folder / "2_Dense" / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--dressed", type=int, default=6000)
    parser.add_argument("--questions", type=int, default=100)
    options = parser.parse_args()
    trained = pairs("train") + dressed(options.dressed)
    known = list(dict.fromkeys(answer for _, answer in trained))
    plain = {"pooling_type": "MEAN", "normalize": False}
    (options.folder / "modules.json").unlink(missing_ok=True)
    with LLM(str(options.folder), pooler_config=plain) as llm:
        asked = cases(options.questions)
        print(f"mean states alone: {share_right(llm, asked, None):.0%} of {len(asked)}")
        questions, facts = mean_states(llm, [ask for ask, _ in trained]), mean_states(llm, known)
        place = {answer: index for index, answer in enumerate(known)}
        targets = torch.tensor([place[answer] for _, answer in trained])
        print(f"{len(trained)} questions, {len(known)} facts", flush=True)
        weight = train(questions, facts, targets, epochs=options.epochs).bfloat16().float()
        print(f"with the layer: {share_right(llm, asked, weight):.0%} of {len(asked)}")
    write(options.folder, weight)


if __name__ == "__main__":
    main()
