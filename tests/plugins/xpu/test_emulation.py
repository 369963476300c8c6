"""The platform's own code over a strict fake of torch.xpu: graphs, memory, and whole engines on it."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig
from lsv.plugins import load
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Group
from lsv_runtime.devices.graphs import Graphs
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.emulation.fakes import FakeEvent, FakeGraph, StrictFake, UnknownCall
from lsv_testing.attention import cover_pairs
from lsv_testing.tiny import tiny
from lsv_xpu.device import XpuDevice
from lsv_xpu.emulation.platform import GRAPH_ROWS, EmulatedXpuPlatform, FakeXpu

SHAPE = Shape("decode", 4, 1, 8)
GIB = 1 << 30


def open_device(index: int = 0, **asked: Any) -> tuple[XpuDevice, FakeXpu]:
    device = EmulatedXpuPlatform().open(index, {f"xpu.{name}": value for name, value in asked.items()})
    assert isinstance(device, XpuDevice)
    fake = device._runtime
    assert isinstance(fake, FakeXpu)
    return device, fake


def public(owner: type) -> list[str]:
    known = {*dir(StrictFake), "finish"}
    return [
        name for name in dir(owner) if not name.startswith("_") and name not in known and callable(getattr(owner, name))
    ]


def test_the_fake_has_only_what_torch_has() -> None:
    for name in public(FakeXpu):
        assert hasattr(torch.xpu, name), name
    assert all(hasattr(torch.xpu.Event, name) for name in public(FakeEvent))
    assert all(hasattr(torch.xpu.XPUGraph, name) for name in public(FakeGraph))
    for call in ("mem_get_info", "memory_allocated", "memory_reserved", "max_memory_allocated", "synchronize"):
        inspect.signature(getattr(torch.xpu, call)).bind(0)
    for call in ("set_device", "reset_peak_memory_stats", "get_device_properties"):
        inspect.signature(getattr(torch.xpu, call)).bind(0)
    inspect.signature(torch.xpu.can_device_access_peer).bind(0, 1)
    inspect.signature(torch.xpu.graph).bind(object(), pool=None)


def test_an_unknown_call_is_refused() -> None:
    _, fake = open_device()
    with pytest.raises(UnknownCall, match=r"fake of torch\.xpu has no memory_snapshot"):
        fake.memory_snapshot()
    with pytest.raises(RuntimeError, match="no device 2 of 2"):
        fake.synchronize(2)


def test_opening_says_loudly_that_nothing_is_there(caplog: pytest.LogCaptureFixture) -> None:
    device, fake = open_device(1, emulated_model="A770", emulated_memory=0.5)
    assert "EMULATED: Intel Arc A770 is not there" in caplog.text
    assert (device.info.index, device.info.total_bytes, device.memory().total) == (1, GIB // 2, GIB // 2)
    assert fake.log[:2] == [("device_count", ()), ("get_device_properties", (1,))]
    assert EmulatedXpuPlatform().references(device.info) == {}, "the host's speed is compared with no card"
    assert fake.calls["set_device"] == 1
    with pytest.raises(
        ConfigError, match=r"Intel GPU 2 does not exist: torch.xpu sees 2 within ZE_AFFINITY_MASK=0,1; lower"
    ):
        open_device(2, affinity_mask="0,1")


def test_a_setting_chooses_the_card_that_a_configuration_is_for() -> None:
    plugins = load(["core", "xpu", "triton", "demo"])
    declared = Declared(options.for_scope("engine", plugins.settings()))

    def configure(*flags: str) -> EngineConfig:
        line = parse(["--platform", "xpu", "--emulate", *flags], declared)
        return resolve(gather(declared, line.given), plugins)

    a770 = ("--xpu-emulated-model", "A770", "--xpu-emulated-devices", "3")
    assert (configure().dtype, configure(*a770).dtype) == ("bfloat16", "float16"), "as on a real card"
    with pytest.raises(ConfigError, match="bfloat16 is known to be inaccurate"):
        configure(*a770, "--dtype=bfloat16")
    names = [info.name for info in EmulatedXpuPlatform().emulated_devices(configure(*a770).options)]
    assert names == ["Intel Arc A770"] * 3
    known = "xpu-emulated-model must be one of A770, Flex 170, B580, B50, B60, B65, B70, Max 1100"
    with pytest.raises(ConfigError, match=f"{known}.*did you mean B6"):
        configure("--xpu-emulated-model=B61")


@pytest.fixture(autouse=True)
def no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZE_AFFINITY_MASK", "")
    monkeypatch.delenv("ZE_AFFINITY_MASK")


def warm_up(device: XpuDevice, rows: int = 20) -> dict[Shape, Any]:
    """Every shape of the device's policy, compiled: each doubles a buffer of its own."""
    policy = device.shapes(BatchLimits(max_rows=rows, max_tokens=64, max_blocks=8))
    compiled = {}
    for shape in policy.warmup():
        buffer = torch.arange(shape.rows, dtype=torch.float32)
        compiled[shape] = (buffer, device.compile(lambda buffer=buffer: buffer * 2, shape, eager=False))
    return compiled


def test_each_shape_is_captured_once_and_replays_what_is_in_its_buffers() -> None:
    device, fake = open_device()
    compiled = warm_up(device)
    assert sorted(shape.rows for shape in compiled) == [1, 2, 4, 8, 16]
    assert fake.calls["XPUGraph"] == fake.calls["graph"] == 5
    pools = {arguments[0] for name, arguments in fake.log if name == "graph"}
    assert len(pools - {None}) == 1, "all graphs share the first one's memory"
    replays = fake.calls["Graph.replay"]
    for buffer, step in compiled.values():
        buffer.fill_(21.0)
        assert torch.equal(step(), torch.full_like(buffer, 42.0))
    assert fake.calls["Graph.replay"] == replays + 5


@pytest.mark.parametrize(("options", "eager"), [({"graph": "0"}, False), ({}, True), ({"graph_rows": 0}, False)])
def test_without_graphs_a_step_is_itself(options: dict[str, Any], eager: bool) -> None:
    device, fake = open_device(**options)

    def step() -> torch.Tensor:
        return torch.ones(2)

    shapes = list(device.shapes(BatchLimits(max_rows=8, max_tokens=64, max_blocks=8)).warmup())
    assert bool(shapes) == eager
    if shapes or options.get("graph"):
        assert device.compile(step, SHAPE, eager=eager) is step
        assert fake.calls["XPUGraph"] == 0


class Garbled(FakeGraph):
    """Computes what it captured, and then something else."""

    buffer: torch.Tensor

    def replay(self) -> None:
        super().replay()
        self.buffer.mul_(torch.nan)


def test_a_graph_that_replays_other_values_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for graph in ("auto", "1"):
        device, fake = open_device(graph=graph)
        monkeypatch.setattr(device, "_graphs", Graphs(lambda fake=fake: Garbled(fake), fake))
        Garbled.buffer = out = torch.ones(3)

        def step(out: torch.Tensor = out) -> torch.Tensor:
            return out.copy_(torch.ones(3) * 1)

        if graph == "1":
            with pytest.raises(ConfigError, match=r"xpu\.graph=1, but replaying the step of 4 rows gives other values"):
                device.compile(step, SHAPE, eager=False)
        else:
            assert device.compile(step, SHAPE, eager=False) is step
            assert "no graphs on Intel Arc Pro B60: replaying the step of 4 rows gives other values" in caplog.text
            assert device.compile(step, SHAPE, eager=False) is step


def test_a_step_that_cannot_be_captured_runs_op_by_op(caplog: pytest.LogCaptureFixture) -> None:
    device, _ = open_device()
    values = torch.ones(3)

    def step() -> torch.Tensor:
        return values * float(values.sum())

    assert device.compile(step, SHAPE, eager=False) is step
    assert "the step of 4 rows can't be captured" in caplog.text
    with pytest.raises(ConfigError, match=r"leave xpu\.graph at auto"):
        open_device(graph="1")[0].compile(step, SHAPE, eager=False)


def test_a_capture_waits_for_nothing() -> None:
    device, fake = open_device()
    with (
        pytest.raises(RuntimeError, match="synchronize: operation not permitted when stream is capturing"),
        fake.graph(fake.XPUGraph()),
    ):
        device.synchronize()
    event = device.event()
    assert event is not None
    event.synchronize()
    with pytest.raises(RuntimeError, match="never recorded"):
        fake.Event().synchronize()


def test_ranks_compute_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    group = Group("tp", (0, 1), 0, "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"xpu\.graph=1 and tensor parallelism"):
        open_device(graph="1")[0].communicator(group)
    device, _ = open_device()
    assert device.communicator(Group("tp", (0,), 0, "")) is None
    assert warm_up(device)


def test_a_driver_that_does_not_count_free_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, fake = open_device()

    def unsupported(index: int) -> tuple[int, int]:
        raise RuntimeError("The device doesn't support querying the available free memory.\nFile an issue")

    monkeypatch.setattr(fake, "mem_get_info", unsupported)
    monkeypatch.setattr(fake, "memory_reserved", lambda index: GIB)
    for _ in range(2):
        memory = device.memory()
        assert (memory.total, memory.free, memory.used) == (8 * GIB, 7 * GIB, GIB)
    assert caplog.text.count("memory of other programs on this device is not counted") == 1


@pytest.mark.parametrize("free", [0, 3 * GIB])
def test_free_memory_is_believed_only_where_an_allocation_changes_it(
    free: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that says 0, or always the same, would leave no room for a cache, or hide what graphs take."""
    device, fake = open_device()
    monkeypatch.setattr(fake, "mem_get_info", lambda index: (free, 8 * GIB))
    first = device.memory()
    assert (first.free, first.used) == (8 * GIB - first.used, first.used)
    held = torch.empty(1 << 20, device=device.torch_device)
    second = device.memory()
    assert second.used - first.used == held.nbytes
    assert first.free - second.free == held.nbytes
    assert caplog.text.count("its free memory does not change with an allocation") == 1


def test_free_memory_that_moves_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    device, fake = open_device()
    fake._taken = 2 * GIB  # another program's
    memory = device.memory()
    assert memory.free == 6 * GIB - memory.used
    assert "not counted" not in caplog.text


def test_torch_without_graphs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = SimpleNamespace(make_graph=None)
    info = EmulatedXpuPlatform().devices()[0]
    with pytest.raises(ConfigError, match="has no XPUGraph"):
        XpuDevice(info, vendor, {"xpu.graph": "1"})  # type: ignore[arg-type]


TOKENS = 40
CHOICES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "graphs": ({"enforce_eager": True}, {"xpu_graph": "1"}),
    "async": ({"async_scheduling": False}, {}),
    "chunking": ({"enable_chunked_prefill": False, "max_num_batched_tokens": 256}, {"max_num_batched_tokens": 24}),
    "prefix": ({"enable_prefix_caching": False}, {"enable_prefix_caching": True}),
    "preemption": ({"num_gpu_blocks_override": 64}, {"num_gpu_blocks_override": 9}),
}
"""What each feature does to an engine: off, and on."""
FORMATS = (None, "sym_int4")
COVERING = list(cover_pairs([FORMATS, *((False, True) for _ in CHOICES)]))
EVERY = list(itertools.product(FORMATS, *((False, True) for _ in CHOICES)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    shape = {"hidden_size": 128, "intermediate_size": 256}
    return str(tiny("llama", tmp_path_factory.mktemp("xpu") / "llama", **shape))


def answers(checkpoint: str, quantization: str | None, *on: bool) -> list[tuple[int, ...]]:
    """Greedy answers to six prompts, of which the last three begin alike."""
    rng = random.Random(7)
    shared = [rng.randrange(5, 250) for _ in range(32)]
    prompts = [
        {"prompt_token_ids": (shared if length > 20 else []) + [rng.randrange(5, 250) for _ in range(length)]}
        for length in (1, 7, 16, 33, 40, 21)
    ]
    options: dict[str, Any] = {"quantization": quantization, "dtype": "float32", "skip_tokenizer_init": True}
    options |= {"max_model_len": 112, "max_num_seqs": 8, "block_size": 16}
    for choice, wanted in zip(CHOICES.values(), on, strict=True):
        options |= choice[wanted]
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    with LLM(checkpoint, platform="xpu", emulate=True, **options) as llm:
        found = [answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)]
        happened = dict(zip(CHOICES, on, strict=True))
        assert (llm.stats.prefix_hits_total > 0) == happened["prefix"]
        assert (llm.stats.preemptions_total > 0) == happened["preemption"]
    return found


def test_more_rows_than_graphs_have_is_no_miss(checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    prompts = [{"prompt_token_ids": [5 + row, 6]} for row in range(GRAPH_ROWS + 4)]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    options: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64}
    with LLM(checkpoint, platform="xpu", emulate=True, max_num_seqs=len(prompts), **options) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        assert llm.stats.unwarmed_total == 0
    assert "not warmed-up" not in caplog.text


@pytest.fixture(scope="module")
def plain(checkpoint: str) -> Callable[[str | None], list[tuple[int, ...]]]:
    """Op by op, one step at a time, prompts whole and apart."""
    return cache(lambda quantization: answers(checkpoint, quantization, *(False for _ in CHOICES)))


def check(checkpoint: str, plain: Any, combination: Any, caplog: pytest.LogCaptureFixture) -> None:
    quantization, *on = combination
    assert answers(checkpoint, quantization, *on) == plain(quantization)
    assert "not warmed-up" not in caplog.text


def name(combination: Any) -> str:
    return "+".join([combination[0] or "plain", *(key for key, on in zip(CHOICES, combination[1:], strict=True) if on)])


@pytest.mark.parametrize("combination", COVERING, ids=name)
def test_no_pair_of_features_changes_a_token(
    combination: Any, checkpoint: str, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    check(checkpoint, plain, combination, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("combination", [one for one in EVERY if one not in COVERING], ids=name)
def test_no_combination_of_features_changes_a_token(
    combination: Any, checkpoint: str, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    check(checkpoint, plain, combination, caplog)
