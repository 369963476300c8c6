"""``lsv bench throughput`` with real engines: conversations with images, and ranks on two machines."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM
from lsv_base.processes.ports import free_port
from lsv_bench.datasets import Conversation, Sample
from lsv_bench.offline import measure_throughput

Image = pytest.importorskip("PIL.Image")

QUESTION = {"type": "text", "text": "What is in the picture?"}


def ask(*content: dict[str, Any]) -> Sample:
    return Sample(Conversation(({"role": "user", "content": list(content)},)), 4)


def picture(colour: tuple[int, int, int]) -> dict[str, Any]:
    data = BytesIO()
    Image.new("RGB", (64, 64), colour).save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.row("F-317")
def test_images_of_conversations_are_computed() -> None:
    with LLM("lsv-demo", max_num_seqs=4, max_model_len=512) as llm:
        plain = measure_throughput(llm, [ask(QUESTION)] * 2)
        shown = measure_throughput(llm, [ask(picture((255, 0, 0)), QUESTION), ask(picture((0, 0, 255)), QUESTION)])
        (answer,) = llm.generate([llm.read_chat([{"role": "user", "content": [picture((255, 0, 0)), QUESTION]}])])
    assert shown["input_tokens"] == 2 * len(answer.prompt_token_ids)
    assert shown["input_tokens"] > plain["input_tokens"] + 2 * 4, "an image has tokens of its own"
    assert shown["output_tokens"] == plain["output_tokens"] == 8


@pytest.mark.row("F-317", "F-276")
def test_the_same_command_runs_on_every_machine(tmp_path: Path) -> None:
    common = ["-tp", "2", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    with start([*common, "--node-rank", "1", "--output", str(second)]) as other:
        with start([*common, "--node-rank", "0", "--output", str(first)]) as measured:
            said = measured.communicate(timeout=100)[0]
        assert measured.returncode == 0, said
        theirs = other.communicate(timeout=20)[0]
        assert other.returncode == 0, theirs
    assert json.loads(first.read_text())["runs"][0]["figures"]["output_tokens"] == 8
    assert not second.exists(), "only node 0 measures"


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    sizes = ["--num-prompts", "2", "--input-len", "8", "--output-len", "4", "--max-model-len", "128"]
    return subprocess.Popen(
        [sys.executable, "-m", "lsv", "bench", "throughput", "lsv-demo", *sizes, *words],
        env={**os.environ, "LSV_CLUSTER_KEY": "a secret of two machines"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
