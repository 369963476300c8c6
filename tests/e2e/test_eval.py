"""``lsv eval`` with real engines: figures against plain torch, and formats that really are what they are called."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lsv import LLM
from lsv.cli import main
from lsv_bench.commands import eval as command
from lsv_bench.eval.accuracy import measure_accuracy
from lsv_bench.eval.perplexity import measure_perplexity
from lsv_bench.eval.questions import make_questions
from lsv_bench.eval.result import Run
from lsv_bench.eval.run import evaluate
from lsv_runtime.weights.quantizer import PlainLinear
from lsv_testing.tiny import tiny

TEXT = "Mira lives in Lorn. She is a baker and has a dog called Biscuit; the river is the Silver. " * 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("tiny"), tokenizer=True, eos_token_id=None)


@torch.inference_mode()
def likelihood(model: Any, ids: list[int], first: int) -> float:
    """Summed log probability of ``ids`` from ``first`` on."""
    logs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(logs[place - 1, ids[place]]) for place in range(first, len(ids)))


def test_likelihoods_are_those_of_plain_torch(checkpoint: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = list(TEXT.encode())
    with LLM(str(checkpoint), dtype="float32", max_model_len=128, num_gpu_blocks_override=64) as llm:
        found = measure_perplexity(llm, TEXT, 96, 40)
        questions = make_questions([{"prompt": "The sky is", "choices": ["blue", "a red one", "up"], "answer": 0}], "q")
        (picked,) = measure_accuracy(llm, questions, max_tokens=1).answers
    nll = -likelihood(model, ids[:96], 1)
    for stop in range(136, len(ids) + 40, 40):
        stop, new = min(stop, len(ids)), min(40, len(ids) - stop + 40)
        nll -= likelihood(model, ids[stop - 96 : stop], 96 - new)
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nll / (len(ids) - 1)), rel=1e-5)
    start = list(b"The sky is")
    scores = {c: likelihood(model, [*start, *f" {c}".encode()], len(start)) for c in questions[0].choices}
    assert picked.text == max(scores, key=lambda choice: scores[choice])
    assert picked.right_by_length == (max(scores, key=lambda c: scores[c] / len(c.encode())) == "blue")


def test_formats_are_measured_as_what_they_are(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"prompt": word, "answer": "x", "max_tokens": 4}) + "\n" for word in ("Mira", "Lorn"))
    )
    both = ["--text", str(tmp_path / "t.txt"), "--questions", str(tmp_path / "q.jsonl"), "--context", "96"]
    common = ["eval", str(checkpoint), *both, "--num-gpu-blocks-override", "64", "--max-model-len", "256"]
    speed = ["--speed", "--input-len", "8", "--output-len", "3"]
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert main.main([*common, *speed, *files, "--formats", "none,int8"]) == 0
    saved = json.loads((tmp_path / "r.json").read_text())
    plain, int8 = saved["runs"]
    assert (plain["format"], int8["format"]) == ("none", "int8")
    assert int8["weight_bytes"] < plain["weight_bytes"]
    assert [any(op["op"] == "linear.int8" for op in run["ops"]) for run in (plain, int8)] == [False, True]
    assert int8["perplexity"]["nll"] != plain["perplexity"]["nll"]
    assert (plain["paired"], int8["paired"]["lost"]) == (None, 0)
    assert int8["paired"]["perplexity_ratio"] == pytest.approx(1, abs=0.2)
    assert all(value > 0 for value in int8["speed"].values())
    table = (tmp_path / "r.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table] == ["| format", "| ---", "| none", "| int8"]

    capsys.readouterr()
    again = [*common, "--baseline", files[1], "-q", "int8"]
    assert main.main([*again, "--json", str(tmp_path / "again.json")]) == 0
    later = json.loads((tmp_path / "again.json").read_text())
    assert later["runs"][0]["paired"]["perplexity_ratio"] == int8["paired"]["perplexity_ratio"]
    shown = capsys.readouterr().out
    assert 0 < shown.find("\nnone ") < shown.find("\nint8 ")
    for change, why in (
        (["--num-questions", "1"], "was measured on other questions"),
        (["--stride", "7"], "has context=96 and stride=48: give the same"),
    ):
        assert main.main([*again, *change]) == 2
        assert why in capsys.readouterr().err


def test_a_format_is_gone_before_the_next_is_measured(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    plain: list[int] = []

    def note(llm: LLM, *rest: Any) -> Run:
        plain.append(sum(type(thing) is PlainLinear for thing in gc.get_objects()))
        return evaluate(llm, *rest)

    monkeypatch.setattr(command, "evaluate", note)
    arguments = ["--text", str(tmp_path / "t.txt"), "--formats", "none,int8", "--num-gpu-blocks-override", "64"]
    gc.collect()
    gc.disable()
    try:
        assert main.main(["eval", str(checkpoint), *arguments]) == 0
    finally:
        gc.enable()
    assert plain[0] > 0
    assert plain[1] == 0
