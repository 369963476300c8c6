"""Calls into vendors' packages are held against the signatures that were read in these packages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lsv_runtime.emulation.vendors.checks import BadCall
from lsv_runtime.emulation.vendors.signatures import Package, bind_schema, fake_ops, signature
from lsv_xpu import libraries
from lsv_xpu.emulation import ipex, vllm_flash
from lsv_xpu.emulation.ipex import FakeIpex, IpexFunctions
from lsv_xpu.emulation.vllm_kernels import FakeVllmKernels
from lsv_xpu.emulation.vllm_ops import VllmOps

X, WEIGHT = torch.ones(2, 64), torch.ones(64)
SCHEMA = torch._C.parse_schema(
    "_C::norm(Tensor! result, Tensor? weight, float epsilon, int group=-1, *, bool fast) -> ()"
)


def test_a_call_is_bound_as_the_dispatcher_binds_it() -> None:
    bound = bind_schema(SCHEMA, (X, None, 1), {"fast": True})
    assert (bound["result"] is X, bound["weight"], bound["epsilon"], bound["group"]) == (True, None, 1, -1)


@pytest.mark.parametrize(
    ("args", "kwargs", "word"),
    [
        ((X, None), {"fast": True}, "lacks epsilon"),
        ((X, None, 1.0, -1, True, 3), {}, "takes 5 arguments, got 6"),
        ((X, None, 1.0), {"fast": True, "eps": 1.0}, "has no argument eps"),
        ((X, None, 1.0), {"fast": True, "weight": X}, "gets weight twice"),
        ((None, None, 1.0), {"fast": True}, "result of _C::norm is Tensor, got NoneType"),
        ((X, 1.0, 1.0), {"fast": True}, "weight of _C::norm is Optional[Tensor], got float"),
        ((X, None, "1"), {"fast": True}, "epsilon of _C::norm is float, got str"),
        ((X, None, 1.0, 2.0), {"fast": True}, "group of _C::norm is int, got float"),
        ((X, None, 1.0, True), {"fast": True}, "group of _C::norm is int, got bool"),
        ((X, None, 1.0), {"fast": 1}, "fast of _C::norm is bool, got int"),
    ],
)
def test_a_call_that_the_dispatcher_would_refuse_fails(
    args: tuple[Any, ...], kwargs: dict[str, Any], word: str
) -> None:
    with pytest.raises(BadCall) as refused:
        bind_schema(SCHEMA, args, kwargs)
    assert word in str(refused.value)


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "an argument that is not there": lambda ops, flash: ops._C.rms_norm(X.clone(), X, WEIGHT, eps=1e-5),
    "one too few": lambda ops, flash: ops._C.silu_and_mul(X),
    "another order": lambda ops, flash: ops._C.rotary_embedding(X, X, 64, None, X, True),
    "an op that is not there": lambda ops, flash: ops._C.rms_norm_and_mul(X, X),
    "a keyword of another library": lambda ops, flash: flash.flash_attn_varlen_func(X, X, X, 1, X, 1, window=(1, 0)),
    "an option that is not known here": lambda ops, flash: flash.flash_attn_varlen_func(X, X, X, 1, X, 1, softcap=2.0),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_an_adapter_that_calls_wrongly_fails(call: Callable[[Any, Any], object]) -> None:
    fake = FakeVllmKernels()
    with pytest.raises((BadCall, AttributeError)):
        call(fake_ops(vllm_flash.PACKAGE, VllmOps(fake)), fake._flash)


def test_scales_that_a_release_does_not_read_fail() -> None:
    with pytest.raises(BadCall, match="reads no scales"):
        FakeIpex()._paged.reshape_and_cache(X, X, X, X, X, "auto", 0.5)
    with pytest.raises(BadCall, match="unexpected keyword argument 'scale'"):
        FakeIpex()._functional.rms_norm(X, WEIGHT, 1e-5, scale=1.0)


@pytest.mark.parametrize("package", [vllm_flash.PACKAGE, ipex.PACKAGE], ids=lambda package: package.source.split()[2])
def test_what_was_read_says_where(package: Package) -> None:
    assert f"{package.version} for" in package.source
    assert "sha256" in package.source
    for text in package.schemas:
        torch._C.parse_schema(text)
    assert all(str(signature(text)) for text in package.functions.values())


def test_answers_take_the_arguments_of_the_package() -> None:
    for name, text in ipex.PACKAGE.functions.items():
        taken = inspect.signature(getattr(IpexFunctions, name.rpartition(".")[2])).parameters.values()
        named = {one.name for one in taken if one.kind is not one.VAR_KEYWORD} - {"self"}
        assert named <= signature(text).parameters.keys(), name


def test_arguments_of_a_later_release_are_told() -> None:
    """An op that has got more arguments is not called with what nobody knows."""
    schemas = [
        text.replace("Tensor? work_list)", "Tensor? work_list, int tiles)") for text in vllm_flash.PACKAGE.schemas
    ]
    fake = FakeVllmKernels()
    fake._attention = fake_ops(
        Package(source="", read="", version="", schemas=tuple(schemas)), VllmOps(fake)
    )._vllm_fa2_C
    why = fake.why_not_attention(4, 2, 64, 64, causal=True, window=False, sinks=False)
    assert why == "its attention has arguments that are not known here: tiles"


@pytest.mark.skipif(libraries.missing_vllm_kernels() is not None, reason="vllm-xpu-kernels is not installed")
def test_the_installed_ops_have_these_schemas() -> None:
    for name in ("_C", "_xpu_C", "_vllm_fa2_C"):
        importlib.import_module(f"vllm_xpu_kernels.{name}")
    for text in vllm_flash.PACKAGE.schemas:
        schema = torch._C.parse_schema(text)
        space, _, op = schema.name.partition("::")
        found = getattr(getattr(torch.ops, space), op).default._schema
        assert [(one.name, str(one.type)) for one in found.arguments] == [
            (one.name, str(one.type)) for one in schema.arguments
        ]
