"""One engine computes a prompt, another answers: as one alone would, whatever becomes of the first."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from lsv import LLM, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import Request
from lsv.request.spec import RequestSpec
from lsv_base.processes.ports import free_port
from lsv_testing.tiny import tiny

from .conftest import EIGHT_BITS

KEY = "a secret of two engines"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, detokenize=False)
RNG = random.Random(3)
PROMPT = tuple(RNG.randrange(5, 250) for _ in range(120))
HYBRID = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # family, its shape, options of both, and of the consumer alone
    "8 bits, in chunks": ("llama", {}, {"kv_cache_dtype": EIGHT_BITS}, {"max_num_batched_tokens": 24}),
    "windows": ("mistral", {"sliding_window": 40}, {}, {"kv_offload_gib": 0.05}),
    "states": ("lfm2", HYBRID, {}, {}),
    "steps ahead": ("llama", {}, {"platform": "xpu", "emulate": True, "async_scheduling": True}, {}),
    "two ranks": ("llama", {}, {"tensor_parallel_size": 2}, {}),
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


@pytest.fixture
def engines() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def answer(llm: LLM, **asked: Any) -> tuple[tuple[int, ...], int]:
    """What an engine says, and how many tokens of the prompt it did not compute."""
    assert llm._client is not None
    llm._client.add(request(**asked))
    return finish(llm._client)


def finish(client: Any) -> tuple[tuple[int, ...], int]:
    ids, cached = [], 0
    while client.unfinished:
        for output in client.step():
            assert output.error is None
            assert output.chunk is not None
            ids += output.chunk.ids
            cached += output.chunk.cached or 0
        time.sleep(0.001)
    return tuple(ids), cached


@pytest.mark.row("F-157")
@pytest.mark.parametrize(
    "case",
    [
        "8 bits, in chunks",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("windows", "states", "steps ahead")),
        pytest.param("two ranks", marks=[pytest.mark.slow, pytest.mark.two_ranks]),
    ],
)
def test_answers_are_those_of_one_engine(case, tmp_path, engines):
    family, shape, both, own = CASES[case]
    path = tiny(family, tmp_path / "model", **shape)
    copy = shutil.copytree(path, tmp_path / "copy", copy_function=shutil.copyfile)
    options = {"dtype": "float32", "max_model_len": 160, "block_size": 16, "skip_tokenizer_init": True,
               "num_gpu_blocks_override": 64, **both}  # fmt: skip
    port = free_port()

    def begin(model: Path, role: str, **more: Any) -> LLM:
        given = {**options, "kv_role": role, "kv_offload_path": str(tmp_path / role), "kv_port": port, **more}
        return engines.enter_context(LLM(str(model), **given))

    producer = begin(path, "producer")
    consumer = begin(copy, "consumer", kv_peers=f"127.0.0.1:{port}", **own)
    plain, cached = answer(producer, hand_on=True)
    assert cached == 0
    assert answer(consumer, kv_peer=f"127.0.0.1:{port}") == (plain, 112)


FATES = {
    "it ends well": (112, 112),
    "it is aborted": (16, 96),
    "it dies": (16, 96),
}  # at least and at most so many tokens come from the producer


@pytest.mark.parametrize("fate", FATES)
def test_what_is_computed_is_fetched_meanwhile(fate, tmp_path, engines, monkeypatch):
    path = tiny("llama", tmp_path / "model")
    options = {"dtype": "float32", "max_model_len": 160, "block_size": 16, "skip_tokenizer_init": True,
               "num_gpu_blocks_override": 64, "max_num_batched_tokens": 24, "enable_chunked_prefill": True}  # fmt: skip
    with LLM(str(path), **options) as alone:
        plain, _ = answer(alone)
    port = free_port()
    dying = engines.enter_context(ExitStack())
    kept = {**options, "kv_port": port}
    producer = LLM(str(path), kv_role="producer", kv_offload_path=str(tmp_path / "producer"), **kept)
    first = dying.enter_context(producer)._client
    peers = {"kv_role": "consumer", "kv_peers": f"127.0.0.1:{port}", "kv_offload_path": str(tmp_path / "consumer")}
    consumer = engines.enter_context(LLM(str(path), **options, **peers))
    second = consumer._client
    monkeypatch.setattr("lsv_kv_offload.server.PATIENCE", 0.0)  # what nobody has promised is not waited for
    first.add(request(hand_on=True))
    second.add(request(kv_peer=f"127.0.0.1:{port}", kv_pending=True))
    device = second._engine.kv._pool
    wanted = second._engine.kv.names(Request(1, request()))
    steps, here = 0, 0
    while here < 2:  # two blocks are on the consumer's device, and the producer has not come to the end of the prompt
        first.step()
        steps += 1
        here = max(here, (steps - 1) * 24 // 16)  # what the step before has filled is under way now
        wait_for(second, lambda here=here: all(device.find(key) for key in wanted[:here]))
    assert steps * 24 < len(PROMPT)
    assert not any(device.find(key) for key in wanted[steps * 24 // 16 :])
    if fate == "it is aborted":
        first.abort(first.unfinished)
        first.step()
    elif fate == "it dies":
        dying.close()
    else:
        finish(first)
    said, cached = finish(second)
    assert said == plain
    least, most = FATES[fate]
    assert least <= cached <= most
    failed = second.stats.offload.failed_transfers
    assert failed == (fate != "it ends well")


def request(**asked: Any) -> RequestSpec:
    return RequestSpec(prompts=(Prompt(ids=PROMPT),), sampling=GREEDY, request_id=str(time.monotonic()), **asked)


def wait_for(client: Any, true: Callable[[], bool]) -> None:
    """Step until something is true."""
    ends = time.monotonic() + 30
    while not true():
        assert time.monotonic() < ends, "it did not come to that"
        client.step()
        time.sleep(0.001)


def ask(server: Any, text: str, **more: Any) -> tuple[str, int, dict[str, Any]]:
    client = server.client()
    said = client.completions.create(
        model="lsv-demo", prompt=text, max_tokens=more.pop("max_tokens", 8), temperature=0,
        extra_body={"kv_transfer_params": more} if more else None,
    )  # fmt: skip
    found = (said.model_extra or {}).get("kv_transfer_params", {})
    return said.choices[0].text, said.usage.prompt_tokens_details.cached_tokens, found


def test_two_servers_share_requests(own_server, tmp_path):
    port = free_port()
    shared = ("lsv-demo", "--cluster-key", KEY, "--kv-cache-dtype", EIGHT_BITS)
    producer = own_server(*shared, "--kv-role", "producer", "--kv-port", str(port), "--kv-offload-path",
                          str(tmp_path / "p"))  # fmt: skip
    consumer = own_server(*shared, "--kv-role", "kv_consumer", "--kv-peers", f"127.0.0.1:{port}", "--kv-offload-path",
                          str(tmp_path / "c"), "--max-num-batched-tokens", "64")  # fmt: skip
    for server in (producer, consumer):
        server.wait_until_ready()
    houses = [f"Number {number} lives in house {number * 7}." for number in range(40)]
    text, other = " ".join(houses), " ".join(reversed(houses))
    _, cached, told = ask(producer, text, max_tokens=1, do_remote_decode=True)
    assert cached == 0
    said, cached, _ = ask(consumer, text, **told)
    assert cached > 200
    assert said == ask(producer, text)[0]
    with pytest.raises(BadRequestError, match="is not listed in"):
        ask(consumer, other, **{**told, "remote_port": consumer.port})
    assert ask(consumer, "Nobody has computed " + text, **told)[1] == 0
    third = " ".join(sorted(houses))
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(ask, consumer, third, **told, remote_prefill_pending=True)
        ask(producer, third, max_tokens=1, do_remote_decode=True)
        said, cached, _ = beside.result(60)
    assert cached > 200
    assert said == ask(producer, third)[0]
    plain, _, told = ask(producer, other, do_remote_decode=True)
    unknown = "Nobody computes " + text
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, consumer, unknown, **told, remote_prefill_pending=True)
        producer.stop(signal.SIGKILL)
        said, cached, _ = waiting.result(60)
    assert cached == 0
    assert said == ask(consumer, unknown)[0]
    assert ask(consumer, other, **told)[:2] == (plain, 0)
    metrics = [line.split() for line in consumer.get("/metrics")[1].decode().splitlines()]
    values = {line[0].partition("{")[0]: float(line[-1]) for line in metrics if line[0].startswith("lsv:")}
    assert (values["lsv:kv_transfers_total"], values["lsv:kv_transfers_failed_total"]) == (5, 3)
    assert values["lsv:kv_transferred_bytes_total"] > 100_000
