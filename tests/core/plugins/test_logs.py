"""How processes log: as the operator's file says, a line an event, or not as lsv likes at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import plugins
from lsv.plugins import logs
from lsv.settings import Declared, Given, Settings, gather, options
from lsv_base.errors import ConfigError
from lsv_base.processes.logs import apply_file

FILE = {
    "version": 1,
    "formatters": {"json": {"class": "vllm.logging_utils.NewLineFormatter", "format": "<%(name)s %(message)s>"}},
    "handlers": {"file": {"class": "logging.FileHandler", "formatter": "json"}},
    "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
}


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LSV_LOG_CONFIG_FILE", "VLLM_LOGGING_CONFIG_PATH", "LSV_CONFIGURE_LOGGING", "VLLM_CONFIGURE_LOGGING"):
        monkeypatch.setenv(name, "")
    root, ours = logging.getLogger(), logging.getLogger("lsv")
    kept = root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate
    root.handlers.clear()
    yield
    for handler in {*root.handlers, *ours.handlers} - {*kept[0], *kept[2]}:
        handler.close()
    root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate = kept


def write(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A file of a configuration, and the log it writes."""
    log, file = folder / "x.log", folder / "logging.json"
    content = {**FILE, **changes}
    content["handlers"]["file"]["filename"] = str(log)
    file.write_text(json.dumps(content))
    return file, log


def settings(**given: Any) -> Settings:
    return gather(Declared(options.COMMON), {name: Given(value, f"flag --{name}") for name, value in given.items()})


@pytest.mark.row("F-827")
def test_a_file_made_for_vllm_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, log = write(tmp_path)
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(file))
    there = logging.getLogger("lsv.there.already")
    logs.set_up("never", "error")
    there.info("hello")
    assert log.read_text() == "<lsv.there.already hello>\n"


def test_a_file_holds_for_the_packages_of_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, log = write(tmp_path)
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(file))
    logs.set_up("never", "error", plugins.packages())
    for name in ("lsv_base.x", "lsv_runtime.x", "lsv_cpu.x"):
        logging.getLogger(name).info("hello")
        assert log.read_text().splitlines()[-1] == f"<{name} hello>"
    for name in plugins.packages() - {"lsv"}:  # for the tests after this one
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def test_plugins_are_as_talkative_as_lsv() -> None:
    for level in ("info", "error"):
        logs.set_up("%(message)s", level, plugins.packages())
        said = {logging.getLogger(name).level for name in ("lsv", "lsv_base", "lsv_cpu", "lsv_triton")}
        assert said == {getattr(logging, level.upper())}


def test_a_flag_holds_for_the_processes_that_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, log = write(tmp_path)
    logs.adopt(settings(log_config_file=str(file)))
    logs.set_up("never")  # as a child does, by the variables it inherits
    logging.getLogger("lsv.x").info("hello")
    assert log.read_text() == "<lsv.x hello>\n"


@pytest.mark.row("F-826")
def test_logging_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger().handlers.clear()
    logs.set_up("never", "debug")
    assert logging.getLogger().handlers == []
    own = logging.NullHandler()
    logging.getLogger().addHandler(own)
    logs.adopt(gather(Declared(options.COMMON), {}))
    assert logging.getLogger().handlers == [own]
    assert logging.getLogger("lsv").level != logging.DEBUG


def test_otherwise_it_is_a_line_an_event() -> None:
    logging.getLogger().handlers.clear()
    logs.set_up("%(message)s", "debug")
    assert len(logging.getLogger().handlers) == 1
    assert logging.getLogger("lsv").level == logging.DEBUG


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2}', '{"version": 1, "handlers": {"a": {"class": "no.such"}}}']
)
def test_a_file_that_can_not_be_used(tmp_path: Path, text: str) -> None:
    file = tmp_path / "logging.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"log config file .*logging\.json can't be used"):
        apply_file(str(file), ["lsv"])


def test_a_file_and_no_logging_contradict_each_other(tmp_path: Path) -> None:
    file, _ = write(tmp_path)
    with pytest.raises(ConfigError, match="leave one out"):
        logs.adopt(settings(log_config_file=str(file), configure_logging=False))
