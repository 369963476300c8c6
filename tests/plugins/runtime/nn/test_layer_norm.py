"""Layer norms beside torch's own: with and without weights, stored less 1, and one for each head."""

import pytest
import torch
from torch.nn import functional

from lsv_runtime.nn.norm import HeadNorm, LayerNorm, LayerNorm1P
from lsv_testing.tensors import TensorsSource, fill_module, place

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
WEIGHT, BIAS = torch.linspace(0.5, 1.5, 8), torch.linspace(-1.0, 1.0, 8)


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, ("weight", "bias")), ({"bias": False}, ("weight",)), ({"affine": False}, ())],
    ids=["both", "weight", "none"],
)
def test_norm_is_that_of_torch(options, names):
    tensors = {name: tensor for name, tensor in {"weight": WEIGHT, "bias": BIAS}.items() if name in names}
    w = place()
    norm = fill_module(LayerNorm(w, 8, 1e-5, **options), w, TensorsSource(tensors))
    assert torch.equal(norm(X), functional.layer_norm(X, (8,), tensors.get("weight"), tensors.get("bias"), 1e-5))
    assert (norm.spec().op, norm.spec().shape, norm.spec().flags) == ("layer_norm", {"size": 8}, frozenset(names))


def test_one_is_added_each_time_weights_are_filled():
    w, source = place(), TensorsSource({"weight": WEIGHT - 1, "bias": BIAS})
    norm = fill_module(LayerNorm1P(w, 8, 1e-5), w, source, source)
    torch.testing.assert_close(norm(X), functional.layer_norm(X, (8,), WEIGHT, BIAS, 1e-5))


def test_heads_have_weights_of_their_own():
    heads, weight = X.view(3, 2, 4), torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    found = HeadNorm(torch.nn.Parameter(weight), 1e-5, own=(1, 3))(heads)
    for head in range(2):
        torch.testing.assert_close(found[:, head], functional.layer_norm(heads[:, head], (4,), weight[1 + head]))
