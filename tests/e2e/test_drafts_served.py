"""The commands and scripts in docs/speculation.md run as they stand, and a server that drafts answers as any other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("server")

TEXT = (Path(__file__).parents[2] / "docs" / "speculation.md").read_text(encoding="utf-8")
CONFIG = "--speculative-config"
QUESTIONS = ("Who are you?", "What is the capital of France?", "one two three four one two three")


def scripts(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def arguments(place: int) -> list[str]:
    """Of one of the commands, but every draft is verified: on a busy machine none may pay."""
    lsv, serve, *given = shlex.split(scripts("bash")[place])
    assert (lsv, serve) == ("lsv", "serve")
    said = json.loads(given[given.index(CONFIG) + 1]) if CONFIG in given else {}
    return [*given, CONFIG, json.dumps({**said, "adaptive": False})]


def answers(server) -> list[object]:
    client = server.client()
    found: list[object] = []
    for question in QUESTIONS:
        common = {"model": "lsv-demo", "prompt": question, "max_tokens": 40}
        plain = client.completions.create(**common, temperature=0.0, logprobs=1)
        drawn = client.completions.create(**common, temperature=0.9, seed=3, stop=["e ", "an"], frequency_penalty=0.3)
        streamed = client.completions.create(**common, temperature=0.0, stream=True)
        found += [plain.choices[0].text, plain.choices[0].logprobs.tokens, plain.usage.completion_tokens]
        found += [drawn.choices[0].text, drawn.choices[0].finish_reason, drawn.usage.completion_tokens]
        found.append("".join(event.choices[0].text for event in streamed if event.choices))
        assert found[-1] == plain.choices[0].text
    return found


def counted(server) -> int | None:
    """What the usage of an answer and of a stream says of its drafts."""
    client = server.client()
    common = {"model": "lsv-demo", "prompt": QUESTIONS[2], "max_tokens": 40, "temperature": 0.0}
    whole = client.completions.create(**common).usage.completion_tokens_details
    *_, last = client.completions.create(**common, stream=True, stream_options={"include_usage": True})
    streamed = last.usage.completion_tokens_details
    if whole is None:
        assert streamed is None
        return None
    for one in (whole, streamed):
        assert one.accepted_prediction_tokens + one.rejected_prediction_tokens > 0
    return whole.accepted_prediction_tokens + whole.rejected_prediction_tokens


@pytest.mark.row("F-360", "F-366")
def test_the_command(own_server, server) -> None:
    drafting = own_server(*arguments(0))
    drafting.wait_until_ready()
    assert answers(drafting) == answers(server)
    assert counted(server) is None
    assert b"spec_decode" not in server.get("/metrics")[1]
    assert counted(drafting) > 0
    counts = drafting.get("/metrics")[1].decode()
    (drafts,) = re.findall(r'^vllm:spec_decode_num_draft_tokens_total\{.*model_name="lsv-demo"\} (\S+)$', counts, re.M)
    assert float(drafts) > 0


def test_the_script() -> None:
    (script,) = scripts("python")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "SpeculationCounts" in done.stdout


@pytest.mark.row("F-304", "F-305", "F-306", "F-360")
def test_the_single_options_mean_the_same(own_server, server) -> None:
    drafting = own_server(
        *("--speculative-model", "[ngram]", "--num-speculative-tokens", "4", "--ngram-prompt-lookup-max", "4"),
        *("--ngram-prompt-lookup-min", "1", "--speculative-disable-by-batch-size", "8"),
    )
    drafting.wait_until_ready()
    assert answers(drafting) == answers(server)
    assert b"spec_decode_num_drafts_total" in drafting.get("/metrics")[1]


@pytest.mark.row("F-359", "F-361")
def test_heads_draft_for_the_demo(own_server, server) -> None:
    drafting = own_server(*arguments(1))
    drafting.wait_until_ready()
    assert answers(drafting) == answers(server)
    counts = drafting.get("/metrics")[1].decode()
    (accepted,) = re.findall(
        r'^vllm:spec_decode_num_accepted_tokens_total\{engine="0",model_name="lsv-demo"\} (\S+)$', counts, re.M
    )
    assert float(accepted) > 0
