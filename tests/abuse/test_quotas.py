"""Quotas count what the engine computed for an account, not what its clients received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from lsv.engine.client_base import ClientBase
from lsv.engine.engine import Engine
from lsv.engine.messages import Start, Submit, Update
from lsv.engine.stream import OutputStream
from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.scheduler.policy import Fcfs
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters

BEAMS = {"use_beam_search": True, "n": 1, "best_of": 8, "max_tokens": 20, "ignore_eos": True}
PROMPT = tuple(range(5, 15))


class Account:
    """One request on an engine over a fake worker, and the tokens that its chunks count."""

    def __init__(self, executor: FakeExecutor | None = None, **changes: object) -> None:
        self.engine: Engine[str] = Engine(
            engine_config(**changes), executor or FakeExecutor(), Fcfs(), parts=core_parts
        )
        self.engine.start(lambda *_: None)
        self.counted = 0
        self.chunks: list[Chunk] = []

    def ask(self, prompt: Sequence[int] = PROMPT, **params: object) -> RequestSpec:
        spec = make_spec(tuple(prompt), SamplingParams(**{"detokenize": False, **params}), request_id="r")
        submit = Submit(id=0, spec=spec)
        self.stream = OutputStream(spec, submit, model="fake", tokenizer=letters(64), now=0.0)
        self.engine.submit("a", submit)
        return spec

    def step(self) -> None:
        self.read(self.engine.step().get("a", ()))

    def read(self, updates: Iterable[Update]) -> None:
        for update in updates:
            chunk, _ = self.stream.take(update, 0.0)
            if chunk is not None:
                self.chunks.append(chunk)
                self.counted += chunk.computed

    def run(self) -> None:
        for _ in range(1000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("not finished")

    @property
    def computed(self) -> int:
        """The tokens by the engine's own count."""
        return self.engine.stats.generation_tokens_total


def test_every_beam_counts():
    account = Account()
    account.ask(**BEAMS)
    account.run()
    answer = sum(len(chunk.ids) for chunk in account.chunks)
    assert answer == 20
    assert account.counted == account.computed > 5 * answer


def test_an_abandoned_search_counts_its_computed_rounds():
    account = Account()
    account.ask(**BEAMS)
    while account.computed < 50:
        account.step()
    account.engine.abort("a", [0])
    assert account.counted >= account.computed - BEAMS["best_of"]


def test_hidden_candidates_count():
    account = Account()
    account.ask(n=1, best_of=6, temperature=1.0, max_tokens=9, ignore_eos=True)
    account.run()
    assert account.counted == account.computed == 6 * 9


@pytest.mark.parametrize("beams", [True, False])
def test_recomputed_prompts_count(beams: bool):
    account = Account(prefix_caching=False)
    given = BEAMS | {"max_tokens": 5} if beams else {"best_of": 6, "n": 1, "temperature": 1.0, "max_tokens": 5}
    account.ask(range(5, 46), **given)
    account.run()
    assert account.counted >= 0.8 * (account.engine.stats.tokens_total - 41), "the first computation is the prompt's"


def test_rejected_drafts_count():
    wrong = FakeExecutor(lambda slot, most: (1,) * most)
    account = Account(wrong, max_num_batched_tokens=64)
    account.ask(temperature=0.0, max_tokens=6)
    account.read([Update(id=0, tokens=(3,), start=Start()), Update(id=0, tokens=(4, 5), drafted=(4, 1))])
    account.read([Update(id=0, tokens=(6,), drafted=(6, 1), finish=FinishReason.LENGTH)])
    assert account.counted == 4 + 5


def test_tokens_after_a_stop_string_count():
    account = Account()
    account.ask(temperature=0.0, max_tokens=9, detokenize=True, stop=("B",))
    account.read([Update(id=0, tokens=tuple(range(7)), start=Start())])
    assert [len(chunk.ids) for chunk in account.chunks] == [2]
    assert account.counted == 7


FILE = '[alice]\nkeys = ["a"]\ntokens_per_minute = 2000\n'


class Searching:
    """Make a fake client report computed tokens without text."""

    def __init__(self, client: ClientBase, computed: int) -> None:
        self._generate, self._computed = client.generate, computed

    async def generate(self, request: RequestSpec):
        yield Chunk(computed=self._computed)
        async for chunk in self._generate(request):
            yield chunk


async def test_an_account_is_charged_for_beams(start, tmp_path):
    file = tmp_path / "accounts.toml"
    file.write_text(FILE)
    site = await start(accounts=str(file))
    site.engine.generate = Searching(site.engine, 900).generate
    key = {"authorization": "Bearer a"}
    body = {"prompt": "Hi", "max_tokens": 3, "use_beam_search": True, "n": 2}
    first = await site.http.post("/v1/completions", json=body, headers=key)
    assert (first.status_code, len(first.json()["choices"])) == (200, 2)
    assert 1000 <= int(first.headers["x-ratelimit-remaining-tokens"]) < 1100
    streamed = {"prompt": "Hi", "max_tokens": 3, "stream": True, "echo": True, "logprobs": 0}
    second = await site.http.post("/v1/completions", json=streamed, headers=key)
    assert second.text.count('"text":"HiH"') == 1, "a chunk that only counts is no event"
    left = await site.http.get("/v1/models", headers=key)
    assert 90 <= int(left.headers["x-ratelimit-remaining-tokens"]) < 190
    for _ in range(2):
        last = await site.http.post("/v1/completions", json=body, headers=key)
    assert last.status_code == 429
