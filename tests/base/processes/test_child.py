"""A child process: started, talked to, explained, ended, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lsv_base.errors import ConfigError
from lsv_base.processes.child import Child
from lsv_base.processes.output import Output
from lsv_base.processes.ports import free_port
from lsv_base.processes.process import Process
from suite.processes import is_running


class Do(msgspec.Struct, frozen=True, tag=True):
    """What the child is told."""

    what: str
    text: str = ""


class Said(msgspec.Struct, frozen=True, tag=True):
    """What it answers."""

    text: str


MODULE = """
import os, signal, sys, time
import msgspec
from lsv_base.errors import ConfigError
from lsv_base.processes.lifeline import connect
from lsv_base.processes.wire import Failed

class Do(msgspec.Struct, frozen=True, tag=True):
    what: str
    text: str = ""

class Said(msgspec.Struct, frozen=True, tag=True):
    text: str

def serve(channel):
    while True:
        try:
            do = channel.receive()
        except EOFError:
            return 0
        if do.what == "say":
            channel.send(Said(do.text))
        elif do.what == "write":  # to the descriptor that was inherited
            os.write(int(sys.argv[1]), do.text.encode())
        elif do.what == "fail":
            channel.send(Failed(ConfigError(do.text, param="x").record()))
            return 2
        elif do.what == "abort":
            os.kill(os.getpid(), signal.SIGABRT)
        elif do.what == "deafen":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            channel.send(Said("deaf"))
            time.sleep(60)
        elif do.what == "nonsense":
            channel.end.send(b"\\x01\\0\\0\\0\\xc1")
        elif do.what == "flood":  # answers first, reads after
            for _ in range(3):
                channel.send(Said("x" * 3_000_000), 20)
            channel.send(Said(channel.receive().text))
        elif do.what == "exit":
            print(do.text)
            return 3

sys.exit(serve(connect(int(sys.argv[-2]), int(sys.argv[-1]), Do)))
"""

Toy = Child[Do, Said]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Toy]:
    (tmp_path / "toy_child.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start_child(what: str = "say", text: str = "", **options: object) -> Toy:
        return Child("toy_child", Do(what, text), Said, **options)  # type: ignore[arg-type]

    return start_child


def test_it_gets_its_first_message_and_answers(start: Callable[..., Toy]) -> None:
    with start("say", "hello") as child:
        assert child.running
        assert child.receive(20) == Said("hello")
        child.send(Do("say", "x" * 3_000_000), 20)
        assert child.receive(20) == Said("x" * 3_000_000)
        child.send(Do("deafen"))  # one that hears may end by itself before it is killed
        assert child.receive(20) == Said("deaf")
    assert child.code == -signal.SIGKILL, "a with block does not wait"


def test_it_ends_when_it_is_asked_to(start: Callable[..., Toy]) -> None:
    child = start("say", "hello")
    child.receive(20)
    child.end(20)
    assert (child.code, child.how_it_ended()) == (0, "ended with exit code 0")
    child.end(20)
    assert child.reported_error(1) is None
    with pytest.raises(EOFError):
        child.receive(1)


def test_it_inherits_sockets(start: Callable[..., Toy]) -> None:
    ours, theirs = socket.socketpair()
    with ours, start("write", "over here", inherited=(theirs,)):
        theirs.close()
        ours.settimeout(20)
        assert ours.recv(100) == b"over here"


def test_the_error_it_reports_is_raised_here(start: Callable[..., Toy]) -> None:
    with start("fail", "no such thing") as child, pytest.raises(ConfigError, match="no such thing") as caught:
        child.receive(20)
    assert caught.value.param == "x"


def test_the_error_it_reports_can_be_asked_for(start: Callable[..., Toy]) -> None:
    with start("say", "something else first") as child:
        child.send(Do("fail", "no such thing"))
        error = child.reported_error(20)
        assert isinstance(error, ConfigError)
        assert child.wait(20) == 2
    with start("say") as child:
        began = time.monotonic()
        assert child.reported_error(0.2) is None
        assert time.monotonic() - began < 5


def test_a_signal_that_killed_it_is_told(start: Callable[..., Toy]) -> None:
    with start("abort") as child:
        with pytest.raises(EOFError):
            child.receive(20)
        assert child.wait(20) == -6
        assert child.how_it_ended() == "was killed by signal 6"
        with pytest.raises(BrokenPipeError):
            child.send(Do("say"))


def test_a_message_may_take_so_long(start: Callable[..., Toy]) -> None:
    with start("say", "hello") as child:
        child.receive(20)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            child.receive(0.1)
        assert time.monotonic() - began < 5
        child.send(Do("say", "again"))
        assert child.receive() == Said("again")


def test_two_ends_that_send_at_once_do_not_wait_for_each_other(start: Callable[..., Toy]) -> None:
    """Each message is more than a socket holds; neither end comes to reading before its own has been taken."""
    with start("flood") as child:
        child.send(Do("say", "y" * 3_000_000), 20)
        lengths = [len(child.receive(20).text) for _ in range(4)]
        assert lengths == [3_000_000] * 4


def test_one_that_does_not_read_is_not_waited_for(start: Callable[..., Toy]) -> None:
    with start("deafen") as child:
        assert child.receive(20) == Said("deaf")
        with pytest.raises(TimeoutError):
            child.send(Do("say", "x" * 3_000_000), 0.1)


def test_an_end_can_be_told_while_the_other_is_still_heard(start: Callable[..., Toy]) -> None:
    with start("say", "last words") as child:
        child.channel.end_sending()
        assert child.receive(20) == Said("last words")
        assert child.wait(20) == 0
        with pytest.raises(EOFError):
            child.receive(1)


def test_what_is_no_message_is_an_error(start: Callable[..., Toy]) -> None:
    with start("nonsense") as child, pytest.raises(ValueError, match="byte"):
        child.receive(20)


def test_one_that_does_not_end_is_killed_at_its_deadline(start: Callable[..., Toy]) -> None:
    with start("deafen") as child:
        assert child.receive(20) == Said("deaf")
        child.send_signal(signal.SIGTERM)
        assert child.wait(0.2) is None
        began = time.monotonic()
        child.end(0.2)
        assert 0.15 < time.monotonic() - began < 5
        assert child.code == -signal.SIGKILL
    assert not Path(f"/proc/{child.pid}").exists(), "it was left as a zombie"


def test_what_it_prints_is_kept(start: Callable[..., Toy]) -> None:
    with Output() as output, start("exit", "one\ntwo\nthree\n\n", stdout=output.fileno()) as child:
        assert child.wait(20) == 3
        assert output.last_lines(2) == ["two", "three"]
        assert output.last_lines(9) == ["one", "two", "three"]
    with Output() as output:
        assert output.last_lines(1) == []


@pytest.mark.parametrize("own_group", [False, True])
def test_a_group_of_its_own_is_left_alone_by_the_terminal(start: Callable[..., Toy], own_group: bool) -> None:
    with start("say", own_group=own_group) as child:
        child.receive(20)
        assert (os.getpgid(child.pid) == child.pid) == own_group


def test_all_of_a_group_is_ended() -> None:
    command = "import os, time; print(os.fork(), flush=True); time.sleep(60)"
    with Output() as output, Process([sys.executable, "-c", command], own_group=True, stdout=output.fileno()) as leader:
        wait_for(lambda: len(output.last_lines(2)) == 2)
        others = {int(line) for line in output.last_lines(2)} - {0}
        leader.end()
    wait_for(lambda: not any(is_running(pid) for pid in others))


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(OSError, match="nobody"):
        Process(["/nobody/at/home"])


def test_it_dies_with_its_parent(start: Callable[..., Toy], tmp_path: Path) -> None:
    (tmp_path / "toy_parent.py").write_text(
        "import time, msgspec; from lsv_base.processes.child import Child\n"
        "class Do(msgspec.Struct, frozen=True, tag=True):\n    what: str\n    text: str\n"
        "class Said(msgspec.Struct, frozen=True, tag=True):\n    text: str\n"
        "child = Child('toy_child', Do('deafen', ''), Said, own_group=True)\n"
        "child.receive(20); print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-m", "toy_parent"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    wait_for(lambda: not is_running(child))


def test_ports_are_free() -> None:
    for host in ("127.0.0.1", ""):
        with socket.socket() as listener:
            listener.bind((host, free_port(host)))


def test_a_child_costs_no_torch() -> None:
    script = "import sys, lsv_base.processes.child, lsv_base.processes.lifeline; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_it_ends_without_a_search_for_cycles() -> None:
    """Python looks for them after what was registered for its end has run: nothing is left to look through."""
    script = (
        "import atexit, gc, os; from lsv_base.processes.lifeline import die_with; "
        "atexit.register(lambda: print(gc.get_freeze_count() > 0)); die_with(os.getppid())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
