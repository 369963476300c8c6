"""Recorded steps: replays compute anew on the same memory, and what a device could not capture is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lsv_runtime.emulation.recording import CaptureError, Recording, without_waiting


def record(step: Callable[[], Tensor], outside: list[tuple[type, str]] | None = None) -> tuple[Recording, Tensor]:
    recording = Recording(outside or [])
    with recording.capture():
        result = step()
    return recording, result


def test_replays_compute_on_what_the_inputs_hold_then() -> None:
    weight, x, table = torch.randn(4, 4), torch.randn(3, 4), torch.zeros(3, 4)
    places = torch.tensor([0, 2, 1])

    def step() -> Tensor:
        hidden = torch.nn.functional.linear(x, weight).reshape(-1).view(3, 4)
        hidden[1].add_(1.0)
        table.index_copy_(0, places, hidden.softmax(-1))
        seen = torch.nn.functional.scaled_dot_product_attention(hidden[None], table[None], table[None])
        return (torch.where(seen > 0, seen, 0.5) @ hidden.t().contiguous()).double()

    with torch.inference_mode():
        recording, result = record(step)
        for _ in range(3):
            x.copy_(torch.randn(3, 4))
            places.copy_(torch.randperm(3))
            recording.replay()
            replayed, written = result.clone(), table.clone()
            assert torch.equal(replayed, step())
            assert torch.equal(written, table)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda x: x.sum().item(), "reads a value on the host"),
        (lambda x: float(x[0]), "reads a value on the host"),
        (lambda x: 1 if x.any() else 0, "reads a value on the host"),
        (lambda x: x.tolist(), "Tensor.tolist reads a value on the host"),
        (lambda x: x.numpy(), "Tensor.numpy reads a value on the host"),
        (lambda x: list(range(x.long()[0])), "reads a value on the host"),
        (lambda x: x[x > 0], "with a mask counts on the host"),
        (lambda x: x.index_put_((x > 0,), x[:1]), "with a mask counts on the host"),
        (lambda x: x.nonzero(), "depends on values"),
        (lambda x: torch.where(x > 0), "depends on values"),
        (lambda x: x.masked_select(x > 0), "depends on values"),
        (lambda x: torch.tensor([1, 2]), "made of host values"),
    ],
)
def test_what_can_not_be_captured_is_refused(step: Callable[[Tensor], object], said: str) -> None:
    x = torch.ones(3)
    with pytest.raises(CaptureError, match=said), Recording().capture():
        step(x)
    assert x.tolist() == [1.0, 1.0, 1.0], "the refusal outlives the capture"


def test_waiting_is_refused_alone() -> None:
    x = torch.ones(2)
    with without_waiting():
        assert torch.tensor([1, 2]).shape == x.add_(1).shape
        for wait in (lambda: x.sum().item(), lambda: x[x > 0], x.tolist):
            with pytest.raises(CaptureError):
                wait()
    assert x.tolist() == [2.0, 2.0]


class Kernel:
    """Computes where torch does not see it."""

    def launch(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2)


def test_methods_outside_torch_are_called_again() -> None:
    kernel, x = Kernel(), torch.ones(2)
    recording, result = record(lambda: kernel.launch(x) + 1, [(Kernel, "launch")])
    assert len(recording) == 2
    x.fill_(5)
    recording.replay()
    assert result.tolist() == [11.0, 11.0]
    assert kernel.launch(x).tolist() == [10.0, 10.0]
    assert len(recording) == 2, "calls after the capture are not remembered"


def test_what_fails_ends_the_capture() -> None:
    plain = Kernel.launch
    with pytest.raises(ValueError, match="broken"), Recording([(Kernel, "launch")]).capture():
        raise ValueError("broken")
    assert Kernel.launch is plain
