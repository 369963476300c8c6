"""What the tests of rows started, as last seen: ``tests/evidence.json``.

    make evidence    run the fast tests of rows and write down what they started

A test of a row (``@pytest.mark.row``) starts things in its fixtures and in its body. ``tools/compatibility.py`` derives
the word for a row from them, so nobody chooses the word by hand. ``make test`` fails if a test starts something else
than the file says.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[3] / "tests" / "evidence.json"
ENGINE, COMMAND, SERVER, SETTINGS = "engine", "command", "server", "settings"
"""Things that tests start. An engine, that is a worker with a real model, and a command are followed by their platform,
and by "emulated" where it runs without its device. A server answers HTTP requests in the test's own process, often
before a fake engine. Settings are read from a command line, from variables or from arguments; they count alone, since
whatever else starts has settings, too, and tests that share an engine read none. Where caches and logs are, lsv reads
once in a process, whatever test comes first: that does not count."""

Evidence = dict[str, dict[str, list[str]]]
"""By test without parameters, what its ``fast`` and its ``slow`` cases started, sorted."""


def read(file: Path) -> Evidence:
    return json.loads(file.read_text()) if file.exists() else {}


class Witness:
    """A pytest plugin in the process that runs tests. Adds what a test started to its report.

    Tests share fixtures, so what a fixture started counts for every test that uses it.
    """

    NAME = "evidence"

    def __init__(self) -> None:
        self._open: list[set[str]] = [set()]
        self._of_fixtures: dict[object, set[str]] = {}
        self._patches = pytest.MonkeyPatch()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if any(item.get_closest_marker("row") for item in session.items):
            watch(self._patches, lambda thing: self._open[-1].add(thing))

    def pytest_sessionfinish(self) -> None:
        self._patches.undo()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        self._open.append(set())
        try:
            return (yield)
        finally:
            started = self._of_fixtures[fixturedef] = self._open.pop()
            self._open[-1] |= started  # a fixture that asked for this one

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._open = [set()]
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            used = (definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values())
            started = self._open[-1].union(*(self._of_fixtures.get(each, ()) for each in used))
            item.user_properties.append((self.NAME, sorted(started - {SETTINGS} or started)))


def watch(patches: pytest.MonkeyPatch, seen: Callable[[str], None]) -> None:
    """Call ``seen`` whenever this process starts one of the things above."""
    from sanic import Sanic

    from lsv.cli import main
    from lsv.engine.engine import Engine
    from lsv.engine.socket_client import SocketClient
    from lsv.settings import Settings, options
    from lsv_runtime.worker.worker import Worker

    def before(owner: Any, name: str, describe: Callable[..., str | None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            thing = describe(*args, **kwargs)
            if thing is not None:
                seen(thing)
            return original(*args, **kwargs)

        patches.setattr(owner, name, call)

    before(Worker, "start", lambda worker, *_, **__: _engine(worker._config))
    before(Engine, "submit", lambda engine, *_, **__: _engine(engine.config) if _is_real(engine._executor) else None)
    before(SocketClient, "__init__", lambda client, config, *_, **__: _engine(config))
    own = {setting.name for setting in (*options.CACHING, *options.LOGGING)}
    before(Settings, "__init__", lambda _, declared, *__, **___: None if declared.by_name.keys() <= own else SETTINGS)
    before(Sanic, "handle_request", lambda *_, **__: SERVER)
    before(main, "_dispatch", lambda arguments: _command(arguments, {}))
    before(subprocess.Popen, "__init__", _process)


def _is_real(executor: object) -> bool:
    return type(executor).__module__.startswith("lsv_runtime.worker.")


def _engine(config: Any) -> str:
    return f"{ENGINE} {config.platform}{' emulated' if config.emulate else ''}"


def _process(_: object, args: Any, *positional: Any, **options: Any) -> str | None:
    """A process that runs lsv, or a Python program; None for compilers, shells and lsv's own processes."""
    words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    environment = options.get("env") or {}
    if words[1:3] == ["-m", "lsv"]:
        return _command(words[3:], environment)
    if words and Path(words[0]).name == "lsv":
        return _command(words[1:], environment)
    if words and words[0] == sys.executable and words[1:2] and words[1].endswith(".py"):
        return _command(words[2:], environment)
    return None


def _command(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command and its platform, where the arguments or the environment name one."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    names = (
        words[place + 1] for place, word in enumerate(words[:-1]) if word in ("--platform", "--device", "--hardware")
    )
    platform = next(names, environment.get("LSV_PLATFORM", ""))
    emulated = "--emulate" in words or "LSV_EMULATE" in environment
    return " ".join(filter(None, (COMMAND, platform, "emulated" if emulated else "")))


class Record:
    """A pytest plugin in the process that gathers reports: writes what the tests of rows started to the file ``renew``,
    or compares it with ``FILE``.
    """

    def __init__(self, renew: Path | None = None) -> None:
        self._renew = renew
        self._started: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "row" in report.keywords:
            kind = "slow" if "slow" in report.keywords else "fast"
            for name, things in report.user_properties:
                if name == Witness.NAME:
                    self._started[_test_of(report.nodeid), kind].update(things)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._renew:
            self._write(self._renew)
        elif self._started and session.testsfailed == 0:
            self._compare(session)

    def _write(self, file: Path) -> None:
        """Tests that did not run keep their entries; tests of deleted modules lose them."""
        known = read(file)
        for (test, kind), things in self._started.items():
            known.setdefault(test, {})[kind] = sorted(things)
        root = FILE.parents[1]
        there = {test: known[test] for test in sorted(known) if (root / test.partition("::")[0]).exists()}
        lines = ",\n".join(f"  {json.dumps(test)}: {json.dumps(kinds)}" for test, kinds in there.items())
        file.write_text(f"{{\n{lines}\n}}\n")

    def _compare(self, session: pytest.Session) -> None:
        """Fail the run if the file differs from what was started."""
        known = read(FILE)
        wrong = [
            f"{test} ({kind}): started {sorted(things) or 'nothing'}, {FILE.name} says {known.get(test, {}).get(kind)}"
            for (test, kind), things in sorted(self._started.items())
            if known.get(test, {}).get(kind) != sorted(things)
        ]
        if wrong:
            print("\n".join(("", *wrong, f"run make evidence, or renew {FILE.name} by the tests that changed")))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _test_of(nodeid: str) -> str:
    """A test without its parameters, and without the group that xdist adds: ``file::test[1]@group``."""
    return nodeid.partition("@")[0].partition("[")[0]
