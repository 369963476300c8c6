"""The bytes of single tokens: together those of the text, also where a character is spread over several."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lsv.text.spelling import find_spelling
from lsv.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    import lsv_demo

    return Tokenizer.load(Path(lsv_demo.__file__).parent / "checkpoint")


def fallback() -> Tokenizer:
    """Like Llama 2: words, and a token for each byte."""
    vocab = {"<unk>": 0, "▁Hi": 257, "▁▁▁": 258, "<0xZZ>": 259} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(backend)


@given(text=st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_byte_level_tokens_put_together(demo: Tokenizer, text: str):
    ids = demo.encode(text, add_special_tokens=False)
    assert b"".join(map(demo.token_bytes, ids)) == text.encode()


def test_every_token_alone(demo: Tokenizer):
    for tokenizer in (demo, fallback()):
        for token in range(tokenizer.vocab_size):
            assert tokenizer.token_bytes(token).decode(errors="replace") == tokenizer.token_text(token)


def test_byte_tokens():
    tokenizer = fallback()
    assert [tokenizer.token_bytes(1 + byte) for byte in "€".encode()] == [b"\xe2", b"\x82", b"\xac"]
    assert [tokenizer.token_bytes(token) for token in (257, 258, 259, 260)] == [b" Hi", b"   ", b"<0xZZ>", b"<s>"]
    assert tokenizer.token_bytes(999) == b""


def test_special_tokens_are_shown_as_they_are(demo: Tokenizer):
    for token in demo.special_ids:
        assert demo.token_bytes(token).decode() == demo._backend.id_to_token(token)


@pytest.mark.parametrize(
    ("decoder", "known"),
    [
        (decoders.ByteLevel(), True),
        (decoders.Sequence([decoders.ByteLevel()]), True),
        (decoders.Metaspace(), True),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]), True),
        (decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]), False),
        (decoders.Sequence([decoders.Replace("▁", "~"), decoders.ByteFallback(), decoders.Fuse()]), False),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Strip("x", 1, 0)]), False),
        (
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]
            ),
            False,
        ),
        (decoders.WordPiece(), False),
        (decoders.BPEDecoder(), False),
        (decoders.Fuse(), False),
        (None, False),
    ],
)
def test_which_decoders_are_known(decoder: decoders.Decoder | None, known: bool):
    backend = tokenizers.Tokenizer(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    assert (find_spelling(backend) is not None) == known


def test_the_alphabet_of_byte_level_pieces():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    spelling = find_spelling(backend)
    assert sorted(map(spelling.spell, pre_tokenizers.ByteLevel.alphabet())) == [bytes([byte]) for byte in range(256)]
