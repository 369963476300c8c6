"""The training text: what is trained is what the server sends, and a plan's rates and rows are as drawn."""

from random import Random

import pytest
import transformers
from tokenizers import Tokenizer

from demo_training.corpus import Rows, answered, chat_document, documents
from demo_training.questions import questions
from demo_training.train import Plan
from lsv_demo import CHECKPOINT


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def test_conversations_are_trained_as_the_template_renders_them(tokenizer: Tokenizer) -> None:
    template = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    for question in questions("train", 120, 0):
        messages = answered(question)
        rendered = template.apply_chat_template(list(messages), tokenize=False)
        pieces = chat_document(messages)
        assert "".join(text for text, _ in pieces) == rendered
        trained = [token for text, _ in pieces for token in tokenizer.encode(text).ids]
        assert trained == tokenizer.encode(rendered).ids


def test_loss_is_on_answers(tokenizer: Tokenizer) -> None:
    question = questions("train", 1, 0)[0]
    full = [text for text, weight in chat_document(answered(question)) if weight == 1.0]
    assert full[-1] == question.answer + "<|im_end|>"


@pytest.mark.parametrize("long", [False, True])
def test_rows_have_the_asked_shape_and_repeat_with_their_seed(tokenizer: Tokenizer, long: bool) -> None:
    tokens, weights = Rows(tokenizer, documents(Random(3), long), 256).batch(4)
    again, _ = Rows(tokenizer, documents(Random(3), long), 256).batch(4)
    assert tokens.shape == weights.shape == (4, 257)
    assert (tokens == again).all()
    assert tokens.max() < tokenizer.get_vocab_size()


def test_rate_rises_stays_and_falls() -> None:
    plan = Plan(steps=2000, early=1000, warm=10)
    assert plan.scale(0) < plan.scale(5) < plan.scale(10) == plan.scale(999) == 1.0
    assert plan.scale(1500) == pytest.approx(0.5)
    assert 0 < plan.scale(1999) < 0.01
