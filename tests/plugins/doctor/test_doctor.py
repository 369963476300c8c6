"""``lsv doctor``: what it finds, what it measures, and what its report leaves out."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lsv import hookimpl
from lsv.capabilities import Capabilities, DeviceInfo
from lsv.cli import main
from lsv.cli.context import CommandContext, choose_plugins
from lsv.config import OptionValue
from lsv.offers import PlatformOffer
from lsv.platform import Platform
from lsv.settings import is_secret
from lsv_base.errors import ConfigError, LsvError
from lsv_doctor import findings, measure
from lsv_doctor.evaluate import COLUMNS, Row, evaluate, write_csv
from lsv_doctor.ranks import measure_collectives
from lsv_doctor.secrets import Cleaner, hide
from lsv_runtime.devices.device import Budget, Device, Memory
from lsv_testing.plugins import plugins_of

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("LSV_", "VLLM_", "OMP_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")


class ToyDevice(Device):
    """Host memory, under a name of its own."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.torch_device = torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(32 * MIB, 32 * MIB, 0)

    def budget(self, memory: Memory, share: float | None) -> Budget:
        return Budget(memory.free, why="all of it")


class ToyPlatform(Platform):
    name = "toy"
    attention: Sequence[str] = ("none",)
    count = 1

    def devices(self) -> Sequence[DeviceInfo]:
        return tuple(DeviceInfo(index, f"Toy {index}", 32 * MIB) for index in range(self.count))

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        return Capabilities(dtypes=("float32",))

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        return ToyDevice(self.devices()[index])

    def references(self, info: DeviceInfo) -> Mapping[str, float]:
        return {"copy_gb_s": 1e6, "gemm_float32_tflop_s": 1e-6}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_ROUND", 1e-4)
    monkeypatch.setattr(measure, "_LONG_ENOUGH", 0.0)
    monkeypatch.setattr(measure, "_MOST_BYTES", 4 * MIB)


@pytest.mark.row("F-877")
def test_what_is_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.delenv("PT_HPU_LAZY_MODE", raising=False)  # what a platform has exported in this process
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    main.main(["doctor", "--json", "--port", "1"])
    found = json.loads(capsys.readouterr().out)
    checks = {check["what"]: check for check in found["checks"]}
    assert {"python", "torch", "msgspec", "c++ compiler", "ninja", "instruction sets", "cores", "memory"} <= set(checks)
    assert checks["plugin core"]["ok"]
    assert {"confinement: network", "confinement: files", "confinement: system calls"} <= set(checks)
    assert found["settings"] == {
        "port": {"value": 1, "source": "flag --port"},
        "api_key": {"value": "***", "source": "VLLM_API_KEY"},
    }


def test_how_a_model_s_answers_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "lsv-demo", "--json", "--tool-call-parser", "mistral"]) in (0, 1)
    found = {check["what"]: check["found"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["model"] == "lsv-demo: LsvDemoForConditionalGeneration on cpu"
    assert found["reasoning parser"] == "qwen3: the chat template has <think> and </think>"
    assert found["tool parser"].startswith(
        "mistral: set by an option; it can't read back what the template writes for one"
    )


def test_without_a_model_none_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["doctor", "--json"])
    assert "model" not in {check["what"] for check in json.loads(capsys.readouterr().out)["checks"]}


def test_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.shutil, "which", lambda name: None)
    lines = {line.what: line for line in findings._installation()}
    assert not lines["c++ compiler"].ok
    assert "g++" in lines["c++ compiler"].fix
    assert not findings._package("no-such-package").ok


def test_a_transformers_that_is_newer_than_the_models_table_is_a_warning_and_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(findings, "warn", lambda: "newer than the table")
    line = findings._package("transformers")
    assert (line.ok, line.warning) == (True, "newer than the table")
    assert findings._package("torch").warning == ""
    main.main(["doctor"])
    (shown,) = (text for text in capsys.readouterr().out.splitlines() if "newer than the table" in text)
    assert shown.split()[:2] == ["warning", "transformers"]


def toy_plugins(*offers: PlatformOffer) -> Any:
    module = ModuleType("toys")
    module.api = 2  # type: ignore[attr-defined]
    module.lsv_platforms = hookimpl(lambda: offers)  # type: ignore[attr-defined]
    return plugins_of(toys=module)


def test_a_platform_without_a_device_explains_itself_and_breaks_nothing() -> None:
    def fail() -> tuple[DeviceInfo, ...]:
        raise RuntimeError("no such bus")

    plugins = toy_plugins(
        PlatformOffer("here", "x:Y", lambda: (DeviceInfo(0, "Toy", 1),)),
        PlatformOffer("away", "x:Y", lambda: (), explain=lambda: "looked for a toy in the box: buy one"),
        PlatformOffer("broken", "x:Y", fail),
    )
    lines = {line.what: line for line in findings._platforms(plugins)}
    assert lines["platform here"].found == "Toy"
    assert lines["platform away"].found == "no device here: looked for a toy in the box: buy one"
    assert lines["platform away"].ok
    assert not lines["platform broken"].ok


def rows_of(platform: Platform) -> list[Row]:
    said: list[str] = []
    rows = list(evaluate(platform, {}, (), said.append, emulate=False))
    assert len(said) >= len(rows) - 1
    return rows


@pytest.mark.row("F-904", "F-905", "F-911")
def test_devices_are_measured_and_compared() -> None:
    rows = {row.metric: row for row in rows_of(ToyPlatform())}
    assert list(rows) == ["copy_gb_s", "read_gb_s", "gemm_float32_tflop_s"]
    assert all(row.value and row.value > 0 for row in rows.values())
    assert (rows["copy_gb_s"].unit, rows["copy_gb_s"].verdict) == ("GB/s", "far too low")
    assert (rows["gemm_float32_tflop_s"].unit, rows["gemm_float32_tflop_s"].verdict) == ("TFLOP/s", "sound")
    assert (rows["read_gb_s"].ratio, rows["read_gb_s"].verdict) == (None, "")


def test_an_emulated_device_is_held_against_nothing() -> None:
    rows = list(evaluate(ToyPlatform(), {}, (), lambda label: None, emulate=True))
    assert [row.reference for row in rows] == [None] * len(rows)


def test_what_fails_is_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> float:
        raise RuntimeError("out of bandwidth\nsecond line")

    monkeypatch.setattr(measure, "_read", fail)
    monkeypatch.setattr("lsv_doctor.ranks.measure_collectives", fail)
    monkeypatch.setattr(ToyPlatform, "count", 2)
    rows = rows_of(ToyPlatform())
    failed = [(row.metric, row.device, row.note) for row in rows if row.value is None]
    assert failed == [
        ("read_gb_s", "0: Toy 0", "RuntimeError: out of bandwidth"),
        ("read_gb_s", "1: Toy 1", "RuntimeError: out of bandwidth"),
        ("collectives", "2 devices", "RuntimeError: out of bandwidth"),
    ]
    assert {row.metric for row in rows if row.value} == {"copy_gb_s", "gemm_float32_tflop_s"}


def test_of_latencies_less_is_better() -> None:
    assert Row("all_reduce_8_kib_us", "2 devices", 20.0, 10.0).ratio == 0.5
    assert Row("copy_gb_s", "0", 20.0, 10.0).ratio == 2.0
    verdicts = [Row("copy_gb_s", "0", value, 10.0).verdict for value in (9.5, 8.0, 5.0)]
    assert verdicts == ["sound", "low", "far too low"]


@pytest.mark.row("F-905", "F-906")
def test_transfers_are_measured_where_memory_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ToyDevice(DeviceInfo(0, "Toy", MIB))
    assert list(measure.of_transfers(device)) == []
    assert list(measure.of_peers([device, device])) == []
    monkeypatch.setattr(measure, "_on_host", lambda device: False)
    names = [name for name, _ in measure.of_transfers(device)]
    assert names == ["host_to_device_pageable_gb_s", "device_to_host_pageable_gb_s"]
    assert all(run() > 0 for _, run in measure.of_transfers(device))
    (there, (name, run)), _ = measure.of_peers([device, ToyDevice(DeviceInfo(1, "Toy", MIB))])
    assert (there, name) == (device, "peer_to_1_gb_s")
    assert run() > 0
    device.pinned = True
    assert len(list(measure.of_transfers(device))) == 4


@pytest.mark.row("F-904")
def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "found.csv"
    write_csv(file, [Row("copy_gb_s", "0: Toy", 12.5, 10.0), Row("read_gb_s", "0: Toy", None, note="why")])
    with file.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == COLUMNS
    assert rows == [
        ["copy_gb_s", "12.5", "GB/s", "10", "1.25", "0: Toy", ""], ["read_gb_s", "", "GB/s", "", "", "0: Toy", "why"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="can't be written"):
        write_csv(tmp_path / "none" / "found.csv", [])


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "found.csv"
    assert main.main(["doctor", "--evaluate", "--platform", "cpu", "--csv", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "gemm_bfloat16_tflop_s" in printed
    assert "the platform knows no reference" in printed
    assert file.read_text().startswith("metric,value,unit,reference,ratio,")
    assert main.main(["doctor", "--csv", "x"]) == 2
    assert "--csv holds what --evaluate measures" in capsys.readouterr().err
    assert main.main(["doctor", "--evaluate", "--report", "x"]) == 2


@pytest.mark.row("F-905", "F-907")
@pytest.mark.slow
def test_collectives_between_ranks() -> None:
    found = measure_collectives("cuda", emulate=True, options={}, plugins=("cuda",), size=2)
    assert set(found) >= {"all_reduce_8_kib_us", "all_gather_1_mib_gb_s", "broadcast_32_mib_gb_s"}
    assert min(found.values()) > 0


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_measurement() -> None:
    with pytest.raises(LsvError, match=r"rank [01] ended with 1: .*there is no platform 'none'"):
        measure_collectives("none", emulate=False, options={}, plugins=("core",), size=2)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True), ("HF_TOKEN", True), ("db.password", True), ("VLLM_API_KEY", True), ("auth", True),
        ("tokenizer", False), ("max_num_batched_tokens", False), ("ssl_keyfile", False), ("author", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_hiding() -> None:
    assert hide("api_key", ("a", "b")) == "***"
    assert [hide("api_key", value) for value in (None, (), "")] == [None, (), ""]
    assert hide("return_tokens_as_token_ids", True) is True
    assert hide("port", 1) == 1


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/mira/models/x", "/home/***/models/x"),
        (r"C:\Users\mira\x", r"C:\Users\***\x"),
        ("token hf_abcdefghij1234567890", "token ***"),
        ("https://mira:pass@host/x", "https://***@host/x"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("run --api-key=abc --port 1", "run --api-key=*** --port 1"),
        ('{"password": "abc"}', '{"password": "***"}'),
        ("known: open-sesame!", "known: ***!"),
        ("max_tokens=32 tokenizer: x", "max_tokens=32 tokenizer: x"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln", "***"),
    ],
)
def test_cleaning(text: str, clean: str) -> None:
    assert Cleaner(["open-sesame"]).text(text) == clean
    assert Cleaner().tree({"a": [text], "api_key": "x"}) == {"a": [Cleaner().text(text)], "api_key": "***"}


def test_the_user_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/mira"))
    monkeypatch.setattr("socket.gethostname", lambda: "box-17")
    assert Cleaner().text("mira ran admira on box-17") == "*** ran admira on ***"
    monkeypatch.setattr(Path, "home", lambda: Path("/root"))
    assert Cleaner().text("root_path") == "root_path"


@pytest.mark.row("F-877", "F-908")
def test_a_report_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "toy-smi"
    tool.write_text("#!/bin/sh\necho driver 1.2, key open-sesame-1, in /home/mira/driver\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LSV_API_KEY", "open-sesame-1,open-sesame-2")
    monkeypatch.setenv("HF_TOKEN", "hf_never_to_be_seen")
    monkeypatch.setenv("LSV_DOWNLOAD_DIR", "/home/mira/models")
    offer = PlatformOffer("toy", "x:Y", lambda: (), explain=lambda: "no box", tools=(("toy-smi", "-q"), ("no-smi",)))
    from lsv_doctor import command as doctor

    file = tmp_path / "report.json"
    context = CommandContext(toy_plugins(offer), choose_plugins([]))
    assert doctor.run(["--report", str(file), "--tokenizer", "/home/mira/tok"], context) == 0
    assert "look through it" in capsys.readouterr().out
    text = file.read_text()
    for secret in ("open-sesame", "hf_never", "mira"):
        assert secret not in text
    report = json.loads(text)
    assert report["platforms"] == [
        {
            "name": "toy", "devices": [], "explanation": "no box",
            "tools": {"toy-smi -q": "driver 1.2, key ***, in /home/***/driver\n"},
        }
    ]  # fmt: skip
    assert report["settings"]["tokenizer"] == {"value": "/home/***/tok", "source": "flag --tokenizer"}
    assert report["environment"] == {"LSV_API_KEY": "***", "LSV_DOWNLOAD_DIR": "/home/***/models"}
    assert report["packages"]["torch"]
    assert doctor.run(["--report", str(tmp_path / "report.json")], context) == 0
    with pytest.raises(ConfigError, match=r"--report .* can't be written"):
        doctor.run(["--report", str(tmp_path / "none" / "x")], context)


@pytest.mark.row("F-402", "F-941")
def test_a_plan_says_how_many_requests_fit(capsys: pytest.CaptureFixture[str]) -> None:
    def concurrency(length: int) -> float:
        given = ["--max-model-len", str(length), "--num-gpu-blocks-override", "64", "--block-size", "16"]
        assert main.main(["plan", "lsv-demo", *given]) == 0
        printed = capsys.readouterr().out
        assert "1,024 tokens" in printed
        (found,) = re.findall(r"concurrency\D+([\d.]+)x", printed)
        return float(found)

    assert (concurrency(512), concurrency(128)) == (2.0, 8.0)


@pytest.mark.row("F-946")
def test_a_plan_counts_weights_as_a_format_holds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model whose layers take most: half of their 16 bits in fp8, and a quarter in four bits with scales."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "vocab_size": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 256}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**kind, **sizes, **heads}))
    options = ["--load-format", "dummy", "--skip-tokenizer-init", "--json"]

    def weigh(*given: str) -> int:
        assert main.main(["plan", str(tmp_path), *options, *given]) == 0
        return int(json.loads(capsys.readouterr().out)["fit"]["weight_bytes"])

    plain = weigh()
    assert plain > 2 * 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
    assert 0.5 < weigh("-q", "fp8") / plain < 0.56
    assert 0.25 < weigh("-q", "sym_int4") / plain < 0.35
