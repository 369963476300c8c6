"""Embeddings of all-MiniLM-L6-v2, as sentence-transformers defines them: mean of the last states, then length 1."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from lsv import LLM
from published.models import Published
from published.prompts import TEXTS, read_document

LONGEST = 256
"""Tokens that the model was trained on, by its sentence_bert_config.json."""


@pytest.fixture(scope="module")
def sentences(published: Published) -> list[str]:
    lines = read_document(published.folder("text"), "build.md").splitlines()
    prose = [line for line in lines if 40 < len(line) < 400][:40]
    return [*prose, *TEXTS.values(), "", " ", "x " * 200, "a" * 600, "HELLO", "<s>[CLS] [SEP] [MASK]"]


@pytest.fixture(scope="module")
def reference(published: Published) -> tuple[object, object]:
    folder = published.folder("minilm")
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def embed(reference, texts: list[str]) -> torch.Tensor:
    tokenizer, model = reference
    found = []
    for text in texts:
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        found.append(model(**given).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(found), dim=1)


def test_embeddings_are_the_same(published: Published, reference, sentences: list[str]) -> None:
    expected = embed(reference, sentences)
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.01)):
        with LLM(str(published.folder("minilm")), dtype=dtype) as llm:
            outputs = [output.checked() for output in llm.embed(sentences, use_tqdm=False)]
            alone = llm.embed(sentences[:1], use_tqdm=False)[0].outputs.embedding
        found = torch.tensor([output.outputs.embedding for output in outputs])
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
        assert alone == outputs[0].outputs.embedding, "a batch changes no bit"


def test_a_long_text_is_embedded_by_its_beginning(published: Published, reference) -> None:
    text = read_document(published.folder("text"), "build.md")
    with LLM(str(published.folder("minilm")), dtype="float32") as llm:
        (output,) = llm.embed([text], truncate_prompt_tokens=-1, use_tqdm=False)
    found = torch.tensor([output.checked().outputs.embedding])
    torch.testing.assert_close(found, embed(reference, [text]), atol=1e-5, rtol=0)
