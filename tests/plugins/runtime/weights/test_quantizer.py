"""The quantizer suite on the unquantised format, on two toy formats, and on formats that are wrong."""

import dataclasses
import re

import pytest
import torch
from torch.nn import functional

from lsv_base.errors import CheckpointError, ConfigError
from lsv_base.untrusted.patterns import Patterns
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.weights.place import Part
from lsv_runtime.weights.quantizer import (
    WEIGHT,
    Linear,
    LinearLayer,
    StoredTensor,
    Unquantised,
    WithIgnored,
    compile_names,
    is_ignored,
    joint_format,
)
from lsv_testing.quantizer import check_quantizer
from lsv_testing.tensors import TensorsSource, fill_module, place

GROUP = 32


def plain(weight):
    return {"weight": weight}


class OnlineInt8Linear(Linear):
    """Int8 weights with a scale per output, made from plain ones when they have been filled."""

    op = "linear.toy_int8"
    format = "toy_int8"

    def __init__(self, layer, tensors):
        super().__init__(layer)
        self.weight, self.bias = tensors["weight"], tensors.get("bias")

    def filled(self):
        weight = self.release("weight").float()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        self.keep("quantised", (weight / scale).round().to(torch.int8))
        self.keep("scale", scale)

    def reference(self, x):
        return functional.linear(x, self.quantised * self.scale, self.bias)


class OnlineInt8:
    name = "toy_int8"

    def stored(self, layer):
        return (WEIGHT,)

    def build(self, layer, tensors):
        return OnlineInt8Linear(layer, tensors)


class GroupedInt4Linear(Linear):
    """Two weights a byte along the inputs, a scale per group of inputs, and one factor for each fused part."""

    op = "linear.toy_int4"
    format = "toy_int4"

    def __init__(self, layer, tensors):
        super().__init__(layer)
        self.packed, self.scales, self.factor = (tensors[name] for name in ("packed", "scales", "factor"))
        self.bias = tensors.get("bias")

    def reference(self, x):
        low, high = self.packed & 15, self.packed >> 4
        numbers = torch.stack((low, high), dim=-1).flatten(1).float() - 8
        factor = self.factor.reshape(-1).repeat_interleave(torch.tensor(self.layer.outputs))
        weight = numbers * self.scales.T.repeat_interleave(GROUP, dim=1) * factor[:, None]
        return functional.linear(x, weight, self.bias)


class GroupedInt4:
    name = "toy_int4"
    tensors = (
        StoredTensor("packed", torch.uint8, output_axis=0, input_axis=1, per_input=2),
        StoredTensor("scales", output_axis=1, input_axis=0, per_input=GROUP),
        StoredTensor("factor", torch.float32),
    )

    def stored(self, layer):
        return self.tensors

    def build(self, layer, tensors):
        return GroupedInt4Linear(layer, tensors)


def encode_int4(weight):
    factor = weight.abs().mean()
    groups = (weight / factor).unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(dim=-1, keepdim=True) / 7
    numbers = ((groups / scales).round() + 8).flatten(1).to(torch.uint8)
    packed = numbers[:, 0::2] | numbers[:, 1::2] << 4
    return {"packed": packed, "scales": scales[..., 0].T.contiguous(), "factor": factor}


def test_unquantised_passes():
    check_quantizer(Unquantised, plain, tolerance=1e-6, ranks=(1, 2, 4))


def test_an_online_format_passes():
    check_quantizer(OnlineInt8, plain, tolerance=0.02, ranks=(1, 2, 4))


def test_a_packed_format_with_groups_passes():
    check_quantizer(GroupedInt4, encode_int4, tolerance=0.1, ranks=(1, 2, 4))


def test_an_online_format_keeps_no_plain_weights():
    from lsv_runtime.weights.checkpoint import DummySource
    from lsv_testing.tensors import fill_module

    w = place(quantizer=OnlineInt8())
    layer = fill_module(Row(w, "o", 64, 32, reads=(0, 64)), w, DummySource(w.declaration.slots)).linear
    assert layer.weight.is_meta
    assert layer.quantised.dtype == torch.int8


class SwappedAxes(GroupedInt4):
    tensors = (
        *GroupedInt4.tensors[:1],
        dataclasses.replace(GroupedInt4.tensors[1], output_axis=0, input_axis=1),
        *GroupedInt4.tensors[2:],
    )


class ForgottenBias(OnlineInt8):
    def build(self, layer, tensors):
        linear = OnlineInt8Linear(layer, tensors)
        linear.reference = lambda x: functional.linear(x, linear.quantised * linear.scale)
        return linear


class Coarse(OnlineInt8):
    def build(self, layer, tensors):
        linear = OnlineInt8Linear(layer, tensors)
        linear.reference = lambda x: functional.linear(x, linear.quantised.sign() * linear.scale * 50, linear.bias)
        return linear


def test_the_suite_fails_swapped_axes():
    with pytest.raises(Exception, match="shape"):
        check_quantizer(SwappedAxes, encode_int4, tolerance=0.1)


@pytest.mark.parametrize("wrong", [ForgottenBias, Coarse])
def test_the_suite_fails_wrong_results(wrong):
    with pytest.raises(AssertionError, match="relative error"):
        check_quantizer(wrong, plain, tolerance=0.02)


def test_a_cut_inside_a_group_is_refused():
    w = place(rank=1, size=4, quantizer=GroupedInt4())
    with pytest.raises(ConfigError, match="cover 32 each"):
        Row(w, "o", 64, 8, reads=w.shard.split(64, "inputs"))


def test_a_layer_knows_its_place_and_parts():
    seen = []

    class Recording(Unquantised):
        def stored(self, layer):
            seen.append(layer)
            return super().stored(layer)

    w = place(quantizer=Recording())
    (w / "layers" / 0 / "attn").linear("column", [Part("q", 8, 0, 8), Part("k", 4, 0, 4)], 6)
    (w / "layers" / 0 / "attn").linear("row", [Part("o", 6, 0, 6)], 8)
    assert [(layer.name, layer.role, layer.outputs) for layer in seen] == [
        ("layers.0.attn", "column", (8, 4)),
        ("layers.0.attn.o", "row", (6,)),
    ]


def layer(*parts):
    return LinearLayer("model.layers.3.self_attn", "column", 8, (8,) * len(parts), False, torch.float32, parts)


@pytest.mark.parametrize(
    ("names", "skipped"),
    [
        ((), False),
        (("lm_head",), False),
        (("o_proj",), True),
        (("proj",), False),
        (("self_attn.o_proj",), True),
        (("model.layers.3",), True),
        (("layers.30", "layers"), True),
        (("re:.*self_attn",), True),
        (("re:self_attn",), False),
    ],
)
def test_which_names_mean_a_layer(names, skipped):
    names = compile_names(names, Patterns("config.json"))
    assert is_ignored(layer("model.layers.3.self_attn.o_proj"), names) is skipped


def test_parts_of_a_fused_layer_are_skipped_together():
    fused = layer("a.q_proj", "a.k_proj")
    assert is_ignored(fused, ["a"])
    with pytest.raises(CheckpointError, match=r"a\.k_proj is left unquantised but a\.q_proj is not"):
        is_ignored(fused, ["k_proj"])


def test_skipped_layers_stay_as_they_are():
    w = place(quantizer=WithIgnored(OnlineInt8(), ["0"]))
    assert Column.even(w, ("0",), 8, 8).linear.format == "plain"
    assert Column.even(w, ("1",), 8, 8).linear.format == "toy_int8"


def test_formats_of_layers_that_are_computed_together():
    assert joint_format("plain", "plain") == "plain"
    assert joint_format("coded+plain", "int8") == "coded+int8+plain"


class Shifted(Unquantised):
    """A plain weight, and what may be added to it, exactly as it is stored."""

    def stored(self, layer):
        return (WEIGHT, StoredTensor("shift", torch.float32, output_axis=0, optional=True))

    def build(self, layer, tensors):
        linear = super().build(layer, tensors)
        linear.shift = tensors["shift"]
        return linear


def test_an_optional_tensor_stays_on_meta_where_a_checkpoint_has_none():
    exact = torch.tensor([1.001, 2.001], dtype=torch.float16)
    plain, shifted = {"0.weight": torch.ones(2, 4)}, {"0.weight": torch.ones(2, 4), "0.shift": exact}
    assert fill_shifted(plain).is_meta
    assert torch.equal(fill_shifted(shifted), exact.float())


def fill_shifted(tensors):
    w = place(quantizer=Shifted(), dtype=torch.bfloat16)
    return fill_module(Column.even(w, ("0",), 4, 2), w, TensorsSource(tensors)).linear.shift


def test_an_optional_tensor_of_fused_parts_is_there_for_all_or_none():
    w = place(quantizer=Shifted())
    column = Column.even(w, ("0", "1"), 4, 2)
    tensors = {"0.weight": torch.ones(2, 4), "1.weight": torch.ones(2, 4), "0.shift": torch.ones(2)}
    with pytest.raises(CheckpointError, match=r"1\.shift is missing"):
        fill_module(column, w, TensorsSource(tensors))


SCALE = StoredTensor("scale", torch.float32, output_axis=0, uniform=True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_number_stands_for_all_of_a_part(shape):
    tensors = {"0.scale": torch.full(shape, 2.0), "1.scale": torch.tensor([[3.0], [4.0]])}
    assert fill_stored(SCALE, tensors).tolist() == [2, 2, 3, 4]


@pytest.mark.parametrize(("shape", "found"), [((3,), [3]), ((2, 2), [2, 2]), ((1, 2), [1, 2])])
def test_what_a_single_number_is_not(shape, found):
    tensors = {"0.scale": torch.ones(shape), "1.scale": torch.ones(2)}
    with pytest.raises(CheckpointError, match=rf"0\.scale has shape {re.escape(str(found))}, expected \[2\]"):
        fill_stored(SCALE, tensors)


def test_only_what_is_uniform_may_be_a_single_number():
    tensors = {"0.scale": torch.ones(1), "1.scale": torch.ones(2)}
    with pytest.raises(CheckpointError, match=r"0\.scale has shape \[1\], expected \[2\]"):
        fill_stored(dataclasses.replace(SCALE, uniform=False), tensors)


def test_more_axes_of_one_do_not_matter():
    whole = StoredTensor("scale", torch.float32)
    assert fill_stored(whole, {"0.scale": torch.ones(1), "1.scale": torch.full((1, 1), 2.0)}).tolist() == [1, 2]


def test_axes_of_other_sizes():
    pairs = StoredTensor("scale", torch.float32, output_axis=1, sizes=(3,))
    parts = [torch.randn(3, 2), torch.randn(3, 2)]
    found = fill_stored(pairs, {"0.scale": parts[0], "1.scale": parts[1]})
    assert torch.equal(found, torch.cat(parts, dim=1))
    whole = StoredTensor("scale", torch.int64, sizes=(2,))
    shapes = {"0.scale": torch.tensor([2, 4]), "1.scale": torch.tensor([2, 5])}
    assert fill_stored(whole, shapes).tolist() == [[2, 4], [2, 5]]


def fill_stored(tensor, tensors):
    class Storing(Unquantised):
        def stored(self, layer):
            return (WEIGHT, tensor)

        def build(self, layer, tensors):
            linear = super().build(layer, tensors)
            linear.found = tensors[tensor.suffix]
            return linear

    w = place(quantizer=Storing())
    column = Column.even(w, ("0", "1"), 4, 2)
    weights = {"0.weight": torch.ones(2, 4), "1.weight": torch.ones(2, 4)}
    return fill_module(column, w, TensorsSource({**weights, **tensors})).linear.found
