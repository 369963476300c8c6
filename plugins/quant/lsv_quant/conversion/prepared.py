"""The folder that ``--quantization-calibration`` serves: made in a process of its own, and kept. Imports no torch."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import time
from pathlib import Path

import msgspec

from lsv.config import EngineConfig
from lsv.settings.caching import cache_root
from lsv_base.errors import ConfigError, LsvError, PluginError
from lsv_base.processes.child import Child
from lsv_base.processes.lifeline import connect
from lsv_base.processes.wire import Failed
from lsv_quant.conversion.text import read_calibration

_VERSION = 1
"""The version of what is written; folders of another one are made anew."""
_ABANDONED = 86400.0
"""Seconds after which a folder that is not complete never will be."""
_MODULE = "lsv_quant.conversion.prepared"

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True, tag=True):
    """The configuration whose weights are written to ``folder``, in its format and fitted to ``text``."""

    config: EngineConfig
    folder: str
    text: str


class Said(msgspec.Struct, frozen=True, tag=True):
    """What is done next."""

    line: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The folder is there."""


def prepare(config: EngineConfig, file: str) -> str:
    """The folder, in the cache, of a configuration's model in its weight format, fitted to the text in ``file``.

    Raises ``ConfigError`` for a text or a format that does not serve.
    """
    text = read_calibration(Path(file))
    folder = cache_root() / "lsv" / "quantized" / _fingerprint(config, text)
    if not folder.is_dir():
        _sweep(folder.parent)
        log.info("fitting %s to %s, once: the result is kept in %s", config.quantization, file, folder)
        try:
            _convert_elsewhere(Job(config, str(folder), text))
        except ConfigError:
            if not folder.is_dir():  # by another process that was faster
                raise
    return str(folder)


def _sweep(cache: Path) -> None:
    """Remove what processes that were killed have left; nobody works on a folder for a day."""
    for left in cache.glob(".*"):
        if time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)


def _fingerprint(config: EngineConfig, text: str) -> str:
    """A name that changes with the model's files, the format, the text and the version."""
    files = sorted(Path(config.model).glob("*"))
    parts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    model = (config.model, config.quantization, config.quantization_ignore, config.dtype, config.overrides)
    return hashlib.sha256(repr((_VERSION, model, parts, text)).encode()).hexdigest()[:32]


def _convert_elsewhere(job: Job) -> None:
    child: Child[Job, Said | Done]
    with Child(_MODULE, job, Said | Done) as child:
        try:
            message: Said | Done = child.receive()
            while isinstance(message, Said):
                log.info("%s", message.line)
                message = child.receive()
        except (EOFError, OSError):
            raise PluginError(f"the process that fits the weights {child.how_it_ended()} before it was done") from None


def main() -> None:
    channel = connect(int(sys.argv[1]), int(sys.argv[2]), Job)
    job = channel.receive()
    from lsv.plugins import load
    from lsv_quant.conversion.convert import convert

    try:
        catalog = load(job.config.plugins).catalog
        convert(job.config, catalog, Path(job.folder), job.text, lambda line: channel.send(Said(line)))
        channel.send(Done())
    except LsvError as error:
        channel.send(Failed(error.record()))


if __name__ == "__main__":
    main()
