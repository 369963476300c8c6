"""Routers against their definitions, token by token."""

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.routers import Router, ScoredRouter, SparseMixer
from lsv_runtime.weights.checkpoint import DummySource
from lsv_testing.tensors import fill_module, place


def fill(make):
    w = place()
    router = make(w)
    fill_module(router, w, DummySource(w.declaration.slots))
    return router


def test_normalised_weights_are_a_softmax_over_the_chosen():
    router = fill(lambda w: Router(w, 16, 8, 3, normalise=True))
    logits = torch.randn(5, 8)
    weights, experts = router.choose(logits)
    best, places = logits.topk(3)
    assert torch.equal(experts, places)
    torch.testing.assert_close(weights, best.softmax(-1))


@pytest.mark.parametrize("correction", [None, "bias"])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_experts_come_from_the_best_groups(scores, correction):
    router = fill(
        lambda w: ScoredRouter(
            w, 16, 12, 3, normalise=True, scores=scores, correction=correction, groups=4, chosen_groups=2, scale=2.5
        )
    )
    logits = torch.randn(20, 12)
    added = torch.zeros(12) if correction is None else torch.randn(12)
    if correction:
        router.correction.data.copy_(added)
    weights, experts = router.choose(logits)
    for row, own, chosen in zip(logits, weights, experts, strict=True):
        plain = row.softmax(-1) if scores == "softmax" else row.sigmoid()
        wanted = (plain + added).tolist()
        groups = [sorted(wanted[first : first + 3])[::-1] for first in range(0, 12, 3)]
        worth = [group[0] + (group[1] if correction else 0.0) for group in groups]
        open_groups = sorted(range(4), key=lambda group: -worth[group])[:2]
        allowed = [expert for expert in range(12) if expert // 3 in open_groups]
        best = sorted(allowed, key=lambda expert: -wanted[expert])[:3]
        assert sorted(chosen.tolist()) == sorted(best)
        torch.testing.assert_close(own, 2.5 * plain[chosen] / plain[chosen].sum())


def test_a_correction_changes_the_choice_and_no_weight():
    router = fill(lambda w: ScoredRouter(w, 16, 4, 1, normalise=False, scores="sigmoid", correction="bias"))
    router.correction.data.copy_(torch.tensor([0.0, 0.0, 5.0, 0.0]))
    weights, experts = router.choose(torch.tensor([[3.0, 1.0, -1.0, 0.0]]))
    assert experts.tolist() == [[2]]
    torch.testing.assert_close(weights, torch.tensor([[-1.0]]).sigmoid())


def test_the_sparse_mixer_leaves_out_what_is_far_from_the_best():
    router = fill(lambda w: SparseMixer(w, 16, 4, 2, jitter=0.1))
    weights, experts = router.choose(torch.tensor([[10.0, 9.0, 1.0, 8.9]]))
    assert experts.tolist() == [[0, 1]]
    # within 20 % of 10 are 9 and 8.9; within 20 % of 9, without the first, is 8.9 alone
    first = torch.tensor([10.0, 9.0, 8.9]).softmax(-1)[0]
    second = torch.tensor([9.0, 8.9]).softmax(-1)[0]
    torch.testing.assert_close(weights, torch.stack((first, second))[None])


def test_scores_are_computed_in_float32():
    w = place(dtype=torch.bfloat16)
    router = ScoredRouter(w, 16, 4, 2, normalise=True, scores="sigmoid")
    fill_module(router, w, DummySource(w.declaration.slots))
    weights, _ = router(torch.randn(3, 16, dtype=torch.bfloat16))
    assert router.logits.weight.dtype == torch.float32
    assert weights.dtype == torch.bfloat16


@pytest.mark.parametrize(("top", "groups", "chosen"), [(3, 5, 1), (3, 4, 0), (4, 4, 1), (9, 1, 1)])
def test_impossible_numbers_are_refused(top, groups, chosen):
    with pytest.raises(CheckpointError, match="experts"):
        ScoredRouter(place(), 16, 8, top, normalise=True, scores="sigmoid", groups=groups, chosen_groups=chosen)
