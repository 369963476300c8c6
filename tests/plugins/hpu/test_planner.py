"""Buckets proposed for a sample of requests."""

from __future__ import annotations

import random

import msgspec
import pytest

from lsv.config import EngineConfig
from lsv.platform import Traffic
from lsv_hpu.buckets.choice import choose_sizes
from lsv_hpu.buckets.planner import limits_of
from lsv_hpu.buckets.table import Buckets
from lsv_hpu.buckets.traffic import measure, serve
from lsv_hpu.emulation.platform import EmulatedHpu
from lsv_hpu.settings import read

CONFIG = EngineConfig(
    model="m",
    served_names=("m",),
    tokenizer="m",
    architecture="A",
    model_offer="llama",
    platform="hpu",
    attention="hpu-flat",
    dtype="bfloat16",
    block_size=128,
    max_model_len=2048,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    num_blocks=400,
)


def skewed(count: int = 150) -> list[Traffic]:
    """Most prompts have one of two lengths that lie just above a default size, and answers are short."""
    random_ = random.Random(1)
    common = (1100, 1130, 530)
    return [
        Traffic(random_.choice(common) if random_.random() < 0.9 else random_.randint(20, 1800), random_.randint(5, 60))
        for _ in range(count)
    ]


def buckets_of(config: EngineConfig) -> Buckets:
    limits = limits_of(config)
    return Buckets(choose_sizes(read(config.options), limits), limits)


@pytest.mark.parametrize("strategy", ["exp", "lin"])
def test_the_proposal_wastes_less_with_no_more_buckets(strategy: str) -> None:
    config = msgspec.structs.replace(CONFIG, options={"hpu.bucketing_strategy": strategy})
    traffic = skewed()
    advice = EmulatedHpu().advise(config, traffic)
    assert advice is not None
    given = buckets_of(config)
    found = buckets_of(msgspec.structs.replace(config, options={**config.options, **advice.settings}))
    assert len(found.prompts) <= len(given.prompts)
    assert len(found.decodes) <= len(given.decodes)
    before, after = (
        measure(serve(traffic, buckets.limits, policy_padding(buckets)), buckets) for buckets in (given, found)
    )
    assert after.unwarmed <= before.unwarmed
    assert after.rows + after.blocks < before.rows + before.blocks
    if strategy == "exp":  # the linear default has all multiples of a block there are
        assert after.prompts < before.prompts


def policy_padding(buckets: Buckets):  # type: ignore[no-untyped-def]
    from lsv.capabilities import Padding

    return Padding(buckets.sizes.prompt_bs, buckets.sizes.prompt_seq)


def test_what_it_prints_is_what_its_settings_give() -> None:
    advice = EmulatedHpu().advise(CONFIG, skewed())
    assert advice is not None
    assert set(advice.settings) == {"hpu.prompt_seq_buckets", "hpu.decode_bs_buckets", "hpu.decode_block_buckets"}
    table = {name: value for name, value, _ in advice.rows}
    found = buckets_of(msgspec.structs.replace(CONFIG, options=advice.settings))
    assert table["proposed buckets"] == str(len(found.prompts) + len(found.decodes))
    assert table["proposed unwarmed steps"] == "0"
    assert table["proposed warm-up"].endswith(" s")
    for name in ("padding of prompts", "padding of decoding"):
        assert float(table[f"proposed {name}"][:-1]) < float(table[f"given {name}"][:-1])


def test_without_a_sample_it_only_counts() -> None:
    advice = EmulatedHpu().advise(CONFIG, ())
    assert advice is not None
    assert not advice.settings
    assert [name for name, _, _ in advice.rows] == ["given buckets", "given warm-up", "given sizes"]


def test_serving_computes_every_token_once() -> None:
    traffic = skewed(40)
    buckets = buckets_of(CONFIG)
    steps = serve(traffic, buckets.limits, policy_padding(buckets))
    assert steps.tokens == sum(one.prompt for one in traffic)
    rows = sum(shape.rows * times for shape, times in steps.decodes.items())
    assert rows == sum(one.output - 1 for one in traffic)
    assert max(shape.rows for shape in steps.decodes) <= CONFIG.max_num_seqs
