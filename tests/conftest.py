"""What holds for every test."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# Triton's interpreter multiplies with numpy, and OpenBLAS's kernels for AVX2 give a row other bits at another place in
# a matrix, which no GPU does. Its kernels for AVX do not; numpy reads this when it is imported, by torch at the latest.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"

import torch

from lsv.plugins import packages
from suite import durations, evidence
from suite.engines import Engines
from suite.heap import Heap
from suite.order import ModuleScheduling, put_longest_first
from suite.zygote.plugin import Zygotes

if TYPE_CHECKING:
    from xdist.remote import Producer

# Without a GPU, Triton's kernels are interpreted. Triton reads this when it is imported, which transformers does too.
_GPU = torch.cuda.is_available() or torch.xpu.is_available()
os.environ.setdefault("TRITON_INTERPRET", "0" if _GPU else "1")

# Seeding kinds of devices that are not here writes a stack trace down for each of them.
_seed = torch.manual_seed if _GPU else torch.default_generator.manual_seed

# What make fuzz runs the machines with.
settings.register_profile("fuzz", max_examples=500)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fork", action="store_true", help="fork processes that would import much, see suite.zygote")
    parser.addoption("--renew-durations", action="store_true", help="write what tests take to tests/durations.json")
    parser.addoption("--renew-evidence", nargs="?", const=evidence.FILE, type=Path, metavar="FILE",
                     help="write what tests of rows start, to tests/evidence.json if no file is named")  # fmt: skip
    parser.addoption("--check-evidence", action="store_true", help="fail if tests of rows start something else")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(LongestFirst())
    elif config.getoption("--renew-durations"):
        config.pluginmanager.register(durations.Stopwatch())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", 0):
        config.pluginmanager.register(evidence.Witness())
        if config.getoption("--fork") and sys.platform == "linux" and not _GPU:  # drivers do not survive forks
            config.pluginmanager.register(Zygotes())
    renew = config.getoption("--renew-evidence")
    if not hasattr(config, "workerinput") and (renew or config.getoption("--check-evidence")):
        config.pluginmanager.register(evidence.Record(renew))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ModuleScheduling | None:
    return ModuleScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a matrix is slow but for the values that ``daily`` names: any of its marks, all values of that one."""
    for item in items:
        choices = [mark.kwargs for mark in item.iter_markers("daily")]
        if choices and not any(all(item.callspec.params[name] in few for name, few in one.items()) for one in choices):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: nearly all that importing test modules makes stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


class LongestFirst:
    """On a worker, once the tests that do not run are gone."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        put_longest_first(items, durations.expect(config.option.markexpr))


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers whichever ran before it."""
    _seed(0)


_LOGGERS = [logging.getLogger(name) for name in ("", *packages())]


@pytest.fixture(autouse=True)
def same_loggers() -> Iterator[None]:
    """How much a command or an engine of this process logs ends with the test that ran it."""
    levels = [logger.level for logger in _LOGGERS]
    yield
    for logger, level in zip(_LOGGERS, levels, strict=True):
        if logger.level != level:
            logger.setLevel(level)


_HEAP = Heap()


@pytest.fixture(autouse=True, scope="module")
def old_objects() -> Iterator[None]:
    """What was imported and made before a module stays: engines of its tests need not look for garbage there.

    What a module leaks, such as an open socket, fails its own last test and none of the next module.
    """
    _HEAP.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def imported_objects() -> Iterator[None]:
    """The same for what a test, or a fixture before it, has imported."""
    yield
    _HEAP.freeze_imports()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest looks for garbage five times at the end, and would traverse all that is left each time."""
    _HEAP.freeze()


@pytest.fixture(scope="module")
def module_engines() -> Iterator[Engines]:
    """The engines of ``engine_for``."""
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture
def engine_for(module_engines: Engines) -> Iterator[Engines]:
    """Engines that the module's tests share: ``engine_for(checkpoint, **options)``, see ``Engines``.

    A test that leaves a request in a shared engine, or loses a block, fails.
    """
    yield module_engines
    module_engines.check()
