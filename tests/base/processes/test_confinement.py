"""What a confined process can't do, tried by one; what each measure says where the system does not have it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from lsv_base.processes import confinement
from lsv_base.processes.confinement import kernel, landlock, namespaces, seccomp
from lsv_base.processes.confinement.calls import ALLOWED, FORBIDDEN, NUMBERS
from lsv_base.processes.confinement.probe import Begin, Tried, Try, probe
from lsv_base.processes.confinement.terms import Measure, Terms, Unavailable
from lsv_base.processes.side.process import Broken, SideProcess

MIB = 1 << 20
SECONDS = 30.0

Probe = SideProcess[Begin | Try, Tried]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the process may read; one beside it, it may not."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "model.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def process(kept: Path) -> Iterator[Probe]:
    found = probe(Terms(memory=128 * MIB, seconds=20), (str(kept),))
    yield found
    found.end()


@pytest.fixture
def confined(process: Probe) -> Probe:
    if not process.running:
        process.start()
    process.initialize()
    return process


def needs(process: Probe, name: str) -> None:
    """Skip where the system lacks a measure; what it says then is shown."""
    measure = next(measure for measure in process.measures if measure.name == name)
    if not measure.held:
        pytest.skip(f"{name}: {measure.found}")


def outcome(process: Probe, what: str, given: object = "") -> str:
    return process.ask(Try(what, str(given)), SECONDS).outcome


def test_every_measure_is_named(confined: Probe) -> None:
    assert [measure.name for measure in confined.measures] == [
        "network", "limits", "privileges", "files", "system calls",
    ]  # fmt: skip


def test_the_network_is_out_of_reach(confined: Probe) -> None:
    names = {measure.name for measure in confined.measures if measure.held}
    if not names & {"network", "system calls"}:
        pytest.skip("neither network namespaces nor filters of system calls are here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert outcome(confined, "connect", server.getsockname()[1]) != "done"


def test_files_are_out_of_reach(confined: Probe, kept: Path, tmp_path: Path) -> None:
    needs(confined, "files")
    (tmp_path / "secret").write_text("secret")
    assert outcome(confined, "read", kept / "model.json") == "done"
    assert outcome(confined, "read", json.__file__) == "done"
    for path in (tmp_path / "secret", "/etc/passwd", "/proc/self/environ", Path.home() / ".bashrc"):
        assert outcome(confined, "read", path) in ("PermissionError", "FileNotFoundError")


def test_nothing_is_written(confined: Probe, kept: Path, tmp_path: Path) -> None:
    needs(confined, "system calls")
    for folder in (kept, tmp_path):
        assert outcome(confined, "write", folder / "new") == "PermissionError"
        assert not (folder / "new").exists()


def test_no_process_is_started_or_reached_but_threads_are(confined: Probe) -> None:
    needs(confined, "system calls")
    assert outcome(confined, "fork") == "PermissionError"
    assert outcome(confined, "signal", os.getpid()) in ("PermissionError", "ProcessLookupError")
    assert outcome(confined, "thread") == "done"


@pytest.mark.parametrize(("what", "given"), [("run", "/bin/true"), ("trace", "")])
def test_what_only_an_intruder_tries_ends_the_process_and_is_said_in_words(
    confined: Probe, what: str, given: str
) -> None:
    needs(confined, "system calls")
    with pytest.raises(Broken, match="tried a system call that it may not make") as caught:
        outcome(confined, what, given)
    assert caught.value.reason == "crash"
    assert not confined.running


def test_memory_ends_where_the_terms_say(confined: Probe) -> None:
    assert outcome(confined, "fill", 32) == "done"
    with pytest.raises(Broken, match="took more than 128 MiB of memory") as caught:
        outcome(confined, "fill", 512)
    assert caught.value.reason == "memory"
    assert not confined.running


def test_open_files_are_few(confined: Probe) -> None:
    assert outcome(confined, "open", 100) == "OSError"


def test_processor_time_ends_by_command() -> None:
    process = probe(Terms(memory=128 * MIB, seconds=0))
    process.start()
    with pytest.raises(Broken, match="used up its processor time"):
        outcome(process, "spin")
    process.end()


def test_time_ends_when_the_parent_says(confined: Probe) -> None:
    with pytest.raises(Broken, match=r"took more than 0.1 s") as caught:
        confined.ask(Try("spin"), 0.1)
    assert caught.value.reason == "time"
    assert not confined.running


def test_secrets_of_the_environment_do_not_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LSV_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    process = probe(Terms(memory=128 * MIB, seconds=1, mode="off"))
    process.start()
    process.initialize()
    assert process._child is not None
    found = Path(f"/proc/{process._child.pid}/environ").read_bytes()
    process.end()
    assert b"PATH=" in found
    assert b"secret" not in found


def test_switched_off_it_is_a_plain_process(tmp_path: Path) -> None:
    process = probe(Terms(memory=MIB, seconds=1, mode="off"))
    process.start()
    assert outcome(process, "write", tmp_path / "new") == "done"
    assert process.measures == ()
    process.end()


# Systems that lack something


def missing(*_: object) -> None:
    raise OSError(1, "Operation not permitted")


def test_what_is_missing_is_reported_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "unshare", missing)
    (network,) = confinement.leave_network()
    assert network == Measure(
        "network", False, "not in force, Operation not permitted: the filter of system calls refuses sockets"
    )
    limited: list[str] = []
    for module, name in (
        ("limits", "set_limits"),
        ("privileges", "drop"),
        ("landlock", "read_only"),
        ("seccomp", "install"),
    ):
        monkeypatch.setattr(getattr(confinement, module), name, missing)
    monkeypatch.setattr(confinement.limits, "forbid_processes_and_files", lambda: limited.append("yes"))
    measures = confinement.confine(Terms(memory=MIB, seconds=1))
    assert not any(measure.held for measure in measures)
    assert limited == ["yes"], "limits stand in for the filter"


def test_other_systems_and_machines_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin does not have it" in confinement.leave_network()[0].found
    monkeypatch.setattr(kernel.platform, "machine", lambda: "riscv64")
    with pytest.raises(Unavailable, match="not written for riscv64"):
        kernel.machine()


def test_threads_that_run_already_are_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock.os, "listdir", lambda path: ["1", "2"])
    with pytest.raises(Unavailable, match="1 threads run already"):
        landlock.read_only([])


def test_an_operator_may_require_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    process = probe(Terms(memory=128 * MIB, seconds=1, mode="require"))
    process.measures = (
        Measure("network", False, "not in force, denied: sockets are refused"),
        Measure("files", True, ""),
    )
    with pytest.raises(ConfigError, match=r"--confinement require: .*network \(not in force, denied"):
        process._check_terms()


# The filter, run as the kernel runs it


def run_filter(machine: str, name: str, *arguments: int, process: int = 77) -> int:
    """What the program answers to a call."""
    data = {0: NUMBERS[name][machine], 4: {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]}
    data |= {16 + 8 * index: value for index, value in enumerate((*arguments, *[0] * 6)[:6])}
    program, at, loaded = seccomp.assemble(machine, process), 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        if code == 0x20:
            loaded = data[operand]
        elif code == 0x06:
            return operand
        else:
            held = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            at += yes if held else no


ALLOW, KILL, DENIED = 0x7FFF0000, 0x80000000, 0x50000
CALLS = [
    ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
    ("openat", (0, 0, os.O_WRONLY), DENIED | 13),
    ("openat", (0, 0, os.O_RDWR), DENIED | 13),
    ("openat", (0, 0, os.O_CREAT), DENIED | 13),
    ("openat", (0, 0, os.O_TRUNC), DENIED | 13),
    ("openat2", (), DENIED | 38),
    ("clone", (0x10000 | 0x100,), ALLOW),
    ("clone", (17,), DENIED | 1),
    ("clone3", (), DENIED | 38),
    ("tgkill", (77,), ALLOW),
    ("tgkill", (78,), DENIED | 1),
    ("kill", (1,), DENIED | 1),
    ("prctl", (15,), ALLOW),
    ("prctl", (22,), DENIED | 1),
    ("prlimit64", (0,), ALLOW),
    ("prlimit64", (78,), DENIED | 1),
    ("ioctl", (0, 0x5421), ALLOW),
    ("ioctl", (0, 0x5412), DENIED | 1),
    ("seccomp", (), DENIED | 1),
    *((name, (), ALLOW) for name in ("read", "mmap", "futex", "exit_group", "recvfrom")),
    *((name, (), KILL) for name in sorted(FORBIDDEN)),
]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("name", "arguments", "answer"), CALLS)
def test_the_filter_by_call(machine: str, name: str, arguments: tuple[int, ...], answer: int) -> None:
    assert run_filter(machine, name, *arguments) == answer


def test_other_numbers_of_the_same_calls_end_the_process() -> None:
    program = seccomp.assemble("x86_64", 1)
    assert program[1:3] == [(0x15, 1, 0, 0xC000003E), (0x06, 0, 0, KILL)]
    assert program[4:6] == [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, KILL)]
    assert len(program) < 4096, "the kernel takes no longer ones"
    assert max(max(yes, no) for _, yes, no, _ in program) < 256


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_system(machine: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip(f"{header} is not installed")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text(), re.MULTILINE)
    theirs = {
        name.replace("fstatat", "newfstatat") if name == "fstatat" else name: int(number) for name, number in found
    }
    assert NUMBERS.keys() >= ALLOWED | FORBIDDEN
    assert {name: numbers[machine] for name, numbers in NUMBERS.items() if machine in numbers}.items() <= theirs.items()


def test_a_system_call_reports_its_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        kernel.call(NUMBERS["close"][kernel.machine()], -1)
    assert ctypes.sizeof(ctypes.c_long) == 8
