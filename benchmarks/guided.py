"""What keeping answers to a form costs: throughput beside the same requests without one, and the filling of a mask.

    python benchmarks/guided.py [MODEL] [--batch 16] [--tokens 128] [--rounds 5] [--vocabulary 152000]

MODEL may be a shape of checkpoints.py: random weights, with a tokenizer of the made-up vocabulary.

Throughput is measured in one run, by turns: a batch of requests whose answers must match ``(.|\\n)*``, which forbids
next to nothing and never ends, and the same batch without. Masks are filled for a schema and a regular expression
along answers of random choices, over a made-up vocabulary. Only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from checkpoints import SHAPES, make_checkpoint
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lsv import LLM, SamplingParams, StructuredOutputsParams
from lsv.grammars.grammar import Vocabulary
from lsv_guidance.backend import GuidanceBackend

FORMS = {
    "schema": StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kind": {"enum": ["one", "two", "three"]},
                "sizes": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["name", "kind", "sizes"],
        }
    ),
    "json_object": StructuredOutputsParams(json_object=True),
    "regex": StructuredOutputsParams(regex=r"[A-Z][a-z]+( [a-z]+)*\. \d{3,9}"),
}
OPEN = StructuredOutputsParams(regex=r"(.|\n)*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="lsv-demo")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help="how often each kind is measured")
    parser.add_argument("--vocabulary", type=int, default=152_000, help="tokens of the made-up vocabulary")
    options = parser.parse_args()
    report_masks(options.vocabulary)
    model = with_tokenizer(options.model) if options.model in SHAPES else options.model
    report_throughput(model, options.batch, options.tokens, options.rounds)


def report_masks(size: int) -> None:
    began = time.perf_counter()
    backend = GuidanceBackend(made_up_vocabulary(size))
    print(f"vocabulary of {size}: {time.perf_counter() - began:.2f} s")
    for name, form in FORMS.items():
        seconds = fill_times(backend, form, size)
        mean, worst = 1000 * statistics.fmean(seconds), 1000 * max(seconds)
        print(f"mask of {name}: {mean:.3f} ms a row, at most {worst:.3f} ms, of {len(seconds)}")


def made_up_vocabulary(size: int) -> Vocabulary:
    """Bytes, words with and without a space before them, and an end."""
    draw, letters = random.Random(0), 'etaoinshrdlucmfwypvbgkjqxzETAOIN0123456789{}[]":,.'
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    while len(tokens) < size - 1:
        word = "".join(draw.choices(letters, k=draw.randint(2, 9)))
        tokens[(" " * draw.randint(0, 1) + word).encode()] = None
    return Vocabulary([*tokens, b"</s>"], frozenset({size - 1}), (size - 1,), lambda text: list(text.encode()))


def with_tokenizer(shape: str) -> str:
    """A checkpoint of that shape with a byte-level tokenizer, whose tokens are the made-up ones."""
    folder = make_checkpoint(shape, Path(tempfile.gettempdir()) / "lsv-benchmarks")
    if not (folder / "tokenizer.json").exists():
        size, shown = SHAPES[shape]["vocab_size"], _shown_bytes()
        pieces = ("".join(shown[byte] for byte in token) for token in made_up_vocabulary(size).tokens[:-1])
        backend = tokenizers.Tokenizer(
            models.BPE(vocab={piece: token for token, piece in enumerate(pieces)}, merges=[])
        )
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        backend.add_special_tokens([AddedToken("</s>", special=True)])
        backend.save(str(folder / "tokenizer.json"))
    return str(folder)


def _shown_bytes() -> list[str]:
    """The character byte-level tokenizers show each byte by: itself where it is printable, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def fill_times(backend: GuidanceBackend, form: StructuredOutputsParams, size: int, answers: int = 20) -> list[float]:
    """Seconds of each mask along answers, whose tokens are drawn from what is allowed."""
    draw, grammar, seconds = random.Random(1), backend.compile(form), []
    words = np.zeros(-(-size // 32), np.int32)
    for _ in range(answers):
        matcher = grammar.begin()
        for _ in range(60):
            began = time.perf_counter()
            matcher.fill(memoryview(words))
            seconds.append(time.perf_counter() - began)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            if matcher.finished or not len(allowed) or not matcher.accept([int(draw.choice(allowed))]):
                break
    return seconds


def report_throughput(model: str, batch: int, tokens: int, rounds: int) -> None:
    llm = LLM(model, max_num_seqs=batch, enable_prefix_caching=False)
    prompts = [f"Number {number} is a story about" for number in range(batch)]
    kinds = {"plain": None, "guided": OPEN}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, form in kinds.items():
            rate = tokens_per_second(llm, prompts, tokens, form)
            if turn:  # the first warms up, and compiles
                rates[name].append(rate)
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.0f} tokens/s")
    ratios = [guided / plain for guided, plain in zip(rates["guided"], rates["plain"], strict=True)]
    print(f"guided / plain: {statistics.median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})")


def tokens_per_second(llm: LLM, prompts: Sequence[str], tokens: int, form: StructuredOutputsParams | None) -> float:
    params = SamplingParams(
        max_tokens=tokens, min_tokens=tokens, temperature=1.0, seed=0, ignore_eos=True, structured_outputs=form
    )
    began = time.perf_counter()
    answers = llm.generate(list(prompts), params, use_tqdm=False)
    return sum(len(answer.outputs[0].token_ids) for answer in answers) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
