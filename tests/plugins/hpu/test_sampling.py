"""Devices that hold 64-bit integers in 32 bits are found out when they are opened, and tokens are right nonetheless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lsv import LLM, SamplingParams
from lsv.offers import KernelOffer
from lsv_hpu import integers, plugin, selection
from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.formats.int4 import pack_eight
from lsv_hpu.sampling import HostChoose, HostDescribe
from lsv_runtime.nn.sampling import CHOICE, EDIT, WHOLE, Choose, Describe
from lsv_testing.tiny import tiny

pytestmark = pytest.mark.onednn

HOST = torch.device("cpu")


class Narrow(TorchFunctionMode):
    """Everything computed inside is computed by a device that casts int64 to int32; what comes off it is the host's."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tree_map(cut, func(*args, **(kwargs or {})))


def cut(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype != torch.int64:
        return x
    narrow = x.to(torch.int32).to(torch.int64)
    return x if torch.equal(x, narrow) else x.copy_(narrow)


class DeviceTensor(torch.Tensor):
    """A tensor on such a device: ``cpu()`` alone takes it off."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return found.as_subclass(torch.Tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return tree_map(cut, found)


def wide() -> tuple[torch.Tensor, np.ndarray]:
    """Logits of 12 rows, of which two are greedy, and ways to draw from them."""
    logits = torch.randn(12, 700, generator=torch.Generator().manual_seed(3)) * 4
    choices = np.zeros(12, CHOICE)
    choices["rate"], choices["seed"], choices["position"] = 1.3, np.arange(12), 5
    choices["rate"][:2] = 0
    choices["top_p"] = WHOLE
    choices["top_p"][4:8], choices["min_p"][8:10], choices["top_k"][10:] = WHOLE * 9 // 10, WHOLE // 50, 40
    return logits, choices


@pytest.fixture
def inexact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    selected = selection.Selection(fake_ops(), exact_integers=False)
    selection.select(selected)
    yield
    selection.deselect(selected)


def offers(op: str) -> list[KernelOffer]:
    return [one for one in plugin.lsv_kernels() if one.op == op]


def test_the_self_test_tells_devices_apart() -> None:
    assert integers.are_exact(HOST)
    with Narrow():
        assert not integers.are_exact(HOST)


@pytest.mark.parametrize("part", ["_weighs", "_filters", "_draws", "_sorts"])
def test_each_part_of_the_self_test_would_see_it(part: str) -> None:
    check = getattr(integers, part)
    assert check(HOST)
    with Narrow():
        assert not check(HOST)


def test_an_operation_that_is_not_there_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError("aten::searchsorted has no kernel for hpu")

    monkeypatch.setattr(torch, "searchsorted", missing)
    assert not integers.are_exact(HOST)


def test_kernels_on_the_host_are_bound_for_such_a_device_alone(inexact: None) -> None:
    spec = Choose(700, torch.float32).spec()
    for op in ("sample", "logprobs"):
        (offer,) = offers(op)
        assert offer.row_invariant
        assert offer.supports(spec) is None
        exact = selection.Selection(fake_ops())
        selection.select(exact)
        assert offer.supports(spec) == "the device is exact with 64-bit integers"
        selection.deselect(exact)


def test_tokens_and_log_probabilities_are_right_without_64_bits() -> None:
    logits, choices = wide()
    choose, describe = Choose(700, torch.float32), Describe(700, torch.float32)
    none = np.zeros(0, EDIT)
    rows, best = torch.tensor([3, 7]), logits.argmax(-1)
    tokens, entries = choose.reference(logits, choices, none), describe.reference(logits, rows, best, 4)

    there = logits.as_subclass(DeviceTensor)
    assert choose.reference(there, choices, none).tolist() != tokens.tolist(), "the emulation shows the fault"
    drawn = HostChoose(choose, choose.spec()).forward(there, choices, none)
    assert drawn.tolist() == tokens.tolist()
    described = HostDescribe(describe, describe.spec()).forward(there, rows, best, 4)
    torch.testing.assert_close(described, entries, rtol=0, atol=0)


def test_greedy_rows_alone_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, choices = wide()
    choose = Choose(700, torch.float32)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("greedy rows need no host"))
    found = HostChoose(choose, choose.spec()).forward(logits, choices[:2].repeat(6), np.zeros(0, EDIT))
    assert found.tolist() == logits.argmax(-1).tolist()


def test_an_engine_draws_the_same_tokens(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = str(tiny("llama", tmp_path / "llama"))
    forward, calls = HostChoose.forward, []
    monkeypatch.setattr(HostChoose, "forward", lambda self, *args: calls.append(1) or forward(self, *args))

    def draw(text: str = "") -> list[tuple[int, ...]]:
        params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=8, ignore_eos=True) for seed in range(3)]
        options = {"platform": "hpu", "emulate": True, "dtype": "float32", "max_model_len": 64}
        with LLM(checkpoint, skip_tokenizer_init=True, **options, **{"hpu.skip_warmup": True}) as llm:
            outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}] * 3, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    on_device = draw()
    assert not calls
    assert "64-bit integers" not in caplog.text
    monkeypatch.setattr(integers, "are_exact", lambda device: False)
    assert draw() == on_device
    assert calls
    assert "64-bit integers are not exact on this device (is PT_ENABLE_INT64_SUPPORT=0 set?)" in caplog.text


def test_packing_needs_no_64_bits() -> None:
    codes = torch.arange(16, dtype=torch.uint8).flip(0).repeat(3, 1)

    class No64(TorchFunctionMode):
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            assert getattr(found, "dtype", None) != torch.int64, func
            return found

    with No64():
        packed = pack_eight(codes)
    words = [0x89ABCDEF - (1 << 32), 0x01234567]
    assert packed.tolist() == [words] * 3
