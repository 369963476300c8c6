"""Vectors of sentences: an encoder of BERT-base's shape, beside transformers with padding, sorted by length.

    python benchmarks/pooling.py [--sentences 512] [--repeats 3] [--layers 12] [--batch 32]

Random weights in bfloat16 and random token ids of mixed lengths, most of them short. lsv takes them as they come,
through ``LLM.encode``, in flat steps without padding; transformers gets them sorted by length, in batches padded to
their longest, which is its best order. Both run in this process by turns; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

from lsv import LLM, PoolingParams


def draw_sentences(count: int, vocabulary: int) -> list[list[int]]:
    """Token ids of ``count`` sentences of 4 to 256 tokens, by a log-normal distribution."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(3.3, 0.7, count), 4, 256).astype(int)
    return [generator.integers(1000, vocabulary, length).tolist() for length in lengths]


def run_transformers(model: BertModel, sentences: list[list[int]], batch: int) -> torch.Tensor:
    """The mean vector of each sentence, in their order."""
    order = sorted(range(len(sentences)), key=lambda place: len(sentences[place]))
    vectors = torch.empty(len(sentences), model.config.hidden_size)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        longest = len(sentences[chosen[-1]])
        ids, mask = torch.zeros(2, len(chosen), longest, dtype=torch.long)
        for row, place in enumerate(chosen):
            ids[row, : len(sentences[place])] = torch.tensor(sentences[place])
            mask[row, : len(sentences[place])] = 1
        with torch.inference_mode():
            states = model(ids, attention_mask=mask).last_hidden_state.float()
        vectors[chosen] = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return vectors


def measure(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sentences", 512), ("repeats", 3), ("layers", 12), ("batch", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=options.layers)
    model = BertModel(config, add_pooling_layer=False).to(torch.bfloat16).eval()
    sentences = draw_sentences(options.sentences, config.vocab_size)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model.save_pretrained(folder)
        pooler = {"pooling_type": "MEAN", "normalize": False}
        llm = LLM(str(folder), skip_tokenizer_init=True, dtype="bfloat16", pooler_config=pooler)
        params = PoolingParams()

        def embed() -> torch.Tensor:
            outputs = llm.encode(prompt_token_ids=sentences, pooling_params=params, use_tqdm=False)
            return torch.tensor([output.outputs.embedding for output in outputs])

        with llm:
            ours, theirs = embed(), run_transformers(model, sentences, options.batch)
            nearest = torch.nn.functional.cosine_similarity(ours, theirs).min()
            rounds = [
                (measure(embed), measure(lambda: run_transformers(model, sentences, options.batch)))
                for _ in range(options.repeats)
            ]
    mine, other = (statistics.median(one) for one in zip(*rounds, strict=True))
    tokens = sum(map(len, sentences))
    print(f"{len(sentences)} sentences, {tokens} tokens, cosine to transformers at least {nearest:.4f}")
    print(f"lsv          {tokens / mine:8.0f} tokens/s")
    print(f"transformers {tokens / other:8.0f} tokens/s")
    print(f"ratio        {other / mine:8.2f}")


if __name__ == "__main__":
    main()
