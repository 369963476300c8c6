"""The cuda platform: what it declares, and its own code on the emulated device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lsv import LLM
from lsv.capabilities import DeviceInfo
from lsv.offers import PlatformOffer
from lsv.settings import Declared, gather, neutral
from lsv_base.errors import ConfigError
from lsv_cuda import emulation, plugin
from lsv_cuda.device import CudaDevice, nccl
from lsv_cuda.emulation import EmulatedCudaPlatform, EmulatedRocmPlatform, FakeCuda
from lsv_cuda.machine import describe
from lsv_cuda.platform import CudaPlatform, RocmPlatform
from lsv_cuda.vendor import Vendor
from lsv_runtime.devices.device import Memory
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.emulation.fakes import UnknownCall
from lsv_testing.platform import check_platform

LIMITS = BatchLimits(max_rows=64, max_tokens=256, max_blocks=8)
GIB = 1 << 30


def gpu(major: int, minor: int, name: str = "GPU") -> DeviceInfo:
    return describe(0, name, 24 * GIB, major, minor, 80)


def find_offer(name: str) -> PlatformOffer:
    return next(offer for offer in plugin.lsv_platforms() if offer.name == name)


def open_device(**options: object) -> tuple[CudaDevice, FakeCuda]:
    device = EmulatedCudaPlatform().open(0, {f"cuda.{name}": value for name, value in options.items()})  # type: ignore[misc]
    assert isinstance(device, CudaDevice)
    fake = device._runtime
    assert isinstance(fake, FakeCuda)
    return device, fake


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_conforms_in_emulation(name: str) -> None:
    check_platform(find_offer(name), emulate=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_conforms() -> None:
    check_platform(find_offer("rocm" if torch.version.hip else "cuda"))


@pytest.mark.parametrize(
    ("target", "bfloat16"), [("gfx942", True), ("gfx90a", True), ("gfx1100", True), ("gfx906", False)]
)
def test_bfloat16_by_target(target: str, bfloat16: bool) -> None:
    info = describe(0, "AMD GPU", GIB, 9, 4, 304, target)
    assert ("bfloat16" in RocmPlatform().capabilities(info).dtypes) == bfloat16


def test_an_emulated_gpu_of_amd_has_its_target() -> None:
    platform = EmulatedRocmPlatform()
    device = platform.open(1, {"cuda.graph_rows": 4})
    assert platform.devices()[1] == device.info
    assert device.info.detail["target"] == "gfx942"
    assert [shape.rows for shape in device.shapes(LIMITS).warmup()] == [4, 2, 1]
    with pytest.raises(ConfigError, match="widen HIP_VISIBLE_DEVICES"):
        platform.open(8, {})


@pytest.mark.parametrize(
    ("info", "dtypes"),
    [
        (gpu(9, 0), ("bfloat16", "float16", "float32")),
        (gpu(8, 0), ("bfloat16", "float16", "float32")),
        (gpu(7, 5), ("float16", "float32")),
        (gpu(7, 0), ("float16", "float32")),
    ],
)
def test_bfloat16_needs_compute_capability_8(info: DeviceInfo, dtypes: tuple[str, ...]) -> None:
    capabilities = CudaPlatform().capabilities(info)
    assert capabilities.dtypes == dtypes
    assert (capabilities.in_flight, capabilities.mixed_batches) == (2, True)


def test_references_are_those_of_the_device() -> None:
    platform = CudaPlatform()
    h200 = platform.references(gpu(9, 0, "NVIDIA H200"))
    assert 4000 < h200["copy_gb_s"] < 4800
    assert 700 < h200["gemm_bfloat16_tflop_s"] < 989
    assert (
        platform.references(gpu(8, 9, "NVIDIA L40S"))["copy_gb_s"] > platform.references(gpu(8, 9, "L4"))["copy_gb_s"]
    )
    assert "gemm_bfloat16_tflop_s" not in platform.references(gpu(7, 5, "Tesla T4"))
    assert platform.references(gpu(9, 9, "another")) == {}


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="GPU 8 does not exist, 8 are visible: lower tensor_parallel_size or widen"):
        EmulatedCudaPlatform().open(8, {})


@pytest.mark.row("F-813")
def test_another_nccl_is_not_taken_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(platform: str) -> list[str]:
        return [row.instead for row in neutral.dropped(gather(Declared(plugin.lsv_settings()), {}), platform)]

    assert dropped("cuda") == []
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", "/opt/libnccl.so.2")
    (why,) = dropped("cuda")
    assert why.startswith("NCCL is torch's own")
    assert "LD_PRELOAD" in why
    assert dropped("cpu") == []


@pytest.mark.row("F-862", "F-579", "F-582")
def test_settings_reach_the_libraries_and_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    device, _ = open_device(nccl_debug="INFO", nccl_socket_ifname="eth0", nccl_ib_hca="mlx5", launch_blocking=True)
    values = [os.environ[name] for name in ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "CUDA_LAUNCH_BLOCKING")]
    assert values == ["INFO", "eth0", "mlx5", "1"]
    assert device.shapes(LIMITS).expected() == 0, "launches that wait can't be captured"


@pytest.mark.row("F-381")
def test_the_share_of_memory_is_one_of_the_whole_device() -> None:
    """For weights, activations and the cache together; what others hold is not there to be taken."""
    device, _ = open_device()
    alone, beside = Memory(total=80 * GIB, free=62 * GIB, used=18 * GIB), Memory(80 * GIB, 30 * GIB, 18 * GIB)
    budgets = [device.budget(alone, 0.5), device.budget(alone, None), device.budget(beside, None)]
    device.close()
    assert [budget.kv for budget in budgets] == [22 * GIB, 54 * GIB, 30 * GIB]
    assert budgets[1].why == "0.9 of 80.0 GiB, less the 18.0 GiB in use"


def test_graphs_are_captured_for_as_many_rows_as_asked() -> None:
    device, _ = open_device(graph_rows=12)
    sizes = [shape.rows for shape in device.shapes(LIMITS).warmup()]
    assert sizes == [12, 8, 4, 2, 1]
    assert [shape.rows for shape in open_device(graph_rows=0)[0].shapes(LIMITS).warmup()] == []


@pytest.mark.row("F-584")
def test_a_graph_computes_what_the_step_does() -> None:
    device, fake = open_device()
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    total = torch.zeros(2, 4)

    def step() -> torch.Tensor:
        total.add_(x)
        return torch.relu(x @ weight)

    graph = device.compile(step, Shape("decode", 2, 1, 8), eager=False)
    total.zero_()
    for _ in range(2):
        x.copy_(torch.randn(2, 4))
        before = total.clone()
        assert torch.equal(graph(), torch.relu(x @ weight))
        assert torch.equal(total, before + x)
    assert (fake.calls["graph"], fake.calls["Graph.replay"]) == (1, 1 + 2)  # once to be verified


@pytest.mark.row("F-014", "F-267", "F-377", "F-982")
def test_graphs_share_one_pool_and_eager_captures_none() -> None:
    device, fake = open_device()
    x = torch.zeros(1)
    kept = [device.compile(lambda: x + 1, Shape("decode", rows, 1, 8), eager=False) for rows in (4, 2, 1)]
    pools = [arguments[0] for name, arguments in fake.log if name == "graph"]
    assert [pool is None for pool in pools] == [True, False, False], f"{len(kept)} graphs are kept"
    assert pools[1] == pools[2]

    def step() -> torch.Tensor:
        return x

    assert device.compile(step, Shape("decode", 1, 1, 8), eager=True) is step
    assert fake.calls["graph"] == 3


def test_the_fake_is_strict() -> None:
    fake = FakeCuda()
    with pytest.raises(UnknownCall, match=r"the fake of torch\.cuda has no memory_snapshot"):
        fake.memory_snapshot()
    with pytest.raises(RuntimeError, match="there is no device 8 of 8"):
        fake.set_device(8)
    with pytest.raises(RuntimeError, match="before set_device"), fake.graph(fake.CUDAGraph()):
        pass
    with pytest.raises(RuntimeError, match="never recorded"):
        fake.Event().synchronize()
    with pytest.raises(RuntimeError, match="replayed that was never captured"):
        fake.CUDAGraph().replay()
    with pytest.raises(RuntimeError, match="no pool before"):
        fake.CUDAGraph().pool()


def test_the_fake_captures_as_cuda_does() -> None:
    fake = FakeCuda()
    fake.set_device(0)
    graph, x = fake.CUDAGraph(), torch.ones(2)
    with fake.graph(graph):
        x + 1
    with pytest.raises(RuntimeError, match="captured already"), fake.graph(graph):
        pass
    with pytest.raises(RuntimeError, match="not the pool of any graph"), fake.graph(fake.CUDAGraph(), pool=7):
        pass
    for forbidden in (fake.empty_cache, lambda: fake.synchronize(0)):
        with (
            pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"),
            fake.graph(fake.CUDAGraph(), pool=graph.pool()),
        ):
            forbidden()
    with (
        pytest.raises(RuntimeError, match="one at a time"),
        fake.graph(fake.CUDAGraph()),
        fake.graph(fake.CUDAGraph()),
    ):
        pass
    with pytest.raises(RuntimeError, match="inside a capture"), fake.graph(fake.CUDAGraph()):
        graph.replay()


def test_bfloat16_is_refused_at_start_where_the_gpu_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(**{**vars(emulation._PROPERTIES), "major": 7, "minor": 5})
    monkeypatch.setattr(emulation, "_PROPERTIES", old)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"bfloat16.*float16, float32"):
        LLM(str(tmp_path), platform="cuda", emulate=True, dtype="bfloat16", skip_tokenizer_init=True)


def test_memory_of_its_own_has_a_number_and_pinned_copies() -> None:
    device = CudaDevice(describe(1, "GPU", GIB, 9, 0, 1), Vendor(FakeCuda(), "meta", nccl), graph_rows=0)
    assert (str(device.torch_device), device.pinned) == ("meta:1", True)


def test_nccl_is_made_as_torch_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Options:
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self._timeout = timedelta()

    class ProcessGroupNCCL:
        def __init__(self, store: object, rank: int, size: int, options: Options) -> None:
            self.made = (store, rank, size, options._timeout)

    ProcessGroupNCCL.Options = Options  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", ProcessGroupNCCL, raising=False)
    assert nccl("store", 1, 2, timedelta(minutes=5)).made == ("store", 1, 2, timedelta(minutes=5))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="is built without NCCL, which tensor parallelism needs"):
        nccl("store", 1, 2, timedelta(minutes=5))


RANK = """
import sys, torch
from lsv_runtime.devices.communicator import Group
from lsv_cuda.emulation import EmulatedCudaPlatform

rank, port = map(int, sys.argv[1:])
device = EmulatedCudaPlatform().open(rank, {})
assert device._runtime.log[-1] == ("set_device", (rank,))
group = device.communicator(Group("tp", (0, 1), rank, f"127.0.0.1:{port}"))
group.self_test()
x = torch.tensor([1.0, 256.0], dtype=torch.bfloat16)[rank].repeat(3).to(device.torch_device)
assert torch.equal(group.all_reduce(x).cpu(), torch.full((3,), 257.0).bfloat16())
group.close()
print("done")
"""


@pytest.mark.row("F-584", "F-876")
def test_two_ranks() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{RANK}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [text.split()[-1:] for text in said] == [["done"]] * 2, said
