"""Libraries that import vllm generate text on lsv. ``make test-libraries`` installs them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny
from suite.libraries import LIBRARIES, MINERU, link_packages
from suite.server import Server

from .conftest import SECONDS, Run, last_json

pytestmark = [
    pytest.mark.skipif(LIBRARIES is None, reason="needs make test-libraries"),
    pytest.mark.timeout(SECONDS + 300),
]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen2", tmp_path_factory.mktemp("qwen2"), tokenizer=True, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen2_vl", tmp_path_factory.mktemp("qwen2_vl"), tokenizer=True)


@pytest.mark.row("F-097", "F-928")
def test_langchain_completes(run: Run) -> None:
    assert last_json(run(PROGRAMS / "langchain_answer.py", "lsv-demo")) == [" Paris.", " Madrid"]


@pytest.mark.row("F-098", "F-928")
def test_llama_index_completes_and_chats(run: Run) -> None:
    assert last_json(run(PROGRAMS / "llama_index_answer.py", "lsv-demo")) == [" Paris.", " Madrid."]


def test_trl_generates_with_the_log_probabilities_that_tokens_were_drawn_by(run: Run, model: Path) -> None:
    found = last_json(run(PROGRAMS / "trl_generation.py", model, LSV_DTYPE="float32"))
    assert found["asked"] == [list(b"Hello"), list(b"What is it?")]
    assert [len(answer) for answer in found["answers"]] == [6, 6]
    assert [[ids[0] for ids in answer] for answer in found["ids"]] == found["answers"]
    assert found["off"] < 1e-3
    assert "weights of a running engine can't be changed" in found["refusal"]


TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
{rest}
"""
GENERATING = """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["<pad>"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSING = """
output_type: multiple_choice
doc_to_choice: ["a", "bc"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS = ("Spell a", "Spell b please")


def test_lm_eval_generates_and_scores(run: Run, model: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"question": question, "answer": "a"}) for question in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    for name, rest in (("spell", GENERATING), ("choose", CHOOSING)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, folder=tmp_path, rest=rest))
    options = f"pretrained={model},gpu_memory_utilization=0.1,max_model_len=256"
    arguments = ["--tasks", "spell,choose", "--include_path", tmp_path, "--log_samples", "--output_path", tmp_path]
    run("-m", "lm_eval", "--model", "vllm", "--model_args", options, "--batch_size", "auto", *arguments)
    with LLM(str(model), max_model_len=256) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=8, skip_special_tokens=False, stop=["<eos>", "<pad>"])
        texts = [output.outputs[0].text for output in llm.generate(QUESTIONS, greedy, use_tqdm=False)]
        likely = [_score(llm, question, choice) for question in QUESTIONS for choice in (" a", " bc")]
    assert [one["resps"][0][0] for one in _samples(tmp_path, "spell")] == texts
    found = [float(choice[0][0]) for one in _samples(tmp_path, "choose") for choice in one["resps"]]
    assert found == pytest.approx(likely, abs=1e-4)


def _samples(folder: Path, task: str) -> list[Any]:
    (file,) = folder.rglob(f"samples_{task}_*.jsonl")
    return sorted(map(json.loads, file.read_text().splitlines()), key=lambda one: one["doc_id"])


def _score(llm: LLM, context: str, more: str) -> float:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate(context + more, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    positions = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return sum(shown[token].logprob for token, shown in [*positions][len(context) :] if shown is not None)


FEW_TOKENS = {"allowed_token_ids": [*range(65, 73)]}


def pairs_that_repeat(ids: Sequence[int]) -> bool:
    return max(Counter(pairwise(ids)).values()) > 1


@pytest.mark.row("F-666", "F-722")
def test_mineru_reads_a_picture_with_both_clients(run: Run, reader: Path) -> None:
    found = last_json(run(PROGRAMS / "mineru_reading.py", reader))
    plain, varied = found["called"]
    assert found["awaited"] == [plain, varied]
    assert plain != varied
    assert len(found["scored"]) == 48
    assert not pairs_that_repeat(found["scored"])


@pytest.mark.row("F-223", "F-666", "F-722")
def test_a_server_runs_minerus_processor_where_nothing_is_called_vllm(
    reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(link_packages(MINERU, tmp_path / "packages")))
    name = "mineru_vl_utils:MinerULogitsProcessor"
    server = Server(tmp_path / "log", str(reader), "--max-model-len", "256", "--logits-processors", name)
    try:
        server.wait_until_ready(250)
        client = server.client()

        def ask(**extra: int) -> list[int]:
            answer = client.completions.create(
                model=str(reader),
                prompt="Text Recognition:",
                max_tokens=48,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True, "vllm_xargs": extra, **FEW_TOKENS},
            )
            ids: list[int] = answer.choices[0].model_dump()["token_ids"]
            return ids

        assert pairs_that_repeat(ask())
        assert not pairs_that_repeat(ask(no_repeat_ngram_size=2))
    finally:
        server.close_clients()
        server.stop()
