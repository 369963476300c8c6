"""A package from outside takes part in the engine: it holds requests back, counts them, and has a metric."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "lsv-quota"


def test_it_passes_the_checks_for_plugins(run: Callable) -> None:
    done = run("-m", "lsv", "plugins", "check", str(FOLDER))
    assert done.returncode == 0, done.stdout + done.stderr


def test_requests_wait_for_the_budget_and_are_counted(quota: Path, serve: Callable) -> None:
    body = {"model": "lsv-demo", "prompt": [65] * 20, "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    with serve("lsv-demo", path=(quota,), LSV_QUOTA_TOKENS_PER_SECOND="40") as server:
        began = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: server.ask("/v1/completions", body), range(4)))
        seconds = time.monotonic() - began
        with urllib.request.urlopen(server.address + "/metrics", timeout=60) as response:
            metrics = response.read().decode()
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert seconds >= 1.9, "of four requests of 40 tokens, 40 a second, the first two are saved up"
    (held,) = re.findall(r"^lsv:quota_held_total\{.*\} (.*)$", metrics, flags=re.MULTILINE)
    assert float(held) >= 2


def test_a_request_beyond_the_quota_is_refused(quota: Path, serve: Callable) -> None:
    body = {"model": "lsv-demo", "prompt": [65] * 20, "max_tokens": 100}
    with serve("lsv-demo", path=(quota,), LSV_QUOTA_TOKENS_PER_SECOND="40") as server:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            server.ask("/v1/completions", body)
        assert refusal.value.code == 400
        assert "the quota is 80: ask for fewer" in refusal.value.read().decode()
        server.ask("/v1/completions", {**body, "max_tokens": 20})
