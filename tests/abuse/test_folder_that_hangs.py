"""A KV cache folder that hangs, such as one on a network, delays answers only for a moment."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.transports import Site, Transport
from lsv.transports.lookups import SECONDS, Lookups
from lsv_kv_offload import files

pytestmark = pytest.mark.timeout(100)
KEYS = [bytes([number]) * 4 for number in range(100)]


class Kept(Transport):
    """A transport with the first ``count`` keys, which answers while the gate is open."""

    def __init__(self, count: int = 100) -> None:
        self.kept, self.gate = set(KEYS[:count]), threading.Event()
        self.gate.set()
        self.asked: list[bytes] = []

    def has(self, key: bytes) -> bool:
        assert self.gate.wait(30)
        self.asked.append(key)
        return key in self.kept

    def put(self, key: bytes, content: memoryview) -> None:
        raise NotImplementedError

    def get(self, key: bytes, into: memoryview) -> bool:
        raise NotImplementedError

    def remove(self, key: bytes) -> None:
        raise NotImplementedError


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.gate.set()


def seconds_of(act: Any) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def test_a_transport_that_hangs_is_waited_for_once(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    lookups = Lookups(kept)
    assert lookups.has(KEYS[0])
    kept.gate.clear()
    began = time.monotonic()
    assert not lookups.has(KEYS[1])
    assert time.monotonic() - began < 10 * SECONDS
    assert "has not answered" in caplog.text
    has = lookups.look(KEYS)
    assert seconds_of(lambda: [lookups.has(key) or has(key) for key in KEYS]) < SECONDS
    kept.gate.set()
    while not lookups.has(KEYS[1]):
        time.sleep(0.001)
    assert all(map(lookups.look(KEYS), KEYS))


def test_a_prefix_is_looked_up_as_far_as_it_goes() -> None:
    kept = Kept(50)
    has = Lookups(kept).look(KEYS)
    assert [has(key) for key in KEYS[:51]] == [True] * 50 + [False]
    assert kept.asked == KEYS[:51]
    assert [has(key) for key in reversed(KEYS)] == [False] * 50 + [True] * 50


def test_answers_go_on_while_the_folder_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, stat = threading.Event(), os.stat
    params = SamplingParams(max_tokens=4, temperature=0.0)
    prompts = [[(7 * place * (number + 1)) % 900 + 20 for place in range(100)] for number in range(2)]

    def hang(path: Any, **given: Any) -> os.stat_result:
        if str(tmp_path) in str(path) and threading.current_thread().name.startswith(("lookups", "MainThread")):
            gate.wait(40)
        return stat(path, **given)

    with LLM("lsv-demo", kv_offload_path=str(tmp_path)) as llm:

        def ask(number: int) -> tuple[int, ...]:
            prompt = {"prompt_token_ids": prompts[number]}
            (answer,) = llm.generate([prompt], params, use_tqdm=False)
            return tuple(answer.outputs[0].token_ids)

        first = ask(0)
        monkeypatch.setattr(files.os, "stat", hang)
        began = time.monotonic()
        try:
            ask(1)
            llm.reset_prefix_cache()
            assert ask(0) == first
            assert time.monotonic() - began < 20
        finally:
            gate.set()


def test_a_folder_that_answers_is_read(tmp_path: Path) -> None:
    site = Site(identity="0" * 32, rank=0, options={"kv_offload.path": str(tmp_path), "kv_offload.path_gib": 1.0})
    transport = files.FileTransport(site)
    transport.put(KEYS[0], memoryview(b"content"))
    assert Lookups(transport).has(KEYS[0])
    assert not Lookups(transport).has(KEYS[1])
