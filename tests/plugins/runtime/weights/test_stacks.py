"""Stacked tensors are read as if each expert's parts were stored alone."""

from collections import Counter

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.checkpoint import TensorInfo
from lsv_runtime.weights.stacks import Stack, UnfoldedSource


class Source:
    """Tensors in memory, which are overwritten with the next read, as a file's are; counts what is read."""

    def __init__(self, **tensors):
        self.held = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.room, self.reads = torch.empty(0), Counter()

    def tensors(self):
        return {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in self.held.items()}

    def read(self, name, first, last):
        self.reads[name] += last - first
        self.room.fill_(-1.0)
        self.room = self.held[name][first:last].clone()
        return self.room

    def close(self):
        self.room = torch.empty(0)


WEIGHT = torch.arange(3 * 8 * 5.0).view(3, 8, 5)
PARTS = ("gate.weight", "up.weight")


def whole(source, name):
    """A tensor read two rows at a time."""
    rows = source.tensors()[name].shape[0]
    parts = [source.read(name, first, min(first + 2, rows)).clone() for first in range(0, rows, 2)]
    return torch.cat(parts)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_parts_of_experts(transposed, interleaved):
    stack = Stack(r"(.*)\.both", PARTS, transposed, interleaved)
    stored = WEIGHT.mT.contiguous() if transposed else WEIGHT
    source = UnfoldedSource(Source(m__both=stored, other=torch.ones(2)), [stack])
    assert set(source.tensors()) == {"other", *(f"m.{expert}.{part}" for expert in range(3) for part in PARTS)}
    for expert in range(3):
        cut = (WEIGHT[expert, 0::2], WEIGHT[expert, 1::2]) if interleaved else WEIGHT[expert].chunk(2)
        for part, wanted in zip(PARTS, cut, strict=True):
            assert source.tensors()[f"m.{expert}.{part}"].shape == (4, 5)
            assert torch.equal(whole(source, f"m.{expert}.{part}"), wanted)
    assert torch.equal(source.read("other", 0, 2), torch.ones(2))


def test_an_expert_is_read_once():
    inner = Source(m__both=WEIGHT)
    source = UnfoldedSource(inner, [Stack(r"(.*)\.both", PARTS)])
    for part in PARTS:
        whole(source, f"m.1.{part}")
    assert inner.reads == {"m.both": 1}


def test_experts_one_after_another_in_rows():
    source = UnfoldedSource(Source(m__w2=WEIGHT.flatten(0, 1)), [Stack(r"(.*)\.w2", ("down.weight",), True, experts=3)])
    assert source.tensors()["m.2.down.weight"].shape == (5, 8)
    assert torch.equal(whole(source, "m.2.down.weight"), WEIGHT[2].T)


def test_uneven_parts_without_experts():
    stack = Stack(r"(.*)\.qkv", ("q", "k", "v"), experts=0, shares=(2, 1, 1))
    source = UnfoldedSource(Source(m__qkv=WEIGHT[0]), [stack])
    assert [whole(source, f"m.{name}").tolist() for name in "qkv"] == [
        part.tolist() for part in WEIGHT[0].split((4, 2, 2))
    ]


@pytest.mark.parametrize("shape", [(3, 7, 5), (), (3,)])
def test_other_shapes_are_refused_by_name(shape):
    with pytest.raises(CheckpointError, match="both"):
        UnfoldedSource(Source(m__both=torch.zeros(shape)), [Stack(r"(.*)\.both", PARTS)])
