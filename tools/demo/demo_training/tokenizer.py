"""Trains the byte-level BPE tokenizer on the training text and writes it in the Hugging Face form."""

import json
from itertools import islice
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_training.corpus import documents
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, MARKERS, MEDIA

VOCABULARY = 1024
TRAINING_DOCUMENTS = 20_000


def train_tokenizer(seed: int) -> Tokenizer:
    """Byte-level BPE, so that any text comes back as it went in; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MEDIA),
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    chosen = islice(documents(Random(f"tokenizer {seed}"), long=False), TRAINING_DOCUMENTS)
    texts = (text for document in chosen for text, _ in document if text not in MARKERS)
    tokenizer.train_from_iterator((_without_markers(text) for text in texts), trainer)
    tokenizer.add_special_tokens(list(MEDIA.values()))
    return tokenizer


def _without_markers(text: str) -> str:
    for marker in MARKERS:
        text = text.replace(marker, "")
    return text


def media_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The token that stands for each kind of media."""
    return {kind: tokenizer.token_to_id(token) for kind, token in MEDIA.items()}


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, the chat template within."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
