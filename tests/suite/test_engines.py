"""Engines that tests share: what a test gets, and what it must leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny
from suite.engines import KEPT, Engines

pytest_plugins = ["pytester"]

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 32, "block_size": 16,
    "skip_tokenizer_init": True, "platform": "cpu",
}  # fmt: skip
PROMPT = {"prompt_token_ids": list(range(5, 45))}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("shared"))


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


def tokens(llm: LLM) -> tuple[int, ...]:
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def is_closed(llm: LLM) -> bool:
    return llm._client is None


def scheduler(llm: LLM) -> Any:
    return llm.llm_engine.client._engine._scheduler


def test_an_engine_is_used_again_and_answers_like_a_new_one(checkpoint: Path, engines: Engines) -> None:
    with LLM(str(checkpoint), **OPTIONS) as new:
        expected = tokens(new)
    first = engines(checkpoint, **OPTIONS)
    for _ in range(3):
        assert engines(str(checkpoint), **OPTIONS) is first
        assert tokens(first) == expected
        assert first.stats.prefix_hits_total == 0, "a prefix was cached before the test"
        engines.check()


def test_other_options_are_another_engine(checkpoint: Path, engines: Engines) -> None:
    first = engines(checkpoint, **OPTIONS)
    second = engines(checkpoint, **{**OPTIONS, "max_num_seqs": 2})
    assert first is not second
    assert (first.config.max_num_seqs, second.config.max_num_seqs) != (2, 2)
    assert second.config.max_num_seqs == 2


def test_the_engine_that_was_used_longest_ago_is_closed(checkpoint: Path, engines: Engines) -> None:
    made = []
    for count in range(1, KEPT + 1):
        made.append(engines(checkpoint, **OPTIONS, max_num_seqs=count))
        engines.check()
    engines(checkpoint, **OPTIONS, max_num_seqs=1)
    engines.check()
    engines(checkpoint, **OPTIONS, max_num_seqs=9)
    assert [is_closed(llm) for llm in made] == [False, True, *[False] * (KEPT - 2)]


def test_no_engine_is_closed_that_the_test_itself_has_asked_for(checkpoint: Path, engines: Engines) -> None:
    made = [engines(checkpoint, **OPTIONS, max_num_seqs=count) for count in range(1, KEPT + 3)]
    assert not any(map(is_closed, made))


def test_a_request_that_is_left_is_reported_and_the_engine_is_not_used_again(
    checkpoint: Path, engines: Engines
) -> None:
    llm = engines(checkpoint, **OPTIONS)
    llm.llm_engine.add_request("forgotten", PROMPT, GREEDY)
    llm.llm_engine.step()
    with pytest.raises(AssertionError, match="left requests in a shared engine: forgotten"):
        engines.check()
    assert is_closed(llm)
    assert engines(checkpoint, **OPTIONS) is not llm


def test_a_lost_block_is_reported(checkpoint: Path, engines: Engines) -> None:
    llm, other = engines(checkpoint, **OPTIONS), engines(checkpoint, **OPTIONS, max_num_seqs=1)
    scheduler(llm)._kv._pool.take(1, 1)
    with pytest.raises(AssertionError, match="reference counts do not add up"):
        engines.check()
    assert is_closed(llm)
    assert not is_closed(other)
    engines.check()


def test_a_test_that_leaves_a_request_fails(pytester: pytest.Pytester, checkpoint: Path) -> None:
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makepyfile(
        f"""
        OPTIONS, PROMPT = {OPTIONS!r}, {PROMPT!r}
        from lsv import SamplingParams

        def test_that_forgets(engine_for):
            engine_for({str(checkpoint)!r}, **OPTIONS).llm_engine.add_request("forgotten", PROMPT, SamplingParams())

        def test_after_it(engine_for):
            assert engine_for({str(checkpoint)!r}, **OPTIONS).stats.steps_total == 0
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["E *left requests in a shared engine: forgotten", "ERROR *::test_that_forgets*"])


def test_memory_stays_as_it_is_while_an_engine_is_used_again(checkpoint: Path, engines: Engines) -> None:
    for _ in range(10):
        use(engines, checkpoint)
    before = resident()
    for _ in range(50):
        use(engines, checkpoint)
    assert resident() - before < 8 << 20


def use(engines: Engines, checkpoint: Path) -> None:
    tokens(engines(checkpoint, **OPTIONS))
    engines.check()


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
