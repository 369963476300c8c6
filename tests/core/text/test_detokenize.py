"""Incremental text equals decoding everything at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lsv.text.detokenize import Detokenizer, UnspacedDetokenizer
from lsv.text.tokenizer import Tokenizer


def byte_level() -> Tokenizer:
    """Ids 0 … 255 are the bytes, then pairs that split characters anywhere, then a special token."""
    characters = _byte_characters()
    assert set(characters) == set(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: byte for byte, character in enumerate(characters)}
    merges = []
    for left, right in ((0xE2, 0x82), (0x9F, 0x98), (0x80, 0x20), (0x61, 0xF0), (0xC3, 0xA9)):
        pair = characters[left] + characters[right]
        merges.append((characters[left], characters[right]))
        vocab[pair] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return Tokenizer(backend)


def _byte_characters() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def metaspace() -> Tokenizer:
    """Like Llama 2: spaces are ▁, the first is dropped, unknown characters are byte tokens."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "▁Hello", "▁world", "lo", "!", "▁é", "x"):
        vocab[piece] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return Tokenizer(backend)


def kept_space() -> Tokenizer:
    """Like Gemma: as above, but the first space stays."""
    tokenizer = metaspace()
    tokenizer._backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(tokenizer._backend)


def unigram() -> Tokenizer:
    """Like T5: no bytes; the first word's spaces are dropped."""
    pieces = [
        ("<unk>", 0.0),
        ("▁", -1.0),
        ("▁Hello", -2.0),
        ("▁▁wide", -2.0),
        ("lo", -2.0),
        ("é", -2.0),
        ("<0xE2>", -3.0),
    ]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("▁added", special=False)])
    return Tokenizer(backend)


def word_pieces() -> Tokenizer:
    """Like BERT: spaces between words, and some of them cleaned up."""
    vocab = {piece: token for token, piece in enumerate(["[UNK]", "hello", "##lo", ".", ",", "'", "s", "n't", "do"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return Tokenizer(backend)


BYTES, SPACES = byte_level(), metaspace()
KINDS = {"bytes": BYTES, "spaces": SPACES, "kept": kept_space(), "unigram": unigram(), "words": word_pieces()}


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] = [], **options: bool) -> list[str]:  # noqa: B006
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=80), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_byte_tokens(ids: list[int], skip: bool):
    assert "".join(stream(BYTES, ids, skip_special_tokens=skip)) == BYTES.decode(ids, skip)


@given(st.lists(st.sampled_from([0x80, 0xBF, 0xE2, 0xF0, 0x9F, 0xFF, 256, 257]), min_size=30, max_size=120))
@settings(max_examples=300, deadline=None)
def test_long_runs_that_are_no_text(ids: list[int]):
    deltas = stream(BYTES, ids, skip_special_tokens=True)
    assert "".join(deltas) == BYTES.decode(ids)
    assert any(deltas[:-1]), "nothing is shown until the end"


@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_after_any_prompt(prompt: str, answer: str):
    for tokenizer in (BYTES, SPACES):
        ids = [3 + byte if tokenizer is SPACES else byte for byte in answer.encode()]
        before = [3 + byte if tokenizer is SPACES else byte for byte in prompt.encode()]
        assert "".join(stream(tokenizer, ids, before)).replace(" ", "") == answer.replace(" ", "")


def unspelt(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, of which nothing is known but how to decode several ids."""
    found = Tokenizer(tokenizer._backend)
    found._spelling = None
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_plain_tokens_are_decoded_as_in_a_window(kind: str, data: st.DataObject, skip: bool):
    tokenizer = KINDS[kind]
    token = st.integers(0, tokenizer.vocab_size + 1)
    plain = st.sampled_from([one for one in range(tokenizer.vocab_size) if tokenizer.plain_texts[one]] or [1])
    prompt, ids = data.draw(st.lists(token, max_size=8)), data.draw(st.lists(token | plain, max_size=40))
    found = stream(tokenizer, ids, prompt, skip_special_tokens=skip)
    assert found == stream(unspelt(tokenizer), ids, prompt, skip_special_tokens=skip)


def test_plain_tokens_are_not_decoded_again(monkeypatch: pytest.MonkeyPatch):
    decoded: list[int] = []
    for tokenizer, plain in ((BYTES, 0x61), (SPACES, 261), (KINDS["unigram"], 2)):
        detokenizer = Detokenizer(tokenizer, [plain])
        detokenizer._decode = lambda ids: decoded.extend(ids) or ""
        assert all(detokenizer.push(plain) for _ in range(10))
    assert not decoded


def test_a_run_of_byte_tokens_that_is_no_text_in_the_end():
    """The one case in which a stream says something else than decoding the whole: what is shown stays."""
    run = [3 + byte for byte in (0xC3, 0xA9, 0xFF)]
    assert SPACES.decode([260, *run]) == "Hello" + 3 * "\N{REPLACEMENT CHARACTER}"
    assert "".join(stream(SPACES, [260, *run])).startswith("Helloé\N{REPLACEMENT CHARACTER}")


@pytest.mark.row("F-060")
def test_spaces_between_added_tokens_are_left_out_where_nobody_wants_them():
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "hello": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("[A]", "[B]")])
    backend.add_tokens([AddedToken("  x", special=False)])
    tokenizer = Tokenizer(backend)
    for ids, spaced, unspaced in (
        ([2, 3, 1, 2], "[A] [B] hello [A]", "[A][B] hello [A]"),
        ([1, 2, 3, 2], "hello [A] [B] [A]", "hello [A][B][A]"),
        ([2, 4], "[A]   x", "[A]  x"),
    ):
        assert "".join(stream(tokenizer, ids, skip_special_tokens=False)) == spaced == tokenizer.decode(ids, False)
        detokenizer = UnspacedDetokenizer(tokenizer)
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == unspaced


def test_spaces_between_sentencepiece_tokens():
    hello, world, end = 260, 261, 2
    assert stream(SPACES, [hello, world, hello]) == ["Hello", " world", " Hello", ""]
    assert stream(SPACES, [world, hello], [hello]) == [" world", " Hello", ""]
    assert stream(SPACES, [hello, end, world]) == ["Hello", "", " world", ""]
    assert stream(SPACES, [hello, end, world], skip_special_tokens=False) == ["Hello", "</s>", " world", ""]


def test_a_character_appears_when_it_is_complete():
    assert stream(BYTES, list("€".encode())) == ["", "", "€", ""]
    assert stream(BYTES, list("€".encode())[:2]) == ["", "", "�"]


def test_real_vocabulary(demo: Tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(demo.vocab_size) for _ in range(rng.randrange(1, 60))]
        assert "".join(stream(demo, ids)) == demo.decode(ids)


def test_cost_per_token_does_not_grow(demo: Tokenizer, monkeypatch):
    """Not by time: by the number of ids that are decoded."""
    seen: list[int] = []
    decode = Tokenizer.decode

    def counting(self, ids, skip_special_tokens=True):
        seen.append(len(ids))
        return decode(self, ids, skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    for ids in ([0x80] * 2000, [0x61] * 2000, [BYTES.vocab_size - 1] * 2000, [0xE2, 0x82] * 1000,
                [0xE2, *[BYTES.vocab_size] * 2000]):  # fmt: skip
        seen.clear()
        stream(BYTES, ids, skip_special_tokens=True)
        assert max(seen, default=0) <= 32
        assert sum(seen) <= 150 * len(ids)


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    import lsv_demo

    return Tokenizer.load(Path(lsv_demo.__file__).parent / "checkpoint")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 261), max_size=12), *2 * [st.lists(st.integers(0, 261), max_size=12)])
def test_forks_go_their_own_ways(shared: list[int], left: list[int], right: list[int]):
    tokenizer = byte_level()
    first = Detokenizer(tokenizer)
    begun = "".join(map(first.push, shared))
    second = first.fork()
    texts = ["", ""]
    for step in range(12):
        for number, (one, ids) in enumerate(((first, left), (second, right))):
            texts[number] += "".join(map(one.push, ids[step : step + 1]))
    for one, text, ids in ((first, texts[0], left), (second, texts[1], right)):
        alone = Detokenizer(tokenizer)
        assert begun + text + one.flush() == "".join(map(alone.push, shared + ids)) + alone.flush()
