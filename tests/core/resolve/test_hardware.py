"""What an engine runs on: platforms and their emulations, steps in flight, refused pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lsv.capabilities import Capabilities, DeviceInfo, Refusal
from lsv.config import Choices, EngineConfig, OptionValue
from lsv.offers import PlatformOffer
from lsv.platform import Platform, Traffic
from lsv.resolve.hardware import choose_depth, choose_platform, refuse_pairs
from lsv_base.errors import ConfigError
from lsv_doctor.traffic import read_traffic
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.probing import ask_child
from lsv_runtime.emulation.fakes import FakeCapturing, UnknownCall

GPU = DeviceInfo(0, "made-up GPU", 1 << 30)


class Absent(Platform):
    """A platform whose device is nowhere."""

    name = "made-up"

    def devices(self) -> Sequence[DeviceInfo]:
        return ()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        return Capabilities(dtypes=("float32",))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        raise NotImplementedError


class Emulated(Absent):
    def devices(self) -> Sequence[DeviceInfo]:
        return (GPU,)


class Catalog:
    """Offers by kind and name."""

    def __init__(self, *offers: Any) -> None:
        self._offers = offers

    def offers(self, kind: type) -> list[Any]:
        return [offer for offer in self._offers if isinstance(offer, kind)]

    def find(self, kind: type, name: str) -> Any:
        return next(offer for offer in self.offers(kind) if offer.name == name)

    def load(self, offer: Any) -> Any:
        return Absent

    def provider(self, offer: Any) -> str:
        return "test"


def nothing() -> tuple[DeviceInfo, ...]:
    return ()


OFFER = PlatformOffer(
    "made-up", "x:y", nothing, explain=lambda: "looked in /nowhere", emulation="lsv_testing.catalog:Missing"
)


def test_absence_is_explained() -> None:
    with pytest.raises(ConfigError, match="platform made-up finds no device: looked in /nowhere"):
        choose_platform("made-up", False, {}, Catalog(OFFER), Choices())


def test_an_emulation_needs_a_name_and_an_offer() -> None:
    with pytest.raises(ConfigError, match="--emulate needs the name of a platform"):
        choose_platform("auto", True, {}, Catalog(OFFER), Choices())
    plain = PlatformOffer("made-up", "x:y", nothing)
    with pytest.raises(ConfigError, match="made-up has no emulation"):
        choose_platform("made-up", True, {}, Catalog(plain), Choices())


def test_an_emulation_is_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv.resolve.hardware.load_object", lambda name: Emulated)
    choices = Choices()
    platform, device = choose_platform("made-up", True, {}, Catalog(OFFER), choices)
    assert (type(platform), device) == (Emulated, GPU)
    assert "EMULATED: there is no device" in choices.reasons[0].why


def test_a_setting_chooses_what_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chosen(Emulated):
        def emulated_devices(self, options: Mapping[str, OptionValue]) -> Sequence[DeviceInfo]:
            return (DeviceInfo(0, str(options["made-up.model"]), 1 << 30),)

    monkeypatch.setattr("lsv.resolve.hardware.load_object", lambda name: Chosen)
    _, device = choose_platform("made-up", True, {"made-up.model": "old GPU"}, Catalog(OFFER), Choices())
    assert device.name == "old GPU"


@pytest.mark.row("F-338", "F-339")
def test_steps_in_flight() -> None:
    plain, ahead = Capabilities(dtypes=("float32",)), Capabilities(dtypes=("float32",), in_flight=2)
    assert [choose_depth(asked, ahead) for asked in (None, True, False)] == [2, 2, 1]
    assert choose_depth(None, plain) == 1
    with pytest.raises(ConfigError, match="async_scheduling has no use here"):
        choose_depth(True, plain)


def config(**changes: Any) -> EngineConfig:
    fields = {
        "model": "m", "served_names": ("m",), "tokenizer": "m", "architecture": "A", "model_offer": "a",
        "platform": "made-up", "attention": "slow", "dtype": "float32", "block_size": 16, "max_model_len": 64,
        **changes,
    }  # fmt: skip
    return EngineConfig(**fields)


def test_pairs_are_refused_by_name() -> None:
    pair = Refusal("graphs", "tensor_parallel", "its collectives can't be captured")
    alone = Refusal("dtype=float32", "dtype=float32", "it has none")
    with pytest.raises(ConfigError, match="dtype=float32: not on platform made-up: it has none"):
        refuse_pairs(config(), Capabilities(dtypes=("float32",), refuses=(alone,)))
    both = Capabilities(dtypes=("float32",), refuses=(pair,))
    refuse_pairs(config(), both)
    from lsv.config import Topology

    with pytest.raises(ConfigError, match="graphs and tensor_parallel together: not on platform made-up: its coll"):
        refuse_pairs(config(topology=Topology(tensor=2)), both)
    refuse_pairs(config(topology=Topology(tensor=2), enforce_eager=True), both)


def test_a_fake_refuses_what_it_does_not_know() -> None:
    fake = FakeCapturing(2, 100)
    fake.set_device(1)
    assert fake.mem_get_info(1) == (100, 100)
    assert fake.log == [("set_device", (1,)), ("mem_get_info", (1,))]
    with pytest.raises(UnknownCall, match="has no memory_stats"):
        fake.memory_stats()
    with pytest.raises(RuntimeError, match="no device 2 of 2"):
        fake.synchronize(2)


def test_a_child_is_asked_once() -> None:
    assert ask_child('print("noise"); import json, os; print(json.dumps({"a": 1}))') == {"a": 1}
    assert ask_child("import os; print(os.getpid())") == ask_child("import os; print(os.getpid())")
    assert ask_child("raise SystemExit(3)") is None
    assert ask_child("print('no json {')") is None


def test_traffic_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "sample.jsonl"
    file.write_text('{"prompt": 12, "output": 3}\n\n{"prompt": 1, "output": 700}\n')
    assert read_traffic(str(file)) == (Traffic(12, 3), Traffic(1, 700))
    for wrong in ('{"prompt": 0, "output": 3}', '{"prompt": true, "output": 3}', "[1, 2]", "x"):
        file.write_text(f'{{"prompt": 12, "output": 3}}\n{wrong}\n')
        with pytest.raises(ConfigError, match=r"sample\.jsonl:2: expected"):
            read_traffic(str(file))
    file.write_text("\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_traffic(str(file))
