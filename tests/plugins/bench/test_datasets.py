"""Benchmark prompts: seeded, of the asked length, and files refused by line."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from lsv_bench.dataset_files import custom_samples, sharegpt_samples
from lsv_bench.datasets import Conversation, prefix_samples, random_samples, spelled


def test_random_samples_are_seeded_and_of_the_asked_length() -> None:
    first = random_samples(5, 32, 8, vocab=500, seed=1)
    assert first == random_samples(5, 32, 8, vocab=500, seed=1)
    assert first != random_samples(5, 32, 8, vocab=500, seed=2)
    assert all(len(sample.prompt) == 32 and sample.output_len == 8 for sample in first)
    assert all(10 <= token < 500 for sample in first for token in sample.prompt)
    varied = random_samples(50, 100, 100, vocab=500, spread=0.5, seed=1)
    assert all(50 <= len(sample.prompt) <= 150 for sample in varied)
    assert len({len(sample.prompt) for sample in varied}) > 10


def test_prefixes_are_shared_equally_and_suffixes_are_not() -> None:
    samples = prefix_samples(12, 20, 5, 3, 7, vocab=500, seed=1)
    assert sorted(Counter(sample.prompt[:20] for sample in samples).values()) == [4, 4, 4]
    assert len({sample.prompt[20:] for sample in samples}) == 12
    assert {(len(sample.prompt), sample.output_len) for sample in samples} == {(25, 7)}
    order = [sample.prompt[:20] for sample in samples]
    assert order != order[:3] * 4, "the prefixes come in turn instead of in a random order"


def test_spelled_has_a_word_for_each_id_and_leaves_text_alone() -> None:
    (sample,) = spelled(random_samples(1, 9, 4, vocab=500))
    assert isinstance(sample.prompt, str)
    assert (len(sample.prompt.split()), sample.output_len) == (9, 4)
    assert spelled([sample]) == [sample]


def sharegpt_file(folder: Path, *conversations: list[str]) -> str:
    path = folder / "share.json"
    entries = [{"conversations": [{"from": "x", "value": text} for text in turns]} for turns in conversations]
    path.write_text(json.dumps(entries))
    return str(path)


def test_sharegpt_output_is_as_long_as_the_reply(tmp_path: Path) -> None:
    path = sharegpt_file(tmp_path, ["Hello", "y" * 40], ["no reply"], [], ["   ", "z"])
    assert [(s.prompt, s.output_len) for s in sharegpt_samples(path, 3, None, seed=0)] == [("Hello", 10)] * 3
    assert {s.prompt for s in sharegpt_samples(path, 2, 5, seed=0)} == {"Hello", "no reply"}
    assert {s.output_len for s in sharegpt_samples(path, 2, 5, seed=0)} == {5}
    long = sharegpt_file(tmp_path, ["Hello", "y" * 40_000])
    assert sharegpt_samples(long, 1, None, seed=0)[0].output_len == 1024


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[\n{"conversations": [\n', "share.json:3"),
        ("{}", "share.json "),
        ("[]", "no conversation"),
        ('[{"conversations": []}, {"conversations": [1]}]', "entry 1"),
        ('[{"turns": []}]', "entry 0"),
    ],
)
def test_sharegpt_errors_name_the_place(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "share.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=where):
        sharegpt_samples(str(path), 1, None, seed=0)


def test_custom_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "Hello", "output_len": 5}\n\n{"prompt": [1, 2]}\n')
    found = [(s.prompt, s.output_len) for s in custom_samples(str(path), 3, 9)]
    assert found == [("Hello", 5), ((1, 2), 9), ("Hello", 5)]
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    (sample,) = custom_samples(str(path), 1, 9)
    assert isinstance(sample.prompt, Conversation)
    assert sample.prompt.messages[0]["content"] == "Hi"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "no JSON"),
        ("[]", "must be an object"),
        ('{"text": "a"}', "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": ""}', "prompt must be"),
        ('{"prompt": [true]}', "prompt must be"),
        ('{"prompt": "a", "output_len": 0}', "output_len"),
        ('{"prompt": "a", "output_len": true}', "output_len"),
        ('{"messages": [{"content": "a"}]}', "messages must be"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "not both"),
    ],
)
def test_custom_errors_name_file_and_line(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=rf"p\.jsonl:2 .*{why}"):
        custom_samples(str(path), 1, 9)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\n", None])
def test_custom_files_without_lines_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.jsonl can't be used"):
        custom_samples(str(path), 1, 9)
