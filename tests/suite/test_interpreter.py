"""Cached types are the same as Triton's own."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.language import core

from suite import interpreter

pytestmark = pytest.mark.skipif(
    not triton.__version__.startswith(interpreter.KNOWN_RELEASES), reason="types of this Triton are not shared"
)

ELEMENTS = [
    core.float32,
    core.bfloat16,
    core.uint8,
    core.pointer_type(core.float32),
    core.pointer_type(core.float32, address_space=3),
    core.pointer_type(core.float32, const=True),
]
SHAPES: list[Any] = [[16], [1, 16], [16, 1], core.tuple([core.constexpr(4), core.constexpr(2)])]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_blocks", {})
    monkeypatch.setattr(interpreter, "_scalar", {})
    monkeypatch.setattr(interpreter, "_counterparts", {})


def block(describe: Any, *arguments: Any) -> core.block_type:
    made = core.block_type.__new__(core.block_type)
    describe(made, *arguments)
    return made


def attributes(thing: Any) -> dict[str, Any]:
    """By name and as text, without what is shared."""
    return {name: repr(value) for name, value in vars(thing).items() if name != "_shared"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_block_type_has_triton_s_attributes(element: core.dtype, shape: Any) -> None:
    wanted = attributes(block(interpreter._describe_block, element, shape))
    for _ in range(2):
        assert attributes(block(interpreter._make_block, element, shape)) == wanted


def test_pointers_to_different_memory_share_no_type() -> None:
    found = [block(interpreter._make_block, element, [8]) for element in ELEMENTS[3:]]
    assert [(one.element_ty.address_space, one.element_ty.const) for one in found] == [
        (1, False),
        (3, False),
        (1, True),
    ]


@pytest.mark.parametrize(("shape", "error"), [([], TypeError), ([3], ValueError), ([1 << 30], ValueError)])
def test_what_triton_refuses_is_refused_each_time(shape: list[int], error: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            block(interpreter._make_block, core.float32, shape)


def test_a_tensor_has_triton_s_attributes() -> None:
    kinds = [core.float32, core.int64, *(block(interpreter._make_block, core.int8, [size]) for size in (4, 8))]
    for kind in (*kinds, *kinds):
        wanted, found = (core.tensor.__new__(core.tensor) for _ in range(2))
        interpreter._describe_tensor(wanted, "handle", kind)
        interpreter._make_tensor(found, "handle", kind)
        assert attributes(found) == attributes(wanted)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_type_has_numpy_s_counterpart(element: core.dtype) -> None:
    for kind in (element, block(interpreter._make_block, element, [4])):
        assert interpreter._find_counterpart(kind) == interpreter._look_up(kind)
