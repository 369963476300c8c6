"""The tokens of a GGUF file that end an answer."""

from pathlib import Path
from typing import Any

import pytest

from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import CheckpointError
from lsv_quant.gguf.config import read_generation, read_sampling
from lsv_quant.gguf.tokenizer import write_tokenizer

NORMAL, CONTROL, USER = 1, 3, 4


def metadata(*tokens: str, kind: int = CONTROL, **ids: int) -> dict[str, Any]:
    letters = [chr(code) for code in range(97, 123)]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": [*letters, *tokens],
        "tokenizer.ggml.token_type": [NORMAL] * len(letters) + [kind] * len(tokens),
        **{f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items()},
    }  # fmt: skip


def ends(given: dict[str, Any]) -> set[str]:
    return {given["tokenizer.ggml.tokens"][id] for id in read_generation(given).get("eos_token_id", [])}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|tool|>"), {"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"}),
        (("<|im_start|>", "<|im_end|>", "<|endoftext|>"), {"<|im_end|>", "<|endoftext|>"}),
        (("<start_of_turn>", "<end_of_turn>", "<eos>"), {"<end_of_turn>", "<eos>"}),
        (("<|user|>", "<|end|>"), {"<|end|>"}),
        (("<|end|>", "<|return|>", "<|call|>"), {"<|return|>", "<|call|>"}),
        (("<|end|>", "<|flush|>", "<|calls|>"), {"<|flush|>", "<|calls|>"}),
        (("</s>", "[INST]"), {"</s>"}),
        (("<|fim_pad|>", "<|file_sep|>"), set()),
    ],
)  # fmt: skip
def test_turns_end_with_tokens_known_by_their_texts(tokens: tuple[str, ...], expected: set[str]) -> None:
    assert ends(metadata(*tokens)) == expected


def test_tokens_that_the_file_names_come_first() -> None:
    given = metadata("<|eot_id|>", "<stop>", "<pause>", eos=27, eom=28)
    assert read_generation(given)["eos_token_id"] == [27, 28, 26]


def test_markup_ends_nothing() -> None:
    assert ends(metadata("</s>", kind=USER)) == set()


@pytest.mark.parametrize("kind", [NORMAL, USER])
def test_an_end_of_another_kind_is_a_control_token(kind: int, tmp_path: Path) -> None:
    write_tokenizer(metadata("<|im_end|>", kind=kind), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a<|im_end|>b") == [0, 26, 1]
    assert tokenizer.decode([0, 26, 1]) == "ab"


def test_a_file_without_recommendations_samples_as_llama_cpp_does() -> None:
    assert read_sampling(metadata("</s>")) == {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
        "sampling_origin": "llama.cpp's defaults, because the GGUF file recommends none",
    }  # fmt: skip


def test_what_a_file_recommends_wins() -> None:
    found = read_sampling({"general.sampling.temp": 0.6, "general.sampling.penalty_repeat": 1.1})
    assert (found["temperature"], found["top_k"], found["repetition_penalty"]) == (0.6, 40, 1.1)
    assert found["sampling_origin"] == "recommended by the GGUF file, top_k, top_p, min_p by llama.cpp's defaults"
    with pytest.raises(CheckpointError, match=r"general.sampling.temp must be a number, found 'hot'"):
        read_sampling({"general.sampling.temp": "hot"})


def test_ids_of_a_wrong_type() -> None:
    with pytest.raises(CheckpointError, match="must be token ids, found 'x'"):
        read_generation({"tokenizer.ggml.eom_token_id": "x"})
