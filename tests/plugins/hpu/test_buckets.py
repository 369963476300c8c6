"""Sizes and shapes that steps are padded to, against the sets that Gaudi's documentation and logs show."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from lsv_base.errors import ConfigError
from lsv_hpu.buckets.choice import Sizes, choose_sizes
from lsv_hpu.buckets.sizes import exponential, fitted, linear, padding_aware
from lsv_hpu.buckets.table import DECODE, PROMPT, Buckets
from lsv_hpu.settings import HpuOptions, read
from lsv_hpu.warmup import BucketPolicy
from lsv_runtime.devices.shapes import BatchLimits, Shape

SMALL = BatchLimits(max_rows=4, max_tokens=2048, max_blocks=8, block_size=128, num_blocks=1519)


def make(limits: BatchLimits, **options: object) -> Buckets:
    chosen = read({f"hpu.{name}": value for name, value in options.items()})  # type: ignore[misc]
    return Buckets(choose_sizes(chosen, limits), limits)


@pytest.mark.row("F-478", "F-479", "F-480", "F-481", "F-482", "F-548")
@pytest.mark.parametrize(
    ("low", "step", "high", "sizes"),
    [
        (2, 32, 64, (2, 4, 8, 16, 32, 64)),
        (128, 128, 512, (128, 256, 384, 512)),
        (1, 32, 4, (1, 2, 4)),
        (2, 64, 128, (2, 4, 8, 16, 32, 64, 128)),
        (1, 64, 128, (1, 2, 4, 8, 16, 32, 64, 128)),
        (24576, 2048, 32768, (24576, 26624, 28672, 30720, 32768)),
        (1024, 1024, 33792, tuple(range(1024, 33793, 1024))),
        (3, 32, 64, (3, 6, 12, 24, 32, 64)),
    ],
)
def test_linear(low: int, step: int, high: int, sizes: tuple[int, ...]) -> None:
    assert linear(low, step, high) == sizes


@pytest.mark.row("F-1021")
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ((128, 128, 2048, 10), (128, 256, 384, 512, 640, 896, 1152, 1536, 2048)),
        ((128, 128, 1024, 11), (128, 256, 384, 512, 640, 768, 896, 1024)),
        ((1, 2, 256, 9), (1, 2, 4, 8, 14, 24, 42, 78, 140, 256)),
        ((1, 2, 4, 3), (1, 2, 4)),
        ((1, 2, 1, 1), (1,)),
        ((0, 1, 7, 11), (0, 1, 2, 3, 4, 5, 6, 7)),
        ((0, 1, 0, 1), (0,)),
        ((1, 16, 16, 5), (1, 16)),
    ],
)
def test_exponential(config: tuple[int, int, int, int], sizes: tuple[int, ...]) -> None:
    assert exponential(*config) == sizes


@pytest.mark.row("F-1021")
def test_exponential_fills_the_blocks_of_the_documentations_log() -> None:
    """Its 42 buckets of decoding rows; the log rounds the cache's size up to blocks of 128, which here is the limit."""
    sizes = exponential(128, 128, 5767, 14, fill=True)
    logged = (128, 256, 384, 512, 640, 768, 896, 1024, 1408, 1792, 2432, 3328, 4352, 5888)
    assert (*sizes[:-1], -(-sizes[-1] // 128) * 128) == logged
    assert len(list(product(exponential(1, 2, 4, 3), sizes))) == 42


@pytest.mark.parametrize(("low", "step", "high", "count"), [(1, 256, 10779, 14), (128, 128, 4096, 13), (1, 3, 1000, 9)])
@pytest.mark.parametrize("fill", [False, True])
def test_exponential_stays_inside(low: int, step: int, high: int, count: int, fill: bool) -> None:
    sizes = exponential(low, step, high, count, fill=fill)
    assert sizes[0] == low
    assert sizes[-1] == high
    assert list(sizes) == sorted(set(sizes))
    assert all(size % step == 0 for size in sizes[:-1] if size != low)
    assert len(sizes) <= count + 1


def test_exponential_has_no_rounding_errors() -> None:
    """Where a ratio hits a whole number, the next one must not be taken: 2 * 2 ** 10 at every power of two."""
    assert exponential(2, 2, 2048, 11) == tuple(2**power for power in range(1, 12))
    assert exponential(3, 3, 3**12, 12) == tuple(3**power for power in range(1, 13))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ((0, 8, 64, 64, 0), (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        ((0, 8, 64, 64, 50), (0, 1, 2, 4, 8, 16, 32, 64)),
        ((0, 8, 64, 16, 50), (0, 1, 2, 4, 8, 16, 32, 48, 64)),
        ((16, 16, 128, 32, 25), (16, 32, 48, 64, 80, 96, 128)),
    ],
)
def test_padding_aware(config: tuple[int, int, int, int, int], sizes: tuple[int, ...]) -> None:
    assert padding_aware(*config) == sizes


def test_fitted_sizes_waste_least() -> None:
    """Against every choice there is."""
    demand = {100: 5, 200: 1, 700: 10, 900: 1}
    options = (128, 256, 768, 1024)

    def cost(sizes: tuple[int, ...]) -> int:
        return sum(times * min(size for size in sizes if size >= asked) for asked, times in demand.items())

    for number, found in enumerate(fitted(demand, 4, 1024, 128), start=1):
        choices = [c for c in product(*[options] * number) if c[-1] == 1024 and list(c) == sorted(set(c))]
        assert cost(found) == min(map(cost, choices))
        assert len(found) == number


@pytest.mark.row("F-1004")
def test_the_36_prompt_buckets() -> None:
    """Model length 1024, blocks of 128, one prompt at a time: query + 128 * context is at most 1024."""
    buckets = make(BatchLimits(max_rows=1, max_tokens=2048, max_blocks=8, block_size=128))
    wanted = [
        Shape(PROMPT, 1, query, context) for query in range(128, 1025, 128) for context in range(9 - query // 128)
    ]
    assert list(buckets.prompts) == wanted
    assert len(wanted) == 36


@pytest.mark.row("F-485", "F-486")
def test_padding_examples() -> None:
    """Three requests of 412 tokens: a batch of 4; one ends: 2; past a multiple of 128: the next."""
    limits = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=16, block_size=128)
    buckets = make(limits, bucketing_strategy="lin", decode_bs_bucket_step=32, decode_block_bucket_max=2048)
    assert buckets.fit(Shape(PROMPT, 3, 412, 0)) == Shape(PROMPT, 4, 512, 0)
    assert buckets.fit(Shape(PROMPT, 2, 412, 0)) == Shape(PROMPT, 2, 512, 0)
    assert buckets.fit(Shape(PROMPT, 3, 513, 0)) == Shape(PROMPT, 4, 640, 0)
    assert buckets.fit(Shape(DECODE, 3, 1, 12)) == Shape(DECODE, 4, 1, 128)
    assert buckets.fit(Shape(DECODE, 2, 1, 8)) == Shape(DECODE, 2, 1, 128)


@pytest.mark.row("F-570")
def test_steps_are_widened_to_those_of_other_replicas() -> None:
    limits = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=16, block_size=128)
    buckets = make(limits, bucketing_strategy="lin", decode_bs_bucket_step=32, decode_block_bucket_max=2048)
    assert buckets.fit_size(Shape(DECODE, 1, 1, 12), 4) == Shape(DECODE, 4, 1, 128)
    assert buckets.fit_size(Shape(DECODE, 1, 1, 12), 3) is None
    assert buckets.fit_size(Shape(PROMPT, 1, 100, 0), 1024) == Shape(PROMPT, 1, 1024, 0)
    assert buckets.fit_size(Shape(PROMPT, 3, 100, 0), 1024) == Shape(PROMPT, 4, 256, 0)
    assert buckets.fit_size(Shape(PROMPT, 3, 300, 0), 1024) is None


@pytest.mark.row("F-487", "F-488")
def test_more_than_the_largest_bucket_runs_as_it_is() -> None:
    policy = BucketPolicy(SMALL, HpuOptions(), lambda: 0)
    large = Shape(PROMPT, 1, 36864, 0)
    assert policy.pad(large) == large
    assert policy.describe(large) == "(prompt, 1, 36864)"
    assert policy.describe(Shape(PROMPT, 1, 128, 7)) == "(prompt, 1, 128, 7)"
    assert policy.describe(Shape(DECODE, 4, 1, 12)) == "(decode, 4, 12)"


def test_impossible_combinations_are_left_out() -> None:
    limits = BatchLimits(max_rows=64, max_tokens=131072, max_blocks=16, block_size=128, num_blocks=1024)
    decodes = make(limits, decode_bs_buckets="1,2,4,8,16,32,64", decode_block_buckets=_listed(range(128, 2049, 128)))
    assert len(decodes.decodes) == 18
    limits = BatchLimits(max_rows=16, max_tokens=2048, max_blocks=32, block_size=64)
    prompts = make(
        limits, prompt_bs_buckets="1,2,4,8,16", prompt_seq_buckets="512,1024", prompt_ctx_buckets="0,1,2,3,4"
    )
    assert len(prompts.prompts) == 25


def _listed(sizes: range) -> str:
    return ",".join(map(str, sizes))


@pytest.mark.row(
    "F-522", "F-523", "F-524", "F-525", "F-526", "F-527", "F-528", "F-529", "F-530", "F-531", "F-532", "F-533",
)  # fmt: skip
def test_linear_defaults() -> None:
    sizes = choose_sizes(read({"hpu.bucketing_strategy": "lin"}), BatchLimits(64, 2048, 32, 128, 1500))
    assert sizes.prompt_bs == (1, 2, 4, 8, 16, 32, 64)
    assert sizes.prompt_seq == tuple(range(128, 1025, 128))
    assert sizes.decode_bs == (1, 2, 4, 8, 16, 32, 64)
    assert sizes.decode_block == tuple(range(128, 1025, 128))  # 64 * 2048 / 128
    assert choose_sizes(read({"hpu.bucketing_strategy": "lin"}), SMALL).decode_block == (128,)


@pytest.mark.row("F-547", "F-548")
def test_the_long_context_recipe() -> None:
    given = {"prompt_bs": (1, 16, 16), "prompt_seq": (24576, 2048, 32768), "decode_block": (1024, 1024, 33792)}
    options: dict[str, object] = {
        f"{name}_bucket_{part}": value
        for name, triple in given.items()
        for part, value in zip(("min", "step", "max"), triple, strict=True)
    }
    buckets = make(BatchLimits(128, 65536, 264, 128, 40000), bucketing_strategy="lin", **options)
    assert buckets.sizes.prompt_bs == (1, 2, 4, 8, 16)
    assert buckets.sizes.prompt_seq == (24576, 26624, 28672, 30720, 32768)
    assert buckets.sizes.decode_block[0] == 1024
    assert buckets.sizes.decode_block[-1] == 33792


@pytest.mark.parametrize("strategy", ["lin", "exp", "pad"])
def test_prompts_that_are_never_cut_have_no_context(strategy: str) -> None:
    whole = BatchLimits(max_rows=4, max_tokens=2048, max_blocks=16, block_size=128, num_blocks=1519, contexts=False)
    buckets = make(whole, bucketing_strategy=strategy)
    assert buckets.sizes.prompt_ctx == (0,)
    assert {shape.blocks for shape in buckets.prompts} == {0}


def test_decoding_rows_sized_by_tokens() -> None:
    """A step of 4 rows and 512 tokens has room for 16 blocks; of what rows can't reach there is no shape."""
    limits = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=8, block_size=128, num_blocks=1519)
    buckets = make(limits, decode_seq_bucket_max=2048)
    assert buckets.fit(Shape(DECODE, 3, 1, 13)) == Shape(DECODE, 4, 1, 16)
    assert buckets.label(Shape(DECODE, 4, 1, 16)) == (4, 512)
    assert [buckets.label(one) for one in buckets.decodes if one.rows == 1] == [(1, 128 * size) for size in range(1, 9)]
    assert len(buckets.decodes) == 3 * 8
    assert buckets.sizes.decode_block[-1] == 64


def test_decode_blocks_are_bounded_by_the_cache() -> None:
    assert make(BatchLimits(256, 2048, 719, 128, 3593)).sizes.decode_block[-1] == 3 * 3593
    assert make(BatchLimits(4, 2048, 8, 128, 3593)).sizes.decode_block[-1] == 32


def test_listed_sizes_are_cut_down_to_the_cache() -> None:
    limits = BatchLimits(max_rows=256, max_tokens=2048, max_blocks=719, block_size=128, num_blocks=100)
    decodes = make(limits, decode_bs_buckets="256", decode_block_buckets="256,1000,184064").decodes
    assert decodes == (Shape(DECODE, 256, 1, 256), Shape(DECODE, 256, 1, 300))


def test_log_lines_have_the_documented_form() -> None:
    lines = choose_sizes(
        read({"hpu.bucketing_strategy": "lin", "hpu.prompt_bs_bucket_step": 32}),
        BatchLimits(4, 2048, 1, 128, 100),
    ).summary
    assert lines[0].startswith("Prompt bucket config (min, step, max_warmup) bs:[1, 32, 4], seq:[128, 128, 1024]")
    assert lines[1].startswith("Decode bucket config (min, step, max_warmup) bs:[1, 4, 4], blocks:[128, 128, 128]")
    exp = choose_sizes(read({}), BatchLimits(256, 2048, 719, 128, 3593)).summary
    assert "bs:[1, 2, 4, 3], seq:[128, 128, 2048, 11], blocks:[0, 1, 718, 11]" in exp[0]
    assert "bs:[1, 2, 256, 9], blocks:[1, 256, 10779, 15]" in exp[1]


@pytest.mark.row("F-477", "F-485")
@pytest.mark.parametrize("strategy", ["exp", "lin", "pad"])
def test_every_step_of_whole_blocks_has_a_bucket(strategy: str) -> None:
    """As long as the linear sizes reach so far: prompts in what the planner allows, any decoding rows."""
    limits = BatchLimits(max_rows=6, max_tokens=512, max_blocks=8, block_size=16, num_blocks=100)
    buckets = make(limits, bucketing_strategy=strategy)
    policy = BucketPolicy(limits, read({"hpu.bucketing_strategy": strategy}), lambda: 0)
    random_ = random.Random(3)
    for _ in range(2000):
        rows = random_.randint(1, 6)
        context = np.array([random_.randint(1, limits.max_len) for _ in range(rows)], np.int32)
        decode = policy.pad(policy.measure(DECODE, np.ones(rows, np.int32), context))
        assert decode in buckets.decodes
        before = (context - 1) // 16 * 16
        prompt = policy.measure(PROMPT, (context - before).astype(np.int32), context)
        if rows <= buckets.sizes.prompt_bs[-1]:
            found = policy.pad(prompt)
            assert found in buckets.prompts
            assert policy.pad(found) == found


@pytest.mark.row("F-1004")
def test_measure_counts_blocks() -> None:
    policy = BucketPolicy(SMALL, HpuOptions(), lambda: 0)
    one = np.ones(3, np.int32)
    assert policy.measure(DECODE, one, np.array([128, 129, 1], np.int32)) == Shape(DECODE, 3, 1, 4)
    query = np.array([100, 7], np.int32)
    assert policy.measure(PROMPT, query, np.array([100, 135], np.int32)) == Shape(PROMPT, 2, 100, 1)
    assert policy.measure(PROMPT, query, np.array([100, 136], np.int32)) == Shape(PROMPT, 2, 100, 2)


def test_sizes_as_listed() -> None:
    sizes = choose_sizes(read({"hpu.prompt_seq_buckets": "512,64,128", "hpu.decode_bs_buckets": "3"}), SMALL)
    assert (sizes.prompt_seq, sizes.decode_bs) == ((64, 128, 512), (3,))
    assert isinstance(sizes, Sizes)


@pytest.mark.parametrize("text", ["", "a,b", "0,128", "-1", "1,,2"])
def test_bad_lists_say_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"hpu.prompt_seq_buckets must be whole numbers from 1 on, such as 1,2,4"):
        read({"hpu.prompt_seq_buckets": text})
