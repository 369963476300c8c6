"""Requests with media: encoded before they are needed, in pieces beside decoding, once for all who show the same."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest

from lsv.kv.prefix import pack_extras
from lsv.request.media import Media, Mutual, Span, spans_of
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv.scheduler.limits import Limits
from lsv.scheduler.mutual import keep_whole
from lsv.scheduler.plan import Kind, StepResult
from lsv_base.errors import BadRequest
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.tokens import expected_output
from lsv_testing.fakes.worker import BROKEN


def picture(name: str, start: int, count: int) -> Media:
    return Media(hashlib.sha256(name.encode()).digest(), "image", start, count)


def limits(**changes: object) -> Limits:
    fields = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
        "encoder_tokens": 40,
        "encoder_parts": 3,
        **changes,
    }
    return Limits(**fields)


def ask(rig: Rig, id: int, prompt: int, *media: Media, output: int = 4) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=output)
    return rig.add(make_request(id, tuple(range(1, prompt + 1)), sampling=sampling, media=media, arrival=rig.clock()))


def encoded(rig: Rig) -> list[tuple[int, int, int]]:
    return [(piece.slot, piece.first, piece.last) for plan in rig.plans for piece in plan.encode]


def test_a_picture_is_encoded_in_the_step_that_needs_it() -> None:
    rig = Rig(limits=limits())
    request = ask(rig, 0, 30, picture("a", 4, 20))
    rig.run()
    assert encoded(rig) == [(0, 0, 3)]
    assert rig.plans[0].rows.count == (16,), "the picture goes on in the second step"
    assert rig.tokens(0) == expected_output(request, rig.scheduler.longest)


def test_beside_decoding_one_part_at_a_time() -> None:
    rig = Rig(limits=limits())
    first = ask(rig, 0, 3, output=12)
    rig.step()
    second = ask(rig, 1, 12, picture("a", 2, 8))
    rig.run()
    pieces = [plan for plan in rig.plans if plan.encode]
    assert [[(piece.first, piece.last) for piece in plan.encode] for plan in pieces] == [[(0, 1)], [(1, 2)], [(2, 3)]]
    assert all(0 in plan.rows.slot for plan in pieces), "answers go on while the picture is encoded"
    assert [plan.rows.count for plan in pieces] == [(1, 2), (1,), (1, 10)]
    for request in (first, second):
        assert rig.tokens(request.id) == expected_output(request, rig.scheduler.longest)


def test_a_step_may_only_encode() -> None:
    rig = Rig(limits=limits(mixed_batches=False))
    ask(rig, 0, 3, output=12)
    rig.step()
    ask(rig, 1, 12, picture("a", 0, 8))
    rig.run()
    assert Kind.ENCODE in {plan.kind for plan in rig.plans} or any(
        plan.encode and plan.kind is Kind.DECODE for plan in rig.plans
    )
    assert len(rig.tokens(1)) == 4


def test_the_same_picture_is_encoded_once_and_found_in_the_prefix() -> None:
    rig = Rig(limits=limits())
    for id in range(3):
        ask(rig, id, 30, picture("a", 4, 20))
        rig.run()
    assert encoded(rig) == [(0, 0, 3)]
    assert rig.scheduler.counts.prefix_hits == 2 * 28


@pytest.mark.row("F-354")
def test_another_picture_in_the_same_place_shares_no_block_from_there_on() -> None:
    rig = Rig(limits=limits())
    answers = []
    for id, name in enumerate("ab"):
        request = ask(rig, id, 30, picture(name, 9, 8))
        rig.run()
        answers.append(rig.tokens(id))
        assert answers[-1] == expected_output(request, rig.scheduler.longest)
    assert answers[0] != answers[1]
    assert rig.scheduler.counts.prefix_hits == 8, "two blocks of four before the picture"


def test_room_is_made_by_forgetting_what_nobody_reads() -> None:
    rig = Rig(limits=limits())
    for id, name in enumerate("abca"):
        ask(rig, id, 27, picture(name, 2, 20))
        rig.run()
    assert len(encoded(rig)) == 3, "the last one is in the prefix cache"
    assert [hash for plan in rig.plans for hash in plan.forget] == [picture("a", 2, 20).hash]


def test_what_never_fits_is_refused() -> None:
    rig = Rig(limits=limits())
    with pytest.raises(BadRequest, match="need 41 tokens at a time, and the encoder keeps 40"):
        ask(rig, 0, 60, picture("a", 0, 41))
    rig = Rig(limits=limits(chunked_prefill=False, max_num_batched_tokens=64))
    with pytest.raises(BadRequest, match="need 42 tokens"):
        ask(rig, 0, 60, picture("a", 0, 21), picture("b", 30, 21))


def test_the_extras_of_a_block_name_what_stands_in_it() -> None:
    a, b = picture("a", 2, 3), picture("b", 6, 8)
    request = make_request(0, tuple(range(20)), sampling=SamplingParams(), media=(a, b), salt=b"s")
    table, (a, b) = Rig().kv.open(request), request.media
    assert table.extras(0, 2) == pack_extras(salt=b"s")
    assert table.extras(4, 8) == pack_extras(salt=b"s", media=[(a.hash, 2), (b.hash, -2)])
    assert table.extras(8, 12) == pack_extras(salt=b"s", media=[(b.hash, 2)])
    assert table.extras(16, 20) == pack_extras(salt=b"s")


@pytest.mark.parametrize("mutual", ["", "items", "prompts"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_random_populations(seed: int, depth: int, mutual: Mutual) -> None:
    rng = random.Random(seed)
    rig = Rig(
        limits=limits(
            depth=depth,
            mixed_batches=rng.random() < 0.5,
            encoder_parts=rng.randint(1, 4),
            max_num_batched_tokens=rng.choice([8, 16]) + {"": 0, "items": 4, "prompts": 60}[mutual],
            mutual=mutual,
        ),
        num_blocks=20,
        prefix_caching=rng.random() < 0.7,
    )
    coming = []
    for id in range(25):
        media, start = [], rng.randint(0, 6)
        for _ in range(rng.randint(0, 3)):
            media.append(picture(rng.choice("abcde"), start, rng.randint(1, 12)))
            start = media[-1].stop + rng.randint(0, 4)
        media = [picture(f"{one.hash.hex()}{one.count}", one.start, one.count) for one in media]
        coming.append((id, start + rng.randint(1, 10), media))
    requests = []

    def arrive() -> None:
        while coming and rng.random() < 0.6:
            id, size, media = coming.pop()
            requests.append(ask(rig, id, size, *media, output=rng.randint(1, 12)))
        if requests and rng.random() < 0.1:
            rig.note(rig.scheduler.abort([rng.choice(requests).id]))

    while coming or rig.scheduler.has_work or rig.scheduler.in_flight:
        rig.run(arrive)
    for request in requests:
        expected = expected_output(request, rig.scheduler.longest)
        assert request.output == expected[: len(request.output)]
    assert sum(len(request.output) > 0 for request in requests) > 15
    assert cuts(rig, "items") != (mutual != "")
    assert cuts(rig, "prompts") != (mutual == "prompts")


def cuts(rig: Rig, mutual: Mutual) -> bool:
    """Whether any row ends among tokens that see one another."""
    spans: dict[int, tuple[Span, ...]] = {}
    for plan in rig.plans:
        for begin in plan.begin:
            spans[begin.slot] = ((0, begin.prompt),) if mutual == "prompts" else spans_of(begin.media)
        for slot, start, count in zip(plan.rows.slot, plan.rows.start, plan.rows.count, strict=True):
            if any(first < start + count < last for first, last in spans[slot]):
                return True
    return False


@pytest.mark.parametrize(
    ("start", "count", "most", "whole"),
    [
        (0, 3, 9, 3),
        (0, 4, 9, 4),
        (0, 7, 9, 4),  # up to where the first begins
        (0, 10, 99, 10),
        (0, 12, 99, 10),
        (4, 3, 6, 6),  # all of it, beyond what the step was to take
        (6, 1, 4, 4),  # what is left of it
        (4, 3, 5, 0),
        (10, 1, 9, 5),  # the second follows at once
        (15, 4, 4, 4),
    ],
)
def test_no_item_is_cut_whose_tokens_see_one_another(start: int, count: int, most: int, whole: int) -> None:
    assert keep_whole(((4, 10), (10, 15)), start, count, most) == whole


def error_of(rig: Rig, id: int) -> str | None:
    return rig.news[id][-1].error


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_encoding_does_not_stick_to_the_item(depth: int) -> None:
    rig = Rig(limits=limits(depth=depth))
    item = picture("a", 4, 20)
    rig.worker.broken = {item.hash}
    ask(rig, 0, 30, item)
    rig.run()
    again = ask(rig, 1, 30, item)
    rig.run()
    assert error_of(rig, 0) == BROKEN
    assert rig.tokens(1) == expected_output(again, rig.scheduler.longest)
    assert [hash for plan in rig.plans for hash in plan.forget] == [item.hash]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_fails_whose_item_does_before_it_has_a_row(depth: int) -> None:
    rig = Rig(limits=limits(depth=depth))
    text = ask(rig, 0, 3, output=12)
    rig.step()
    item = picture("a", 0, 8)
    rig.worker.broken = {item.hash}
    ask(rig, 1, 12, item)
    again = ask(rig, 2, 12, item)
    rig.run()
    assert error_of(rig, 1) == BROKEN
    assert not rig.tokens(1)
    for request in (text, again):
        assert rig.tokens(request.id) == expected_output(request, rig.scheduler.longest)


def test_rows_fail_with_the_item_that_another_request_had_encoded() -> None:
    """Of several stages the one that samples knows nothing of what the first one could not encode."""
    rig = Rig(limits=limits(depth=2, stages=2, max_num_batched_tokens=64), prefix_caching=False)
    item = picture("a", 4, 20)
    rig.worker.broken = {item.hash}
    collect = rig.worker.collect

    def collect_from_the_last(timeout: float) -> StepResult:
        result = collect(timeout)
        tokens = tuple((1,) if row in result.failed else found for row, found in enumerate(result.tokens))
        return msgspec.structs.replace(result, failed={}, tokens=tokens)

    rig.worker.collect = collect_from_the_last  # type: ignore[method-assign]
    for id in (0, 1):
        ask(rig, id, 30, item)
    rig.run()
    assert [error_of(rig, id) for id in (0, 1)] == [BROKEN, BROKEN]
    assert not rig.tokens(0)
    assert not rig.tokens(1)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_random_failures_hit_nobody_who_does_not_need_the_item(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    chosen = limits(depth=depth, encoder_parts=rng.randint(1, 3), encoder_tokens=14)
    rig = Rig(limits=chosen, prefix_caching=rng.random() < 0.3)
    items = [picture(name, rng.randint(0, 4), rng.randint(8, 12)) for name in "abc"]
    coming, requests = 30, []

    def arrive() -> None:
        nonlocal coming
        if rng.random() < 0.3:
            rig.worker.broken = {rng.choice(items).hash}
        if coming and rng.random() < 0.7:
            coming -= 1
            media = [rng.choice(items)] if rng.random() < 0.8 else []
            requests.append(ask(rig, coming, 18 + rng.randint(1, 9), *media, output=rng.randint(1, 9)))

    while coming or rig.scheduler.has_work or rig.scheduler.in_flight:
        rig.run(arrive)
    failed = [request for request in requests if error_of(rig, request.id) == BROKEN]
    for request in requests:
        expected = expected_output(request, rig.scheduler.longest)
        assert request.output == (expected[: len(request.output)] if request in failed else expected)
    assert 0 < len(failed) < len(requests)
    assert all(request.media for request in failed)


def test_blocks_are_told_of_though_the_step_for_which_they_were_taken_did_not_come_about() -> None:
    rig = Rig(limits=limits())
    request = ask(rig, 0, 40, picture("a", 16, 12))
    rig.step()
    encoder, most = rig.scheduler._encoder, rig.scheduler._encoder._capacity
    encoder._capacity = 0  # as if the embeddings of a request that drains filled it
    assert rig.plan() is None
    encoder._capacity = most
    rig.run()
    told = sum(len(grown.blocks) for plan in rig.plans for grown in plan.blocks)
    assert told == -(-(40 + 4 - 1) // rig.kv.block_size)
    assert rig.tokens(0) == expected_output(request, rig.scheduler.longest)
