"""Requests that wait for another engine: no longer than they may, and none for an engine that nobody named."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lsv.config import Offload, Transfers
from lsv.engine.scheduling import open_exchange
from lsv.kv.manager import KVManager
from lsv.kv.tiers.tiers import Tiers
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.scheduler.outcome import OffloadCounts
from lsv.transports.exchange import Exchange, TransferFailed, join_address, split_address
from lsv.transports.fetches import Fetches
from lsv_base.errors import BadRequest
from lsv_testing.fakes.client import fake_config
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.rig import FULL
from lsv_testing.fakes.tiers import FakeKeeper

PEER = "10.0.0.1:5600"
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


class FakeExchange(Exchange):
    """Brings as many bytes as ``answers`` say, or fails; ``go`` lets it end."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers, self.asked = list(answers), list[tuple[str, list[bytes], bool]]()
        self.promised: list[bytes] = []
        self.go = threading.Event()
        self.go.set()

    def promise(self, keys):
        self.promised += keys

    def withdraw(self, keys):
        for key in keys:
            self.promised.remove(key)

    def expect(self, key: bytes) -> None: ...

    def fetch(self, peer, keys, until, came):
        self.asked.append((peer, list(keys), until is None))
        self.go.wait(5)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def open_fetches(exchange: Exchange | None, *, timeout: float = 5.0) -> Fetches:
    transfers = Transfers(produces=False, consumes=True, host="h", port=1, peers=(PEER,), timeout=timeout)
    fetches = Fetches(fake_config(offload=Offload(transport="files", transfers=transfers)))
    fetches.exchange = exchange
    return fetches


def group(id: int = 1, **given: Any) -> RequestGroup:
    asked = {"kv_peer": PEER, **given}
    return RequestGroup(id, make_spec(asked.pop("ids", range(30)), asked.pop("params", GREEDY), **asked))


def cache() -> KVManager:
    return KVManager(FULL, 64, 4, root=b"test", tiers=Tiers(0, FakeKeeper()))


def wait(fetches: Fetches) -> list[int]:
    ends = time.monotonic() + 5
    while not (found := list(fetches.take())) and time.monotonic() < ends:
        time.sleep(0.001)
    return found


def counts(fetches: Fetches) -> tuple[int, int, int]:
    found = fetches.counted(OffloadCounts(0, 0, 0.0))
    return found.transfers, found.failed_transfers, found.transferred_bytes


def test_a_request_waits_until_what_it_lacks_has_come():
    exchange = FakeExchange(700)
    fetches, asked = open_fetches(exchange), group()
    exchange.go.clear()
    assert fetches.open(asked, cache())
    assert list(fetches.take()) == []
    exchange.go.set()
    assert wait(fetches) == [1]
    assert counts(fetches) == (1, 0, 700)
    ((peer, keys, pending),) = exchange.asked
    assert (peer, pending) == (PEER, False)
    assert len(keys) == 7, "the last token is computed in any case"


def test_what_others_wait_for_is_promised_until_its_request_ends():
    exchange = FakeExchange()
    fetches, kv = open_fetches(exchange), cache()
    asked = group(1, kv_peer="", hand_on=True)
    fetches.open(asked, kv)
    assert exchange.promised == kv.names(asked.make(0))
    assert len(exchange.promised) == 7
    fetches.open(group(2, kv_peer="", hand_on=True), kv)
    fetches.close(1)
    assert len(exchange.promised) == 7
    for _ in range(2):
        fetches.close(2)
    assert not exchange.promised


def test_nothing_is_promised_of_a_prompt_whose_adapter_is_not_known_yet():
    exchange, asked = FakeExchange(), group(kv_peer="", hand_on=True)
    asked.needs.add("adapter")
    open_fetches(exchange).open(asked, cache())
    assert not exchange.promised


def test_a_prompt_that_is_being_computed_is_asked_for_as_such():
    exchange = FakeExchange(9)
    fetches = open_fetches(exchange)
    fetches.open(group(kv_pending=True), cache())
    assert wait(fetches) == [1]
    assert exchange.asked[0][2]


def test_a_prompt_that_is_being_computed_is_waited_for():
    exchange = FakeExchange(9)
    exchange.go.clear()
    fetches = open_fetches(exchange, timeout=0.0)
    fetches.open(group(kv_pending=True), cache())
    while not exchange.asked:
        time.sleep(0.001)
    assert list(fetches.take()) == []
    exchange.go.set()
    assert wait(fetches) == [1]
    assert counts(fetches) == (1, 0, 9)


def test_nobody_waits_for_ever_to_begin(monkeypatch):
    monkeypatch.setattr("lsv.transports.fetches._THREADS", 1)
    exchange = FakeExchange(9)
    exchange.go.clear()
    fetches, kv = open_fetches(exchange, timeout=0.0), cache()
    fetches.open(group(1, kv_pending=True), kv)
    while not exchange.asked:
        time.sleep(0.001)
    fetches.open(group(2, kv_pending=True), kv)
    assert wait(fetches) == [2]
    exchange.go.set()
    assert wait(fetches) == [1]
    assert counts(fetches) == (2, 1, 9)


def test_who_has_gone_needs_no_thread(monkeypatch):
    monkeypatch.setattr("lsv.transports.fetches._THREADS", 1)
    exchange = FakeExchange(9, 9)
    exchange.go.clear()
    fetches, kv = open_fetches(exchange), cache()
    for id in (1, 2, 3):
        fetches.open(group(id, kv_pending=True), kv)
    fetches.close(2)
    assert wait(fetches) == [2]
    exchange.go.set()
    found: list[int] = []
    while len(found) < 2:
        found += wait(fetches)
    assert found == [1, 3]
    assert counts(fetches) == (2, 0, 18)


@pytest.mark.parametrize("fault", [TransferFailed("it is gone"), RuntimeError("a fault of ours")])
def test_faults_are_counted_and_told_of_once(fault, caplog):
    fetches = open_fetches(FakeExchange(fault, fault))
    for id in (1, 2):
        fetches.open(group(id), cache())
        assert wait(fetches) == [id]
    assert counts(fetches) == (2, 2, 0)
    assert len([line for line in caplog.messages if "the prompt is computed here" in line]) == 1


def test_nobody_waits_longer_than_he_may():
    exchange = FakeExchange(*[9] * 8)
    exchange.go.clear()
    fetches = open_fetches(exchange, timeout=0.05)
    for id in range(8):
        fetches.open(group(id), cache())
    began, found = time.monotonic(), []
    while len(found) < 8:
        found += wait(fetches)
    assert time.monotonic() - began < 2
    assert counts(fetches) == (8, 8, 0)
    exchange.go.set()
    fetches.stop()


def test_no_more_wait_than_fit(monkeypatch):
    monkeypatch.setattr("lsv.transports.fetches._MOST", 1)
    fetches = open_fetches(FakeExchange(1))
    fetches.open(group(1), cache())
    asked = group(2)
    assert not fetches.open(asked, cache())
    assert counts(fetches)[1] == 1


@pytest.mark.parametrize("peer", ["10.0.0.2:5600", "10.0.0.1:22", "localhost:80"])
def test_engines_that_nobody_named_are_refused(peer):
    for exchange in (FakeExchange(), None):
        with pytest.raises(BadRequest, match="is not listed in --kv-peers"):
            open_fetches(exchange).open(group(kv_peer=peer), cache())


@pytest.mark.parametrize(
    "given",
    [{"kv_peer": ""}, {"ids": range(4)}, {"params": GREEDY.replace(prompt_logprobs=1)}],
    ids=["nobody", "short", "scored"],
)
def test_where_nothing_is_lacking_nothing_is_asked(given):
    exchange = FakeExchange()
    fetches, asked = open_fetches(exchange), group(**given)
    assert not fetches.open(asked, cache())
    assert not exchange.asked


def test_engines_without_a_role_have_no_exchange():
    assert open_exchange(fake_config()) is None


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [("10.0.0.1", 5600, PEER), ("Head", 1, "head:1"), ("::1", 65535, "[::1]:65535"), ("[FE80::1]", 9, "[fe80::1]:9")],
)
def test_addresses_are_written_in_one_way(host, port, address):
    assert join_address(host, port) == address
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":5600", "host:0", "host:65536", "host:-1", "::1:5600", "h:١"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError):
        split_address(text)
