"""Platform ``torch``: the processor as torch knows it, and the emulated device, which torch knows little about."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.capabilities import DeviceInfo
from lsv.offers import PlatformOffer
from lsv.plugins import load
from lsv.resolve import resolve
from lsv.settings import Declared, gather
from lsv.settings.flags import parse
from lsv.settings.options import for_scope
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Memory
from lsv_testing.platform import check_platform
from lsv_testing.tiny import tiny
from lsv_torch import device as device_module
from lsv_torch import machine, plugin
from lsv_torch.device import TorchDevice, try_out
from lsv_torch.emulation import EmulatedTorchPlatform
from lsv_torch.platform import TorchPlatform

pytestmark = pytest.mark.onednn

GIB = 1 << 30
CPU = torch.device("cpu")
INFO = DeviceInfo(0, "made-up device", 6 * GIB, {"kind": "cpu", "dtypes": "float32"})
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("torch"))


def offer() -> PlatformOffer:
    (found,) = plugin.lsv_platforms()
    return found


@pytest.mark.parametrize("emulate", [True, False])
def test_conforms(emulate: bool) -> None:
    """Without an accelerator torch computes on the processor."""
    check_platform(offer(), emulate=emulate)


def answers(checkpoint: Path, **options: Any) -> list[tuple[int, ...]]:
    prompts = [{"prompt_token_ids": list(range(40, 40 + length))} for length in (1, 15, 17, 33)]
    common = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 64, "skip_tokenizer_init": True}
    with LLM(str(checkpoint), **{**common, **options}) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, PARAMS, use_tqdm=False)]


def test_tokens_are_those_of_the_processor(checkpoint: Path) -> None:
    plain = answers(checkpoint, platform="cpu", reference_ops=True, attention_backend="torch-paged")
    assert answers(checkpoint, platform="torch", emulate=True) == plain
    assert answers(checkpoint, platform="torch", torch_device="cpu") == plain


def test_sampling_on_the_device_draws_what_the_processor_draws(checkpoint: Path) -> None:
    drawn = {}
    for name, options in {"cpu": {}, "torch": {"emulate": True, "kv_cache_dtype": "auto"}}.items():
        with LLM(
            str(checkpoint), platform=name, dtype="float32", max_model_len=64, num_gpu_blocks_override=64,
            skip_tokenizer_init=True, reference_ops=True, **options,
        ) as llm:  # fmt: skip
            params = SamplingParams(temperature=1.0, top_k=20, seed=7, max_tokens=8, ignore_eos=True, detokenize=False)
            drawn[name] = llm.generate([{"prompt_token_ids": [40, 41]}], params)[0].outputs[0].token_ids
    assert drawn["torch"] == drawn["cpu"]


def resolved(checkpoint: Path, *flags: str) -> Any:
    plugins = load()
    declared = Declared(for_scope("engine", plugins.settings()))
    line = parse([f"--model={checkpoint}", "--platform=torch", *flags], declared)
    return resolve(gather(declared, line.given), plugins)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--torch-device=nonsense",), r"can't compute on torch.device\('nonsense'\) .*--torch-device"),
        (("--torch-device=npu",), "such as torch_npu"),
        (
            ("--tensor-parallel-size=2",),
            "computes on one device: leave --tensor-parallel-size, --pipeline",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(checkpoint: Path, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(checkpoint, "--dtype=float32", *flags)


def test_dtypes_are_those_that_compute(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": "2.13", "kind": "cpu", "count": 1, "total": GIB, "name": "made-up", "dtypes": ["float32"]}
    monkeypatch.setattr(machine, "ask", lambda kind="": found if kind else {**found, "dtypes": ["float16", "float32"]})
    assert resolved(checkpoint, "--dtype=float16").dtype == "float16"
    with pytest.raises(ConfigError, match="cpu computes in float32, not in float16: give --dtype"):
        resolved(checkpoint, "--dtype=float16", "--torch-device=cpu")
    monkeypatch.setattr(machine, "ask", lambda kind="": {**found, "dtypes": []})
    assert machine.devices() == ()
    assert "multiplies matrices wrongly" in machine.explain()


def test_it_is_asked_for_by_name(checkpoint: Path) -> None:
    """The processor has kernels of its own, and so goes before it."""
    found = {one.name: one.rank for one in load().catalog.offers(PlatformOffer)}
    assert found["torch"] < found["cpu"]


def test_it_opens_what_torch_finds() -> None:
    opened = TorchPlatform().open(0, {"torch.device": "cpu"})
    assert (opened.torch_device, opened.info.detail["kind"]) == (CPU, "cpu")
    opened.close()
    with pytest.raises(ConfigError, match="there is no device 3: torch sees 1"):
        TorchPlatform().open(3, {"torch.device": "cpu"})


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A kind of device whose module has the given functions."""
    module = SimpleNamespace()
    monkeypatch.setattr(device_module.torch, "get_device_module", lambda where: module)
    return module


def made(total: int = 0) -> TorchDevice:
    return TorchDevice(INFO, SimpleNamespace(type="made-up", index=0), total)  # type: ignore[arg-type]


def test_memory_is_what_the_device_tells(telling: SimpleNamespace) -> None:
    assert made().memory() == Memory(total=6 * GIB, free=6 * GIB, used=0), "it tells nothing"
    assert made(2 * GIB).memory().total == 2 * GIB, "the user does"
    telling.mem_get_info = lambda where: (3 * GIB, 4 * GIB)
    telling.memory_reserved = lambda: GIB
    assert made().memory() == Memory(total=4 * GIB, free=3 * GIB, used=GIB)
    assert made().budget(made().memory(), None).kv == int(0.9 * 4 * GIB) - GIB
    assert made(2 * GIB).memory() == Memory(total=2 * GIB, free=GIB, used=GIB)
    del telling.mem_get_info, telling.memory_reserved
    telling.recommended_max_memory, telling.driver_allocated_memory = lambda: 5 * GIB, lambda: GIB
    assert made().memory() == Memory(total=5 * GIB, free=4 * GIB, used=GIB)


def test_what_its_module_lacks_is_done_without(telling: SimpleNamespace) -> None:
    calls: list[str] = []
    made().close()
    telling.synchronize, telling.empty_cache = lambda: calls.append("wait"), lambda: calls.append("give back")
    telling.set_device = lambda index: calls.append(f"set {index}")
    made().close()
    assert calls == ["set 0", "wait", "give back"]


def test_a_device_that_computes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those without 64-bit integers do."""
    try_out(CPU)
    opened = EmulatedTorchPlatform().open(0, {})
    if opened.torch_device.type != "cpu":
        multiply = torch.Tensor.__mul__
        narrow = lambda x, y: multiply(x, y) if x.is_cpu else multiply(x.int(), y & 0xFFFF).long()  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "__mul__", narrow)
        with pytest.raises(ConfigError, match="it computes 64-bit integers wrongly"):
            try_out(opened.torch_device)
    with pytest.raises(ConfigError, match="it fails at a product of matrices"):
        try_out(torch.device("fpga"))
