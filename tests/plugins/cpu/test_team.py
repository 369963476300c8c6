"""The thread team among several engines, across forks, and where the system gives no more."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from lsv_base.errors import ConfigError
from lsv_cpu import native
from lsv_cpu.linear import LinearRecord, PanelLinear
from lsv_cpu.team import set_team

COMMON = """
import ctypes, os, threading
import torch
from lsv_cpu import native
from lsv_cpu.linear import LinearRecord

library = native.load("auto")
ROWS, SIZE = 64, 4096
X = torch.randn(ROWS, SIZE)
WEIGHT = torch.ones(SIZE)


def norm():
    out = torch.zeros_like(X)
    library.lsv_rms_norm(0, X.data_ptr(), WEIGHT.data_ptr(), out.data_ptr(), ROWS, 1, SIZE, SIZE, 1e-6)
    return out


def layer(outputs=64, inputs=512):
    record = LinearRecord(0, 1, 0, 0, outputs, inputs)
    panels = library.lsv_panels(ctypes.byref(record))
    held = (
        torch.zeros(panels * library.lsv_panel_bytes(ctypes.byref(record)) + 64, dtype=torch.uint8),
        torch.zeros(panels * 32), torch.zeros(panels * 32, dtype=torch.int32),
    )
    record.panels = held[0].data_ptr() + -held[0].data_ptr() % 64
    record.scales, record.sums = held[1].data_ptr(), held[2].data_ptr()
    weights, scales = torch.ones(outputs, inputs, dtype=torch.int8), torch.ones(outputs)
    library.lsv_pack(ctypes.byref(record), weights.data_ptr(), scales.data_ptr())
    return record, held


def multiply(record, x):
    out = torch.zeros(len(x), record.outputs)
    assert not library.lsv_linear(ctypes.byref(record), x.data_ptr(), x.stride(0), len(x), out.data_ptr())
    return out
"""


@pytest.fixture(autouse=True)
def library() -> ctypes.CDLL:
    found = native.load("auto")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def run(script: str, *, seconds: float = 120.0) -> None:
    """In a process of its own, which may crash or hang."""
    paths = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
    command = [sys.executable, "-c", paths + COMMON + script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as ended:
        try:
            said = ended.communicate(timeout=seconds)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ended.pid, signal.SIGKILL)  # forked processes that hang, too
    how = signal.Signals(-ended.returncode).name if ended.returncode < 0 else f"exit code {ended.returncode}"
    assert ended.returncode == 0, f"{how}: {said[-2000:]}"


FORK = """
def forked():
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(norm(), wanted) else 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

library.lsv_set_team(3, None)
wanted = norm()
"""


def test_a_forked_process_computes_with_threads_of_its_own() -> None:
    run(FORK + "assert forked() == 0\nassert torch.equal(norm(), wanted)\n")


def test_a_fork_waits_for_what_another_thread_computes() -> None:
    run(
        FORK
        + """
ended = threading.Event()

def compute():
    while not ended.is_set():
        norm()

threads = [threading.Thread(target=compute) for _ in range(2)]
for thread in threads:
    thread.start()
codes = {forked() for _ in range(20)}
ended.set()
for thread in threads:
    thread.join()
assert codes == {0}, codes
"""
    )


def test_a_second_engine_may_change_the_team_while_the_first_computes() -> None:
    run(
        """
record, held = layer()
x = torch.randn(40, 512)
wanted = multiply(record, x)
ended = threading.Event()
wrong = []

def compute():
    while not ended.is_set():
        library.lsv_wake_team()
        if not torch.equal(multiply(record, x), wanted):
            wrong.append(1)

threads = [threading.Thread(target=compute) for _ in range(2)]
for thread in threads:
    thread.start()
for count in range(300):
    library.lsv_set_team(1 + count % 2 * 12, None)
ended.set()
for thread in threads:
    thread.join()
assert not wrong
"""
    )


_TURN = """
#include <atomic>
#include <thread>

#include "team.h"
using namespace lsv;
extern "C" int members_change() {
  std::thread other;
  std::atomic<bool> asked{false};
  int before, members = 0;
  {
    Turn turn;
    before = turn.members();
    other = std::thread([&] {
      asked = true;
      lsv_set_team(before + 2, nullptr);
    });
    while (!asked) std::this_thread::yield();
    for (int i = 0; i < 200; ++i) std::this_thread::yield();
    turn.run([&](Member& me) { if (!me.rank) members = me.size; });
  }
  other.join();
  int after = lsv_team_size();
  lsv_set_team(before, nullptr);
  return members != before || after != before + 2;
}
"""


def test_the_team_is_the_same_from_sizing_memory_to_the_end_of_a_region(library: ctypes.CDLL, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    (tmp_path / "turn.cpp").write_text(_TURN)
    sources = Path(native.__file__).parent / "native"
    command = [compiler, "-std=gnu++17", "-fPIC", "-shared", "-pthread", f"-I{sources}", "turn.cpp", library._name]
    subprocess.run([*command, "-o", "turn.so"], cwd=tmp_path, check=True, timeout=120)
    assert ctypes.CDLL(str(tmp_path / "turn.so")).members_change() == 0


def test_memory_the_system_refuses_is_an_error() -> None:
    run(
        """
record, held = layer()
x, out = torch.zeros(1, 512), torch.zeros(1, 64)
status = library.lsv_linear(ctypes.byref(record), x.data_ptr(), 512, 1 << 42, out.data_ptr())
assert "refuses memory" in str(native.refusal(status)), "there are not so many bytes"
assert multiply(record, torch.ones(1, 512))[0, 0] == 512, "and what fits is computed"
"""
    )


def test_threads_the_system_refuses_are_an_error_and_the_team_stays() -> None:
    run(
        """
import resource
from lsv_base.errors import ConfigError
from lsv_cpu.team import set_team

set_team(3, None)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)  # a thread takes 8 MiB for its stack
try:
    set_team(2000, None)
except ConfigError as refused:
    assert "cpu.threads=2000" in refused.message, refused.message
    assert "ulimit -u" in refused.message
else:
    raise AssertionError("no system has room for so many")
assert library.lsv_team_size() == 3
assert torch.equal(norm(), norm())
"""
    )


def test_a_team_of_the_same_size_without_pins_is_another(library: ctypes.CDLL) -> None:
    def places() -> list[str]:
        tasks = Path("/proc/self/task").iterdir()
        lists = [
            line for task in tasks for line in (task / "status").read_text().splitlines() if "allowed_list" in line
        ]
        return [line.split()[1] for line in lists if line.startswith("Cpus")]

    set_team(1, None)
    before = sorted(places())
    set_team(2, {0, 1} if len(before[0]) > 1 else {0})
    set_team(2, None)
    assert set(places()) == set(before), "no thread is left pinned"
    set_team(1, None)


def test_a_layer_without_memory_raises() -> None:
    class Refusing:
        def lsv_linear(self, *_: object) -> int:
            return 1

    kernel = PanelLinear.__new__(PanelLinear)
    kernel._library, kernel._width, kernel.record = Refusing(), 4, LinearRecord()  # type: ignore[assignment]
    with pytest.raises(MemoryError, match="the system refuses memory"):
        kernel.forward(torch.ones(1, 4))


def test_refused_threads_name_the_setting(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def lsv_set_team(self, threads: int, cores: object) -> int:
            return 2

    monkeypatch.setattr(native, "library", Refusing)
    with pytest.raises(ConfigError, match=r"cpu\.threads=7 is not possible: .* refuses threads"):
        set_team(7, None)
