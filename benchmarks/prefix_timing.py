"""What one account learns of another's prompts from how quick a first token is, with prefixes kept apart and shared.

    python benchmarks/prefix_timing.py [--prompts 60] [--words 300]

One account sends prompts; another one then sends each of them, and as many that nobody has sent, in random order, and
guesses from the time to the first token which were known. The figure is the area under the ROC curve of that guess:
0.5 is a coin, 1.0 is certainty.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lsv_base.processes.ports import free_port

ACCOUNTS = '[victim]\nkeys = ["v"]\n[attacker]\nkeys = ["a"]\n'
WORDS = ["the", "a", "small", "red", "blue", "big", "fox", "dog", "house", "tree", "runs", "sleeps", "over", "under"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60, help="prompts of each kind")
    parser.add_argument("--words", type=int, default=300, help="words of a prompt")
    options = parser.parse_args()
    for name, arguments in (("apart (the default)", ()), ("shared", ("--api-shared-prefix-cache",))):
        with running(*arguments) as url:
            known, fresh = attack(url, options.prompts, options.words)
        print(
            f"prefixes {name:20} first token {1e3 * median(known):6.1f} ms where the prompt was known, "
            f"{1e3 * median(fresh):6.1f} ms where not; AUC {area(known, fresh):.2f}",
            flush=True,
        )


def attack(url: str, count: int, words: int) -> tuple[list[float], list[float]]:
    """Times to the first token of the prompts that the victim has sent, and of others."""
    rng = random.Random(1)
    prompts = [" ".join(rng.choices(WORDS, k=words)) for _ in range(2 * count)]
    first_token(url, "a", "warm up")
    for prompt in prompts[:count]:
        first_token(url, "v", prompt)
    order = list(range(2 * count))
    rng.shuffle(order)
    times = {number: first_token(url, "a", prompts[number]) for number in order}
    return [times[number] for number in range(count)], [times[number] for number in range(count, 2 * count)]


def first_token(url: str, key: str, prompt: str) -> float:
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"authorization": f"Bearer {key}"})
    began = time.perf_counter()
    with urllib.request.urlopen(request) as reply:
        reply.read()
    return time.perf_counter() - began


def area(known: Sequence[float], fresh: Sequence[float]) -> float:
    """How often a known prompt is quicker than a fresh one; ties count half."""
    wins = sum((one < other) + 0.5 * (one == other) for one in known for other in fresh)
    return wins / (len(known) * len(fresh))


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """A server with two accounts."""
    with tempfile.TemporaryDirectory() as folder:
        accounts, port = Path(folder) / "accounts.toml", free_port()
        accounts.write_text(ACCOUNTS)
        command = [sys.executable, "-m", "lsv", "serve", "lsv-demo", "--port", str(port), "--disable-log-requests"]
        server = subprocess.Popen(
            [*command, "--api-accounts", str(accounts), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            next(line for line in server.stdout if line.startswith("lsv is ready on"))
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
