"""Answers are those of the plain path wherever their prompts' beginnings are kept: on the device, in host memory, in
files; after a restart, and where files have been spoilt.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_testing.tiny import tiny
from suite.waiting import wait_until

from .conftest import EIGHT_BITS

PLAIN = {"max_num_seqs": 1, "enable_prefix_caching": False}
CACHED = {"enable_prefix_caching": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 40},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16},
}
FEW_BLOCKS = {"llama": 12, "mistral": 12, "lfm2": 36}
"""Room for one request, so that the next one takes the blocks of the one before."""
PROMPT = 120


def prompts() -> list[list[int]]:
    """Four, of which each comes again once the others have taken its blocks."""
    rng = random.Random(5)
    own = [[rng.randrange(5, 250) for _ in range(PROMPT - 7 * index)] for index in range(4)]
    return own + own


def run(path: str | Path, asked: list[list[int]] | None = None, **more: Any) -> tuple[list[tuple[int, ...]], list[int]]:
    """Answers, and how many tokens of each prompt were cached."""
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, detokenize=False)
    options = {"dtype": "float32", "max_model_len": 160, "block_size": 16, "skip_tokenizer_init": True, **more}
    with LLM(str(path), **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": one} for one in asked or prompts()], params, use_tqdm=False)
        return [one.outputs[0].token_ids for one in outputs], [one.num_cached_tokens or 0 for one in outputs]


def spoil(folder: Path) -> int:
    """Each file is spoilt in one of several ways; returns how many files there were."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        content = bytearray(path.read_bytes())
        if number % 4 == 0:
            content[-5] ^= 1
        elif number % 4 == 1:
            del content[200:]
        elif number % 4 == 2:
            content[:6] = b"\0" * 6
        else:
            path.unlink()
            continue
        path.write_bytes(content)
    return len(files)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> tuple[Path, list[tuple[int, ...]]]:
    """A checkpoint, and its answers by the plain path."""
    path = tiny(request.param, tmp_path_factory.mktemp("offload") / request.param, **FAMILIES[request.param])
    return path, run(path, **PLAIN)[0]


def few(path: Path) -> dict[str, Any]:
    return {**CACHED, "max_num_seqs": 1, "num_gpu_blocks_override": FEW_BLOCKS[path.name]}


@pytest.mark.row("F-399")
def test_what_was_evicted_comes_back_from_host_memory(family):
    path, plain = family
    answers, cached = run(path, **few(path))
    assert answers == plain
    assert not any(cached), "the device holds them all: nothing would be evicted"
    answers, cached = run(path, **few(path), kv_offload_gib=0.05)
    assert answers == plain
    assert min(cached[4:]) >= 80


def test_a_restart_finds_the_files(family, tmp_path):
    path, plain = family
    kept = {**few(path), "kv_offload_path": str(tmp_path / "kept")}
    assert run(path, **kept)[0] == plain
    answers, cached = run(path, **kept, enable_chunked_prefill=True, max_num_batched_tokens=24)
    assert answers == plain
    assert min(cached) >= 80


def test_what_was_computed_last_is_kept_too(tmp_path):
    path = tiny("llama", tmp_path / "llama")
    kept = {**CACHED, "kv_offload_path": str(tmp_path / "kept"), "skip_tokenizer_init": True, "block_size": 16}
    for cached in (0, 112):
        with LLM(str(path), **kept) as llm:
            params = SamplingParams(max_tokens=1, detokenize=False)
            (answer,) = llm.generate([{"prompt_token_ids": prompts()[0]}], params, use_tqdm=False)
        assert answer.num_cached_tokens == cached


@pytest.mark.skipif(os.environ.get("LSV_PLATFORM") == "hpu", reason="Gaudi has no sleep mode")
@pytest.mark.parametrize(("level", "behind", "cached"), [(1, "memory", 112), (2, "memory", 0), (2, "files", 112)])
def test_what_is_behind_the_cache_outlives_a_sleep(level, behind, cached, tmp_path):
    path = tiny("llama", tmp_path / "llama")
    tier = {"kv_offload_gib": 0.05} if behind == "memory" else {"kv_offload_path": str(tmp_path / "kept")}
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    options = {**CACHED, "skip_tokenizer_init": True, "block_size": 16, "enable_sleep_mode": True}
    with LLM(str(path), **options, **tier) as llm:
        found = []
        for _ in range(3):
            (answer,) = llm.generate([{"prompt_token_ids": prompts()[0]}], params, use_tqdm=False)
            found.append((answer.outputs[0].token_ids, answer.num_cached_tokens))
            llm.sleep(level)
            llm.wake_up()
    ids = found[0][0]
    assert found == [(ids, 0), (ids, cached), (ids, cached)]


def test_what_was_spoilt_is_computed_and_written_anew(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "lsv_kv_offload")
    path = tiny("llama", tmp_path / "llama")
    asked, kept = prompts()[:3], {**CACHED, "kv_offload_path": str(tmp_path / "kept")}
    plain = run(path, asked, **kept)[0]
    assert spoil(tmp_path / "kept") > 8
    assert run(path, asked, **kept)[0] == plain
    assert len([line for line in caplog.messages if "is passed over and removed" in line]) == 1
    for _ in range(5):  # what is spoilt behind something that is gone is found out later
        answers, cached = run(path, asked, **kept)
        assert answers == plain
        if min(cached) >= 80:
            return
    raise AssertionError("what was spoilt was not written anew")


ENGINES: dict[str, dict[str, Any]] = {
    "preempted": {"num_gpu_blocks_override": 22, "max_num_seqs": 8, "max_num_batched_tokens": 40},
    "8 bits": {"kv_cache_dtype": EIGHT_BITS},
    "steps ahead": {"platform": "xpu", "emulate": True, "async_scheduling": True, "max_num_seqs": 4},
    "heads": {"platform": "hpu", "emulate": True, "block_size": 128, "max_model_len": 512, "max_num_seqs": 2},
}


@pytest.mark.row("F-390")
@pytest.mark.parametrize(
    "engine", [pytest.param(one, marks=pytest.mark.slow) if "emulate" in ENGINES[one] else one for one in ENGINES]
)
def test_engines_of_all_kinds(engine, tmp_path):
    path = tiny("llama", tmp_path / "llama")
    options = {"num_gpu_blocks_override": 12, "max_num_seqs": 1, **CACHED, **ENGINES[engine]}
    asked = [one * 4 for one in prompts()] if engine == "heads" else prompts()
    plain = run(path, asked, **{**options, **PLAIN, "num_gpu_blocks_override": 40})[0]
    kept = {**options, "kv_offload_gib": 0.05, "kv_offload_path": str(tmp_path / "kept")}
    for _ in range(2):
        answers, cached = run(path, asked, **kept)
        assert answers == plain
    assert min(cached) >= 80


@pytest.mark.slow
@pytest.mark.two_ranks
def test_two_ranks_keep_their_own_parts(tmp_path):
    path = tiny("llama", tmp_path / "llama")
    options = {**CACHED, "num_gpu_blocks_override": 12, "max_num_seqs": 1, "tensor_parallel_size": 2}
    plain = run(path, **{**options, **PLAIN, "num_gpu_blocks_override": 40})[0]
    kept = {**options, "kv_offload_path": str(tmp_path / "kept")}
    assert run(path, **kept)[0] == plain
    files = sorted(file for file in (tmp_path / "kept").rglob("*") if file.is_file())
    ones = [file for file in files if file.name.endswith("-1")]
    assert len(files) == 2 * len(ones) > 0
    ones[len(ones) // 2].unlink()  # rank 0 still has its part
    answers, cached = run(path, **kept)
    assert answers == plain
    assert any(cached)


def test_other_weights_never_read_the_files(tmp_path):
    kept = {**CACHED, "kv_offload_path": str(tmp_path / "kept")}
    asked = prompts()[:1]
    first = tiny("llama", tmp_path / "model")
    run(first, asked, **kept)
    assert run(first, asked, **kept)[1] == [112]
    assert run(first, asked, **kept, kv_cache_dtype=EIGHT_BITS)[1] == [0]
    other = tiny("llama", tmp_path / "model", seed=1)
    plain = run(other, asked, **PLAIN)[0]
    assert run(other, asked, **kept) == (plain, [0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_offload_gib": 0.1, "enable_prefix_caching": False}, "needs --enable-prefix-caching"),
        ({"kv_offload_gib": 1e6}, "this machine has"),
        ({"kv_offloading_backend": "native"}, "--kv-offload-gib"),
        ({"kv_offloading_backend": "lmcache", "kv_offloading_size": 1}, "native"),
        ({"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}, "--kv-offload-path"),
        ({"kv_offload_path": "/dev/null/kept"}, "kv_offload_path"),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(options, said):
    with pytest.raises(ConfigError, match=said):
        LLM("lsv-demo", **options).generate(["Hello"])


@pytest.mark.row("F-750", "F-751")
def test_a_server_that_was_killed_answers_from_files(own_server, tmp_path):
    block = 16
    kept = ("--kv-offload-path", str(tmp_path / "kept"), "--kv-offloading-size", "0.1", "--block-size", str(block))
    arguments = ("lsv-demo", *kept)
    text = " ".join(f"Number {number} lives in house {number * 7}." for number in range(40))

    def ask(server, **more) -> tuple[str, int]:
        client = server.client()
        answer = client.completions.create(
            model="lsv-demo", prompt=text, max_tokens=8, temperature=0, extra_body=more or None
        )
        return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens

    first = own_server(*arguments)
    first.wait_until_ready()
    said, cached = ask(first)
    assert cached == 0
    wait_until(lambda: len(list((tmp_path / "kept").rglob("*-0"))) * block > 200)
    first.stop(signal.SIGKILL)
    second = own_server(*arguments)
    second.wait_until_ready()
    again, cached = ask(second)
    assert again == said
    assert cached > 200
    assert ask(second, cache_salt="mine") == (said, 0)
    metrics = [line.split() for line in second.get("/metrics")[1].decode().splitlines()]
    values = {line[0].partition("{")[0]: float(line[-1]) for line in metrics if line[0].startswith("vllm:")}
    assert values["vllm:external_prefix_cache_hits_total"] == cached
    assert 0 < values["vllm:cpu_cache_usage_perc"] < 1
    assert 0 < values["vllm:cpu_prefix_cache_hit_rate"] < 1
