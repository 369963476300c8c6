"""``lsv eval`` as a user types it: what is refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lsv.cli import main
from lsv.settings import Settings
from lsv_base.errors import ConfigError
from lsv_bench.commands import eval as command
from lsv_bench.eval import formats


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files to evaluate with, as the working directory; nothing may be loaded."""
    (tmp_path / "q.jsonl").write_text('{"prompt": "x", "answer": "y"}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x", "answer": "y"}\n{"prompt": "x"\n')
    (tmp_path / "empty").write_text("")
    (tmp_path / "t.txt").write_text("some text")
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "strange"}}
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text(json.dumps(config))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    monkeypatch.chdir(tmp_path)

    def measure(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(command, "_measure", measure)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--questions missing.jsonl", "questions missing.jsonl can't be read"),
        ("--questions empty", "questions empty can't be used: it holds no line"),
        ("--questions bad.jsonl", "question bad.jsonl:2 can't be used"),
        ("--text missing.txt", "text missing.txt can't be read"),
        ("--text empty", "text empty is empty"),
        ("--text t.txt --context 2048", "context=2048: the longest request is 2048 tokens, so at most 2047"),
        ("--text t.txt --context 64 --stride 64", "stride=64 must be less than context=64"),
        ("--formats none,int9", "there is no quantiser 'int9'; did you mean int8?"),
        ("--formats none,int8,INT8", "formats names int8 twice"),
        ("--formats all,int8", "formats names int8 twice"),
        ("--formats none -q int8", "give either --formats or --quantization"),
        ("--baseline missing.json", "missing.json can't be read as a result of lsv eval"),
        ("--baseline plain/config.json", "is not a result that this version of lsv eval can read"),
        ("--json t.txt/x.json", "the results can't be written to t.txt/x.json"),
        ("--markdown t.txt/x.md", "the table can't be written to t.txt/x.md"),
        ("--match fuzzy", "match must be one of"),
        ("--gsm8k missing.jsonl", "gsm8k missing.jsonl can't be read"),
        ("--gsm8k q.jsonl", "problem q.jsonl:1 can't be used: Object missing required field `question`"),
        ("--gsm8k q.jsonl --questions q.jsonl", "give either --questions or --gsm8k, not both"),
        ("--shots 3 --questions q.jsonl", "shots only applies to --gsm8k"),
    ],
)
def test_errors_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, why: str) -> None:
    assert main.main(["eval", "lsv-demo", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert why in error


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("plain", "plain has no questions or text of its own: give --questions FILE.jsonl, --text FILE or --speed"),
        ("strange --text t.txt --formats none,int8", "quantised as 'strange', which no installed quantiser reads"),
    ],
)
def test_errors_of_other_models(folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, why: str) -> None:
    assert main.main(["eval", *arguments.split()]) == 2
    assert why in capsys.readouterr().err


def test_a_format_that_the_model_cannot_take_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("144 inputs can't be cut into groups of 32")

    monkeypatch.setattr("lsv_runtime.worker.load.survey.bound_ops", refuse)
    assert main.main(["eval", "lsv-demo", "--text", "t.txt", "--formats", "int8"]) == 2
    assert "error: int8: 144 inputs can't be cut" in capsys.readouterr().err


def test_all_formats_are_those_of_the_catalog(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def note(settings: Settings, *_: object) -> None:
        asked.append(settings["quantization"])
        raise ConfigError("enough")

    monkeypatch.setattr(command, "_measure", note)
    monkeypatch.setattr("lsv_runtime.worker.load.survey.bound_ops", lambda *_: ())
    monkeypatch.setattr(formats, "online_formats", lambda catalog: ["int8", "sym_int4"])
    assert main.main(["eval", "lsv-demo", "--text", "t.txt", "--formats", "all"]) == 2
    assert asked == [None]
    assert main.main(["eval", "lsv-demo", "--text", "t.txt", "--formats", "sym_int4,none"]) == 2
    assert asked == [None, "sym_int4"]


def test_without_files_a_models_own_set_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[command.Work] = []

    def note(_: object, work: command.Work, __: object) -> None:
        works.append(work)
        raise ConfigError("enough")

    monkeypatch.setattr(command, "_measure", note)
    for seed in ("0", "0", "1"):
        main.main(["eval", "--num-questions", "20", "--dataset-seed", seed])
    first, again, other = works
    assert (len(first.questions), first.windows) == (20, (1024, 512))
    assert (first.questions, first.text) == (again.questions, again.text)
    assert (first.questions != other.questions, first.text != other.text) == (True, True)


@pytest.mark.row("F-428")
def test_gsm8k_is_compared_by_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gsm8k.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 3)
    works: list[command.Work] = []

    def note(_: object, work: command.Work, __: object) -> None:
        works.append(work)
        raise ConfigError("enough")

    monkeypatch.setattr(command, "_measure", note)
    for more in ([], ["--match", "loose", "--num-questions", "2", "--shots", "0"]):
        main.main(["eval", "lsv-demo", "--gsm8k", "gsm8k.jsonl", *more])
    main.main(["eval", "lsv-demo", "--questions", "q.jsonl"])
    assert [(len(work.questions), work.match) for work in works] == [(3, "number"), (2, "loose"), (1, "exact")]
    assert works[1].questions[0].prompt == "Question: 1 + 1?\nAnswer:"
