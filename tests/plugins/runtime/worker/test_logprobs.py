"""Log probabilities and ranks against log_softmax and a full sort."""

from collections.abc import Callable

import pytest
import torch

from lsv_runtime.worker.sampling.logprobs import describe, join
from lsv_runtime.worker.sampling.sampler import sample_rows
from lsv_runtime.worker.slots import Slot


@pytest.mark.row("F-056")
def test_logprobs_are_those_of_the_raw_logits(make_slot: Callable[..., Slot]) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    expected = logits.log_softmax(-1)
    slots = [
        make_slot(temperature=0.3, top_k=5, logit_bias={3: 20.0}, logprobs=4),
        make_slot(),
        make_slot(logprobs=0),
    ]
    samples = sample_rows(logits, slots)
    assert sorted(samples.logprobs) == [0, 2]
    assert samples.tokens[0] == 3
    found = samples.logprobs[0]
    (ids,), (values,), (ranks,) = found.ids, found.values, found.ranks
    best = expected[0].topk(4)
    assert list(ids) == [3, *best.indices.tolist()]
    torch.testing.assert_close(torch.tensor(values), expected[0][list(ids)])
    assert list(ranks) == [int((expected[0] > expected[0, 3]).sum()) + 1, 1, 2, 3, 4]
    assert samples.logprobs[2].ids == ((samples.tokens[2],),)


def test_ties_stand_in_order_of_ids_and_share_a_rank() -> None:
    values = torch.tensor([[1.0, 5.0, 3.0, 3.0, 5.0, 3.0]])
    found = describe(values, torch.tensor([5]), [3]).read()[0]
    assert found.ids == ((5, 1, 4, 2),)
    assert found.ranks == ((3, 1, 1, 3),)


def test_rows_may_want_different_numbers_and_more_than_there_are() -> None:
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    found = join(describe(values, torch.tensor([0, 1, 2]), [0, 2, 9]).read().values())
    assert [len(ids) for ids in found.ids] == [1, 3, 5]
    order = values[2].argsort(descending=True).tolist()
    assert list(found.ids[2]) == [2, *order]
    assert found.ranks[2][1:] == (1, 2, 3, 4)
