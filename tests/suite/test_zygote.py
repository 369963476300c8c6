"""A process that a zygote forks is as one that is started, but for the time it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from suite.processes import is_running
from suite.waiting import wait_until
from suite.zygote import asker
from suite.zygote.asker import Asker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="zygotes are for Linux")

# Readline sets LINES and COLUMNS in the tests' process, where os.environ does not show them.
DESCRIBE = """
    import json, os, resource, signal, sys
    print(json.dumps({
        "words": sys.argv, "name": __name__, "folder": os.getcwd(), "path": sys.path, "input": sys.stdin.read(),
        "environment": {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")},
        "parent": os.getppid(), "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "descriptors": [os.fstat(int(number)).st_ino for number in sys.argv[1:]],
        "open": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "cores": sorted(os.sched_getaffinity(0)), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "line": open("/proc/self/cmdline").read().rstrip("\\0"), "lines": sys.stdout.line_buffering,
    }))
    print("heard", file=sys.stderr)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda body: (tmp_path / "toy.py").write_text(textwrap.dedent(body))


@pytest.fixture
def forking(write: object) -> Iterator[Asker]:
    """Has the next ``python -m toy`` start a zygote, for it is the second one."""
    made = Asker({}, 1, {"toy": ()})
    made.install()
    subprocess.run(COMMAND, check=False, capture_output=True)
    yield made
    made.close()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that zygotes have forked for this one."""
    found: list[int] = []
    fork = asker.Zygote.fork

    def watched(*given: Any) -> int | None:
        pid = fork(*given)
        found.extend([pid] if pid else [])
        return pid

    monkeypatch.setattr(asker.Zygote, "fork", watched)
    return found


COMMAND = [sys.executable, "-m", "toy"]


def compare(forking: Asker, forked: list[int], *words: str, **options: Any) -> dict[str, Any]:
    """What the process says of itself, which is the same forked and started, but for the way to its zygote."""

    def describe() -> dict[str, Any]:
        done = subprocess.run([*COMMAND, *words], text=True, capture_output=True, check=True, **options)
        assert done.stderr == "heard\n"
        return json.loads(done.stdout)

    found = describe()
    assert len(forked) == 1
    with forking.paused():
        started = describe()
    assert len(forked) == 1
    assert len(set(found.pop("open")).difference(started.pop("open"))) == 1
    assert {name: (found[name], started[name]) for name in found if found[name] != started[name]} == {}
    return found


def test_a_forked_process_finds_what_a_started_one_finds(
    write: Callable[[str], None], forking: Asker, forked: list[int], tmp_path: Path
) -> None:
    write(DESCRIBE)
    (tmp_path / "folder").mkdir()
    environment = {**os.environ, "LSV_THING": "a=b\nc"}
    found = compare(forking, forked, input="some input", cwd=tmp_path / "folder", env=environment)
    assert found["parent"] == os.getpid()
    assert (found["folder"], found["input"]) == (str(tmp_path / "folder"), "some input")
    assert found["environment"]["LSV_THING"] == "a=b\nc"


@pytest.mark.parametrize(("option", "leads"), [({"process_group": 0}, [1, 0]), ({"start_new_session": True}, [1, 1])])
def test_it_leads_a_group_or_a_session(
    write: Callable[[str], None], forking: Asker, forked: list[int], option: dict[str, Any], leads: list[int]
) -> None:
    write(DESCRIBE)
    assert compare(forking, forked, input="", **option)["leads"] == leads


def test_it_has_the_descriptors_it_is_to_have(
    write: Callable[[str], None], forking: Asker, forked: list[int], tmp_path: Path
) -> None:
    write(DESCRIBE)
    with (tmp_path / "one").open("w") as one, (tmp_path / "other").open("w") as other:
        numbers = [other.fileno(), one.fileno()]
        found = compare(forking, forked, *map(str, numbers), input="", pass_fds=numbers)
    assert found["descriptors"] == [(tmp_path / name).stat().st_ino for name in ("other", "one")]


def test_it_ignores_the_signals_that_its_parent_ignores(
    write: Callable[[str], None], forking: Asker, forked: list[int]
) -> None:
    write(DESCRIBE)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGUSR2)}
    try:
        found = compare(forking, forked, input="")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert {signal.SIGINT, signal.SIGUSR2} < set(found["ignored"])


def test_a_terminal_is_one(write: Callable[[str], None], forking: Asker, forked: list[int]) -> None:
    write("import sys; print(sys.stdout.line_buffering, sys.stdin.isatty())")
    leader, terminal = os.openpty()
    subprocess.run(COMMAND, stdin=terminal, stdout=terminal, check=True)
    assert os.read(leader, 100).split() == [b"True", b"True"]
    assert len(forked) == 1
    os.close(leader)
    os.close(terminal)


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('error: no')", 1, "error: no"),
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("import os; os._exit(7)", 7, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import signal; signal.raise_signal(signal.SIGINT)", -2, "KeyboardInterrupt"),
        ("import a_module_that_is_not_there", 1, "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ],
)  # fmt: skip
def test_it_ends_as_a_started_one_does(
    write: Callable[[str], None], forking: Asker, forked: list[int], body: str, code: int, error: str
) -> None:
    write(body)
    ends = []
    for _ in range(2):
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
        ends.append((done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]))
    with forking.paused():
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert ends == [(done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1])] * 2
    assert ends[0] == (code, "", error)
    assert len(forked) == 2


def test_what_it_starts_is_forked_too_and_dies_with_it(
    write: Callable[[str], None], forking: Asker, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asker, "COMMANDS", {"toy": ()})
    write("""
        import os, subprocess, sys, time
        from lsv_base.processes.lifeline import die_with
        if len(sys.argv) > 1:
            die_with(int(sys.argv[1]))
            print(os.getpid(), os.getppid(), "suite.zygote.main" in sys.modules, flush=True)
            time.sleep(60)
        else:
            subprocess.run([sys.executable, "-m", "toy", str(os.getpid())])
    """)
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        child, parent, is_forked = process.stdout.readline().split()
        assert (int(parent), is_forked) == (process.pid, "True")
        process.kill()
    wait_until(lambda: not is_running(int(child)))


def test_other_variables_that_are_read_at_the_start_take_effect(
    write: Callable[[str], None], forking: Asker, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("import time; print(time.localtime(0).tm_hour)")
    for zone, hour in (("UTC", b"0\n"), ("UTC-5", b"5\n"), ("UTC-5", b"5\n")):
        assert subprocess.check_output(COMMAND, env={**os.environ, "TZ": zone}) == hour
    assert subprocess.check_output(COMMAND) == b"0\n"
    assert len(forked) == 1, "there is one zygote, and it has been started without TZ"


def test_commands_start_cold_once_the_zygote_is_gone(
    write: Callable[[str], None], forking: Asker, forked: list[int]
) -> None:
    write("import os; print(os.getppid())")
    subprocess.check_output(COMMAND)
    (zygote,) = forking._zygotes.values()
    zygote._process.kill()
    zygote._process.wait()
    assert int(subprocess.check_output(COMMAND)) == os.getpid()
    assert len(forked) == 1


def test_threads_start_processes_at_the_same_time(
    write: Callable[[str], None], forking: Asker, forked: list[int]
) -> None:
    write("import sys; print(sys.stdin.read() + sys.argv[1])")

    def ask(number: int) -> str:
        return subprocess.run([*COMMAND, "!"], input=str(number), capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(12))) == [f"{number}!\n" for number in range(12)]
    assert len(set(forked)) == 12


def test_a_process_that_ends_leaves_no_other(write: Callable[[str], None], forking: Asker) -> None:
    """Its zygote has ended before."""
    write("""
        import os, pathlib
        print(*pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    """)
    (zygote,) = map(int, subprocess.check_output(COMMAND).split())
    assert not Path(f"/proc/{zygote}").exists()
