"""Declaring: names, cuts and fusions of every layer, against plain slices of whole tensors."""

import pytest
import torch

from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights import fill
from lsv_runtime.weights.fill import check
from lsv_runtime.weights.place import Part, Shard
from lsv_testing.tensors import TensorsSource, fill_module, place


def matrix(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_names_are_places():
    w = place()
    assert (w / "model" / "layers" / 3 / "mlp").name == "model.layers.3.mlp"


@pytest.mark.row("F-601")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_fuse_and_cut(size):
    q, k = matrix(8, 6), matrix(4, 6, 1)
    source = TensorsSource({"a.q.weight": q, "a.k.weight": k, "a.q.bias": q[:, 0], "a.k.bias": k[:, 0]})
    for rank in range(size):
        w = place(rank=rank, size=size)
        parts = [Part("q", 8, *w.shard.split(8, "heads")), Part("k", 4, *w.shard.split(4, "heads"))]
        column = fill_module(Column(w / "a", parts, 6, bias=True), w, source)
        share = torch.cat((q.chunk(size)[rank], k.chunk(size)[rank]))
        assert torch.equal(column.linear.weight, share)
        assert torch.equal(column.linear.bias, share[:, 0])


def test_parts_of_one_stored_tensor():
    packed = matrix(12, 6)
    w = place(rank=1, size=2)
    parts = [Part("qkv", 12, 2, 4), Part("qkv", 12, 6, 8)]
    column = fill_module(Column(w, parts, 6), w, TensorsSource({"qkv.weight": packed}))
    assert torch.equal(column.linear.weight, torch.cat((packed[2:4], packed[6:8])))


def test_a_part_is_made_of_runs():
    packed, bias = matrix(12, 6), matrix(12, 1)[:, 0]
    w = place()
    parts = [Part("qkv", 12, 0, 8, runs=((0, 2), (6, 8))), Part("qkv", 12, 2, 10, runs=((2, 4), (8, 10)))]
    column = fill_module(Column(w, parts, 6, bias=True), w, TensorsSource({"qkv.weight": packed, "qkv.bias": bias}))
    order = [0, 1, 6, 7, 2, 3, 8, 9]
    assert torch.equal(column.linear.weight, packed[order])
    assert torch.equal(column.linear.bias, bias[order])
    assert column.linear.layer.outputs == (4, 4)


@pytest.mark.parametrize("size", [1, 2])
def test_weights_stored_across(size, monkeypatch):
    monkeypatch.setattr(fill, "_CHUNK_BYTES", 40)
    up, down, bias = matrix(6, 8), matrix(8, 6, 1), matrix(8, 1)[:, 0]
    first, second = TensorsSource({"up.weight": up, "up.bias": bias}), TensorsSource({"down.weight": down})
    for rank in range(size):
        w = place(rank=rank, size=size)
        share = w.shard.split(8, "inner")
        column = fill_module(Column(w.transposed(), [Part("up", 8, *share)], 6, bias=True), w, first)
        assert torch.equal(column.linear.weight, up[:, slice(*share)].T)
        assert torch.equal(column.linear.bias, bias[slice(*share)])
        w = place(rank=rank, size=size)
        row = fill_module(Row(w.transposed(), "down", 8, 6, reads=share), w, second)
        assert torch.equal(row.linear.weight, down[slice(*share)].T)


def test_a_weight_stored_across_has_its_own_shape():
    w = place()
    Column(w.transposed(), [Part("up", 8, 0, 8)], 6)
    with pytest.raises(CheckpointError, match=r"up.weight has shape \[8, 6\], expected \[6, 8\]"):
        check(w.declaration.slots, TensorsSource({"up.weight": matrix(8, 6)}).tensors(), ())


@pytest.mark.row("F-601")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_cut_inputs(size):
    weight = matrix(4, 6)
    for rank in range(size):
        w = place(rank=rank, size=size)
        reads = w.shard.split(6, "inputs")
        row = fill_module(Row(w, "o", 6, 4, reads=reads), w, TensorsSource({"o.weight": weight}))
        assert torch.equal(row.linear.weight, weight[:, slice(*reads)])


@pytest.mark.row("F-601")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_vocabulary_is_padded_to_equal_shares(size):
    weight = matrix(10, 3)
    shares = []
    for rank in range(size):
        w = place(rank=rank, size=size)
        embed = fill_module(Embed(w / "e", 10, 3), w, TensorsSource({"e.weight": weight}))
        w = place(rank=rank, size=size)
        head = fill_module(Head(w / "h", 10, 3), w, TensorsSource({"h.weight": weight}))
        assert torch.equal(head.linear.weight, embed.weight)
        shares.append(embed.weight)
    assert len({len(share) for share in shares}) == 1
    whole = torch.cat(shares)
    assert torch.equal(whole[:10], weight)
    assert not whole[10:].any()


@pytest.mark.row("F-601")
@pytest.mark.parametrize(
    ("heads", "size", "expected"),
    [(4, 2, [(0, 2), (2, 4)]), (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]), (1, 2, [(0, 1)] * 2)],
)
def test_few_heads_are_replicated(heads, size, expected):
    assert [Shard(rank, size).split_or_replicate(heads, "KV heads") for rank in range(size)] == expected


@pytest.mark.row("F-563")
@pytest.mark.parametrize("split", [lambda s: s.split(6, "heads"), lambda s: s.split_or_replicate(3, "KV heads")])
def test_what_does_not_divide_is_refused(split):
    with pytest.raises(ConfigError, match=r"heads can't be"):
        split(Shard(0, 4))


def test_values_are_cast_to_the_models_dtype():
    w = place(dtype=torch.bfloat16)
    column = fill_module(Column(w, [Part("q", 4, 0, 4)], 6), w, TensorsSource({"q.weight": matrix(4, 6)}))
    assert torch.equal(column.linear.weight, matrix(4, 6).bfloat16())


def test_all_misfits_are_reported_before_anything_is_read():
    w = place()
    column = Column(w, [Part("q", 4, 0, 4), Part("k", 4, 0, 4)], 6, bias=True)
    found = {
        "q.weight": matrix(4, 5),
        "k.weight": torch.zeros(4, 6, dtype=torch.int8),
        "q.bias": torch.zeros(4),
        "rope.inv_freq": torch.zeros(2),
        "surplus": torch.zeros(2),
    }
    source = TensorsSource(found)
    with pytest.raises(CheckpointError) as caught:
        check(w.declaration.slots, source.tensors(), (r"inv_freq$",))
    assert caught.value.message == (
        "the checkpoint does not fit the model: k.bias is missing; k.weight is int8, expected a floating point type "
        "of 16 bits or more; q.weight has shape [4, 5], expected [4, 6]; surplus is unexpected"
    )
    with pytest.raises(CheckpointError):
        fill_module(column, w, source)
    assert source.reads == []
    assert column.linear.weight.is_meta
