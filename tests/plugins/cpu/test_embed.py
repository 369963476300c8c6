"""Embeddings whose rows are in the panels of a linear layer: read from there, and kept once."""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import pytest
import torch

from lsv.offers import KernelOffer, load_object
from lsv_cpu import native, plugin
from lsv_cpu.linear import PanelLinear
from lsv_quant.online import int4, int8, online_coded
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.ops import Kernel, bind
from lsv_runtime.weights.codebook import Codebook, CodedLinear, to_nibbles
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Declaration, Shard, Weights
from lsv_runtime.weights.quantizer import Linear, LinearLayer, Unquantised
from lsv_testing.ops import check_kernel
from lsv_testing.tensors import TensorsSource, place

VOCABULARY, SIZE = 77, 40
OFFERS = {offer.op: offer for offer in plugin.lsv_kernels()}


def tied(w: Weights, shape: tuple[int, int] = (VOCABULARY, SIZE)) -> tuple[Embed, Head]:
    embed = Embed(w / "e", *shape)
    return embed, Head(w / "h", *shape, tied=embed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_are_those_of_the_table(dtype: torch.dtype, device: Device) -> None:
    ids = [torch.tensor(some) for some in ([3], [0, VOCABULARY - 1, 5, 5], list(range(VOCABULARY)))]
    inputs = [(some, None) for some in (*ids, torch.arange(60)[::2])]
    check_kernel(OFFERS["embed"], lambda w: tied(w)[0], inputs, dtype=dtype, tolerance=0.0)


def bound(w: Weights, offers: list[KernelOffer], shape: tuple[int, int] = (VOCABULARY, SIZE)) -> torch.nn.ModuleList:
    model = torch.nn.ModuleList(tied(w, shape))
    bind(model, offers, "cpu", lambda offer: load_object(offer.load))
    return model


def test_embedding_and_head_share_one_copy_also_when_filled_again(device: Device) -> None:
    w = place()
    model: Any = bound(w, list(OFFERS.values()))
    filler = Filler(model, w.declaration.slots)
    ids, x = torch.tensor([1, 70, 8]), torch.randn(2, SIZE)
    for table in (torch.randn(VOCABULARY, SIZE), torch.randn(VOCABULARY, SIZE)):
        filler.fill(TensorsSource({"e.weight": table}), w.device)
        assert all(parameter.is_meta for parameter in model.parameters())
        assert torch.equal(model[0](ids, None), table[ids])
        torch.testing.assert_close(model[1](x, None), x @ table.T)


class Plain(Kernel):
    """A kernel for the head that leaves its weight where it is."""

    def __init__(self, module: Any, spec: Any) -> None:
        self.forward = module.reference


def test_rows_stay_where_the_head_has_another_kernel(device: Device) -> None:
    w = place()
    model: Any = bound(w, [OFFERS["embed"], KernelOffer("linear", "cpu", f"{__name__}:Plain", lambda spec: None)])
    table = torch.randn(VOCABULARY, SIZE)
    Filler(model, w.declaration.slots).fill(TensorsSource({"e.weight": table}), w.device)
    assert torch.equal(model[0](torch.tensor([4]), None), table[4:5])


@pytest.mark.parametrize("make", [int8.make, int4.make_64, online_coded.make_nf4, online_coded.make_int8_weight_only])
def test_a_quantised_table_is_kept_once_and_has_the_rows_of_the_reference(make: Any, device: Device) -> None:
    table, ids = torch.randn(512, 64).bfloat16(), torch.tensor([1, 510, 8])
    rows = []
    for offers in (list(OFFERS.values()), []):
        w = place(dtype=torch.bfloat16, quantizer=make({}))
        model: Any = bound(w, offers, table.shape)
        Filler(model, w.declaration.slots).fill(TensorsSource({"e.weight": table}), w.device)
        held = [tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
        assert sum(tensor.nbytes for tensor in held) < 1.2 * table.numel()
        rows.append(model[0](ids, None))
    assert torch.equal(*rows)
    assert (rows[0] - table[ids]).abs().max() < 0.03


class Unsummed:
    """A rank's link to the others, of whose sums only its own part is there."""

    ops = ()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("quantizer", [Unquantised(), int8.make({})], ids=["plain", "int8"])
def test_ranks_look_up_rows_of_their_own_and_keep_them_once(quantizer: Any, device: Device) -> None:
    table, ids, parts = torch.randn(VOCABULARY, SIZE), torch.tensor([0, 38, 39, 76]), []
    for rank in (0, 1):
        link: Any = Unsummed()
        w = Weights(Declaration(torch.float32, torch.device("cpu"), quantizer, Shard(rank, 2), link))
        model: Any = bound(w, list(OFFERS.values()))
        Filler(model, w.declaration.slots).fill(TensorsSource({"e.weight": table}), w.device)
        assert all(parameter.is_meta for parameter in model.parameters())
        parts.append(model[0](ids, None))
    assert not parts[0][2:].any()
    assert not parts[1][:2].any()
    assert (parts[0] + parts[1] - table[ids]).abs().max() <= (0.0 if quantizer.name == "none" else 0.03)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_rows_of(linear: Linear) -> None:
    """Rows read from panels have the bits of those that the reference decodes."""
    wanted = linear.dequantise(torch.arange(linear.layer.width))
    assert wanted is not None
    kernel = PanelLinear(linear, linear.spec())
    kernel.pack()
    ids = torch.randperm(linear.layer.width)
    found = torch.full((len(ids), linear.layer.inputs), torch.nan, dtype=linear.layer.dtype)
    library = native.library()
    assert library is not None
    library.lsv_look_up(ctypes.byref(kernel.record), ids.data_ptr(), len(ids), found.data_ptr())
    assert torch.equal(found, wanted[ids].to(linear.layer.dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [int8.make, int4.make_32, int4.make_64, int4.make_128])
def test_rows_of_integers(make: Any, dtype: torch.dtype, device: Device) -> None:
    for outputs, inputs in ((70, 40), (33, 331), (64, 256)):
        layer = LinearLayer("q", "column", inputs, (outputs,), False, dtype)
        weight = torch.nn.Parameter(torch.randn(outputs, inputs).to(dtype), requires_grad=False)
        linear = make({}).build(layer, {"weight": weight})
        linear.filled()
        check_rows_of(linear)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_codes(bits: int, dtype: torch.dtype, device: Device) -> None:
    table = tuple((torch.arange(-(1 << bits - 1), 1 << bits - 1) * 0.375).bfloat16().tolist())
    shapes = ((70, 40), (33, 331), (40, 600))
    for (outputs, inputs), group, offsets, ordered in product(shapes, (0, 32, 20, 300), (False, True), (False, True)):
        codebook = Codebook(table, group, offsets, ordered)
        linear = CodedLinear(LinearLayer("q", "head", inputs, (outputs,), False, dtype), codebook, None)
        codes, groups = torch.randint(0, 1 << bits, (outputs, inputs)).to(torch.uint8), codebook.groups(inputs)
        linear.hold(
            to_nibbles(codes) if bits == 4 else codes,
            torch.rand(outputs, groups),
            torch.randn(outputs, groups) if offsets else None,
            torch.randperm(inputs).int() if ordered else None,
        )
        check_rows_of(linear)


def test_an_embedding_with_rows_of_its_own_is_left_alone() -> None:
    why = OFFERS["embed"].supports(Embed(place() / "e", 6, 4).spec())
    assert why == "has rows of its own"
