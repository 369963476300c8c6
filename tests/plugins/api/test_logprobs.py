"""Positions as clients see them: all candidates, also where they are equally likely, and the tokens' own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lsv.request.outputs import PositionLogprobs, TokenLogprob
from lsv.text.tokenizer import Tokenizer
from lsv_api.openai.logprobs import LogprobWriter, TextPlace
from lsv_runtime.worker.sampling.logprobs import describe


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    import lsv_demo

    return Tokenizer.load(Path(lsv_demo.__file__).parent / "checkpoint")


@pytest.fixture
def writer(demo: Tokenizer) -> LogprobWriter:
    return LogprobWriter(demo, as_ids=True)


def position(logits: torch.Tensor, chosen: int, top: int) -> PositionLogprobs:
    (found,) = describe(logits[None], torch.tensor([chosen]), [top]).read().values()
    return tuple(
        TokenLogprob(token, str(token), value, rank)
        for token, value, rank in zip(found.ids[0], found.values[0], found.ranks[0], strict=True)
    )


@pytest.mark.parametrize("top", [1, 5, 20])
def test_as_many_candidates_as_were_asked_for(demo: Tokenizer, writer: LogprobWriter, top: int):
    for seed in range(50):
        logits = (3 * torch.randn(2000, generator=torch.Generator().manual_seed(seed))).bfloat16()
        ties = (logits == logits.max()).nonzero().flatten().tolist()
        for chosen in (ties[0], ties[-1], seed):
            shown = writer.chat((position(logits, chosen, top),), top).content[0]
            names = [entry.token for entry in shown.top_logprobs]
            assert len(set(names)) == len(names) == top
            values = [entry.logprob for entry in shown.top_logprobs]
            assert values == sorted(values, reverse=True)
            assert shown.token == f"token_id:{chosen}"
            if chosen in ties:
                assert shown.token in names
            completion = writer.completion(top, TextPlace(demo), skip_special=True)
            completion.extend((position(logits, chosen, top),))
            assert set(completion.shown.top_logprobs[0]) == {*names, shown.token}


def test_a_chosen_token_that_a_tie_left_out(writer: LogprobWriter):
    logits = torch.tensor([1.0, 5.0, 3.0, 3.0, 3.0, 0.0])
    shown = writer.chat((position(logits, 4, 3),), 3).content[0]
    assert [entry.token for entry in shown.top_logprobs] == ["token_id:1", "token_id:4", "token_id:2"]
    shown = writer.chat((position(logits, 0, 3),), 3).content[0]
    assert [entry.token for entry in shown.top_logprobs] == ["token_id:1", "token_id:2", "token_id:3"]


def test_bytes_put_parts_of_characters_together(demo: Tokenizer):
    text = "a 😀é"
    ids = demo.encode(text, add_special_tokens=False)
    positions = [(TokenLogprob(token, demo.token_text(token), -1.0, 1),) * 2 for token in ids]
    shown = LogprobWriter(demo, as_ids=False).chat(positions, 1).content
    assert any("\N{REPLACEMENT CHARACTER}" in entry.token for entry in shown)
    assert bytes(byte for entry in shown for byte in entry.bytes).decode() == text
    assert bytes(byte for entry in shown for byte in entry.top_logprobs[0].bytes).decode() == text


@pytest.mark.parametrize("text", ["a😀b日c", "😀", "éa é", "plain text", "日本語 and 🙂🙃"])
def test_offsets_count_characters(demo: Tokenizer, text: str):
    ids = demo.encode(text, add_special_tokens=False)
    positions = [(TokenLogprob(token, demo.token_text(token), -1.0, 1),) for token in ids]
    completion = LogprobWriter(demo, as_ids=False).completion(0, TextPlace(demo), skip_special=True)
    completion.extend(positions)
    shown = completion.shown
    before = [demo.decode(ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}") for count in range(len(ids))]
    assert shown.text_offset == [len(characters) for characters in before]
    for token, offset in zip(shown.tokens, shown.text_offset, strict=True):
        if "\N{REPLACEMENT CHARACTER}" not in token:
            assert text.startswith(token, offset)


def test_offsets_go_on_from_chunk_to_chunk(demo: Tokenizer):
    ids = demo.encode("😀b", add_special_tokens=False)
    writer, place, offsets = LogprobWriter(demo, as_ids=False), TextPlace(demo), []
    for token in ids:
        chunk = writer.completion(0, place, skip_special=True)
        chunk.extend([(TokenLogprob(token, demo.token_text(token), -1.0, 1),)])
        offsets += chunk.shown.text_offset
    assert offsets == [0] * (len(ids) - 1) + [1]
