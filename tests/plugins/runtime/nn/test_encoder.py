"""What towers are made of: spans see themselves alone, and every rank holds a whole module."""

from itertools import pairwise

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.encoder import SelfAttention, attend
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import MRope, Rope
from lsv_testing.tensors import TensorsSource, fill_module, place

pytestmark = pytest.mark.onednn

RUNS = ((2, 3), (1, 4), (3, 1))


def test_spans_see_themselves_alone():
    q, k, v = torch.randn(3, 13, 2, 8)
    starts = [0, 3, 6, 10, 11, 12, 13]
    spans = [slice(*edges) for edges in pairwise(starts)]
    scores = torch.einsum("qhd,khd->hqk", q, k) * 8**-0.5
    seen = torch.full((13, 13), float("-inf"))
    for span in spans:
        seen[span, span] = 0.0
    expected = torch.einsum("hqk,khd->qhd", (scores + seen).softmax(-1), v)
    torch.testing.assert_close(attend(q, k, v, RUNS), expected)


@pytest.mark.parametrize("names", [("q", "k", "v"), ("qkv",)])
def test_attention_equals_torchs(names):
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    weight, bias = theirs.in_proj_weight.data, theirs.in_proj_bias.data.normal_()
    parts = len(names)
    stored = {f"{name}.weight": part for name, part in zip(names, weight.chunk(parts), strict=True)}
    stored |= {f"{name}.bias": part for name, part in zip(names, bias.chunk(parts), strict=True)}
    stored |= {"out.weight": theirs.out_proj.weight.data, "out.bias": theirs.out_proj.bias.data}
    w = place(rank=1, size=2).replicated()
    ours = fill_module(SelfAttention(w, names, "out", 16, 2), w, TensorsSource(stored))
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x.flatten(0, 1), ((2, 5),)), theirs(x, x, x)[0].flatten(0, 1))


def test_norm_and_feed_forward_equal_torchs():
    theirs = torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.Linear(6, 10), torch.nn.GELU(), torch.nn.Linear(10, 4))
    w = place()
    norm = fill_module(LayerNorm(w / "0", 6, 1e-5), w, TensorsSource(_part(theirs, "0")))
    w = place()
    feed = fill_module(FeedForward(w, ("1", "3"), (6, 10, 4), "gelu"), w, TensorsSource(_part(theirs, "1", "3")))
    x = torch.randn(3, 6)
    torch.testing.assert_close(feed(norm(x)), theirs(x))


def _part(module, *numbers):
    return {name: tensor for name, tensor in module.state_dict().items() if name.split(".")[0] in numbers}


def test_an_unknown_activation_is_refused():
    with pytest.raises(CheckpointError, match="activation 'telu' is not one of"):
        FeedForward(place(), ("a", "b"), (4, 4, 4), "telu")


class Block(DecoderLayer):
    op = "layer"


@pytest.mark.parametrize(("kind", "op"), [(Rope, ""), (MRope, ".mrope")])
def test_kernels_for_one_axis_are_not_asked_for_three(kind, op):
    keys = {
        "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "vocab_size": 8, "intermediate_size": 8,
        "rope_parameters": {"mrope_section": [1, 1, 2]},
    }  # fmt: skip
    w, c = place(), DecoderConfig.read(Keys(keys))
    layer = Block(w / "layer", c, 0, kind(w, c.rope, 8))
    assert (layer.attn.spec().op, layer.spec().op) == (f"attention{op}", f"layer{op}")
