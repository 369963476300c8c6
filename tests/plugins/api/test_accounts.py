"""Accounts and what they may use."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsv_api.accounts.account import Account, Accounts, read_accounts
from lsv_api.accounts.buckets import Buckets
from lsv_api.accounts.quotas import Quotas, RateLimited
from lsv_base.errors import ConfigError
from lsv_testing.fakes.clock import FakeClock
from suite.files import nothing_left_open

FILE = """
[alice]
keys = ["a1", "a2"]
weight = 2
requests_per_minute = 3

[bob]
keys_sha256 = ["{digest}"]
tokens_per_minute = 600
tokens_per_day = 10_000
"""


def write(folder: Path, text: str) -> str:
    path = folder / "accounts.toml"
    path.write_text(text)
    return str(path)


def test_each_key_has_its_owner(tmp_path: Path):
    digest = hashlib.sha256(b"b1").hexdigest()
    found = read_accounts(["plain"], write(tmp_path, FILE.format(digest=digest)))
    plain = hashlib.sha256(b"plain").hexdigest()
    assert [account.name for account in found.all] == [f"key-{plain[:8]}", "alice", "bob"]
    assert found.find(b"a1") is found.find(b"a2")
    assert found.find(b"a1").weight == 2
    assert found.find(b"b1").tokens_per_day == 10_000
    assert found.find(b"plain").requests_per_minute is None
    assert found.find(b"a3") is None
    assert found.find(b"") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nweight = 1", "needs keys"),
        ("[a]\nkeys = ['x']\nwait = 1", "unknown field `wait`"),
        ("[a]\nkeys = ['x']\nweight = 0", "weight"),
        ("[a]\nkeys = ['x']\nrequests_per_minute = nan", "requests_per_minute"),
        ("[a]\nkeys = 'x'", "must be a list"),
        ("[a]\nkeys_sha256 = ['abc']", "64 lower-case hex digits"),
        ("['a b']\nkeys = ['x']", "an account is a table"),
        ("a = 1", "an account is a table"),
        ("[a]\nkeys = ['x']\n[b]\nkeys = ['x']", "accounts a and b share a key"),
        ("[a", "can't be read"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message) as error:
        read_accounts([], write(tmp_path, text))
    assert error.value.param == "api_accounts"


@pytest.fixture
def quotas() -> Iterator[Callable[..., tuple[Quotas, Account, FakeClock]]]:
    made: list[Quotas] = []

    def make_quotas(**bounds: float) -> tuple[Quotas, Account, FakeClock]:
        account, clock = Account(name="a", **bounds), FakeClock()
        clock.advance(1000.0)
        made.append(Quotas(Accounts([account]), now=clock))
        return made[-1], account, clock

    yield make_quotas
    for one in made:
        one.buckets.close()


def test_requests_come_back_with_time(quotas):
    bounds, account, clock = quotas(requests_per_minute=3)
    for _ in range(3):
        bounds.start(account)
    with pytest.raises(RateLimited, match=r"3 requests per minute .*again in 20 s") as error:
        bounds.start(account)
    assert error.value.seconds == pytest.approx(20)
    assert error.value.status == 429
    clock.advance(error.value.seconds)
    bounds.start(account)
    with pytest.raises(RateLimited):
        bounds.start(account)


def test_a_refused_request_uses_nothing(quotas):
    bounds, account, clock = quotas(requests_per_minute=2, tokens_per_minute=60)
    bounds.start(account)
    bounds.count_tokens(account, 100)
    for _ in range(5):
        with pytest.raises(RateLimited, match="tokens per minute"):
            bounds.start(account)
    clock.advance(41.0)
    bounds.start(account)


def test_tokens_are_paid_back_before_the_next_request(quotas):
    bounds, account, clock = quotas(tokens_per_minute=60, tokens_per_day=1000)
    bounds.start(account)
    bounds.count_tokens(account, 90)
    with pytest.raises(RateLimited) as error:
        bounds.start(account)
    assert error.value.seconds == pytest.approx(30)
    clock.advance(31.0)
    bounds.start(account)
    bounds.count_tokens(account, 990)
    clock.advance(3600.0)
    with pytest.raises(RateLimited, match="per day"):
        bounds.start(account)


def test_headers_tell_the_tightest_bound(quotas):
    bounds, account, _ = quotas(requests_per_minute=10, tokens_per_minute=600, tokens_per_day=500)
    bounds.start(account)
    bounds.count_tokens(account, 100)
    assert bounds.headers(account) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6.0s",
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "17280.0s",
    }
    assert bounds.headers(Account(name="other")) == {}


def test_processes_share_their_buckets():
    mine = Buckets.make(2)
    program = (
        "import sys; from lsv_api.accounts.buckets import Buckets; "
        "theirs = Buckets.inherit(int(sys.argv[1])); "
        "[theirs.use(1, 1.0, capacity=0.0, rate=0.0, now=1.0) for _ in range(2000)]"
    )
    command = [sys.executable, "-c", program, str(mine.fileno())]
    others = [subprocess.Popen(command, pass_fds=[mine.fileno()]) for _ in range(2)]
    for _ in range(2000):
        mine.use(1, 1.0, capacity=0.0, rate=0.0, now=1.0)
    assert [other.wait() for other in others] == [0, 0]
    assert mine.use(1, 0.0, capacity=0.0, rate=0.0, now=1.0) == -6000.0
    assert mine.use(0, 0.0, capacity=5.0, rate=0.0, now=1.0) == 5.0
    mine.close()


async def test_a_server_that_ends_closes_its_buckets(start):
    site = await start()
    buckets = site.app.ctx.api.quotas.buckets
    assert buckets.fileno() > 0
    await site.stop()
    with pytest.raises(ValueError, match="closed file"):
        buckets.fileno()


def test_nothing_is_left_behind():
    with nothing_left_open():
        Buckets.make(3).close()
