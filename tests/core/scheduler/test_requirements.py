"""What the scheduler itself requires of a request, apart from any queue."""

from __future__ import annotations

import pytest

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.request.media import Media
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv.scheduler.requirements import Requirements
from lsv_base.errors import BadRequest
from lsv_testing.fakes.requests import make_spec

FULL = KVGroup(0, "full", (0,), 1)
CROSS = KVGroup(1, "cross", (1,), 1, cross_len=8)


def requirements(*groups: KVGroup, blocks: int = 64, **changes: object) -> Requirements:
    bounds = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 32, "encoder_tokens": 10, **changes}
    return Requirements(Limits(**bounds), KVManager(groups or (FULL,), blocks, 4, root=b"test"))


def request(size: int, *media: Media, pooling: bool = False) -> RequestSpec:
    return make_spec(range(size), PoolingParams() if pooling else SamplingParams(), media=media)


def item(count: int, *, cross: bool = False) -> Media:
    return Media(bytes(32), "audio", 0, count, cross=cross)


@pytest.mark.parametrize(
    ("changes", "longest", "why"),
    [
        ({}, 32, "max_model_len=32"),
        ({"blocks": 5}, 20, "the KV cache has 5 blocks of 4 tokens"),
        ({"chunked_prefill": False}, 24, "max_num_batched_tokens=24 without chunked prefill"),
    ],
)
def test_the_tightest_bound_is_the_one_that_is_named(changes: dict[str, object], longest: int, why: str) -> None:
    found = requirements(**changes)
    assert found.longest == longest
    found.check(request(longest - 1))
    with pytest.raises(BadRequest, match=f"the prompt has {longest} tokens, but at most {longest - 1} fit") as error:
        found.check(request(longest))
    assert why in error.value.message
    assert error.value.param == "prompt"


def test_a_prompt_that_is_pooled_needs_no_place_for_an_answer() -> None:
    requirements().check(request(32, pooling=True))
    with pytest.raises(BadRequest, match="at most 32 fit"):
        requirements().check(request(33, pooling=True))


def test_items_count_one_by_one_unless_a_prompt_is_computed_in_one_step() -> None:
    two = request(20, item(6), item(6))
    requirements().check(two)
    with pytest.raises(BadRequest, match="need 12 tokens at a time, and the encoder keeps 10"):
        requirements(chunked_prefill=False).check(two)
    with pytest.raises(BadRequest, match="need 12 tokens at a time"):
        requirements(mutual="prompts").check(two)


def test_an_item_whose_tokens_see_one_another_fits_into_a_step() -> None:
    whole = requirements(mutual="items", max_num_batched_tokens=6)
    whole.check(request(20, item(6), item(6)))
    with pytest.raises(BadRequest, match="an item has 7 tokens, which see one another, and a step takes 6"):
        whole.check(request(20, item(7)))
    prompts = requirements(mutual="prompts", max_num_batched_tokens=6)
    prompts.check(request(6))
    with pytest.raises(BadRequest, match="the prompt has 7 tokens, which see one another, and a step takes 6"):
        prompts.check(request(7))


def test_an_item_for_cross_attention_is_required_exactly_where_the_model_has_it() -> None:
    requirements(FULL, CROSS).check(request(4, item(8, cross=True)))
    for wrong in (request(4), request(4, item(9, cross=True)), request(4, *[item(2, cross=True)] * 2)):
        with pytest.raises(BadRequest, match=r"the model (expects|attends to)"):
            requirements(FULL, CROSS).check(wrong)
    with pytest.raises(BadRequest, match="no media item"):
        requirements().check(request(4, item(2, cross=True)))


def test_an_item_for_cross_attention_may_be_left_out_where_the_model_says_so() -> None:
    optional = requirements(FULL, KVGroup(1, "cross", (1,), 1, cross_len=8, optional=True))
    for fine in (request(4), request(4, item(8, cross=True))):
        optional.check(fine)
    with pytest.raises(BadRequest, match="at most one media item next to its prompt, got 2"):
        optional.check(request(4, *[item(2, cross=True)] * 2))
