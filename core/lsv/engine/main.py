"""The engine's own process: ``python -m lsv.engine.main LISTENER LIFELINE PARENT``, two sockets and a process id."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from functools import partial
from typing import Any

from lsv import plugins
from lsv.config import EngineConfig
from lsv.engine import report
from lsv.engine.engine import Engine
from lsv.engine.loop import EngineLoop
from lsv.engine.messages import Boot, Failed
from lsv.engine.parts.made import make_parts
from lsv.offers import ExecutorOffer, PolicyOffer
from lsv.plugins import Plugins
from lsv.plugins.guarded_policy import GuardedPolicy
from lsv.resolve.hardware import load_platform
from lsv.settings import export
from lsv_base.errors import EngineDied, LsvError
from lsv_base.processes import heap
from lsv_base.processes.lifeline import die_with, dump_stacks_on_request
from lsv_base.processes.wire import FrameReader, encode_frame

log = logging.getLogger(__name__)


def main(listener: int, lifeline: int, parent: int) -> int:
    """Run an engine process; exit codes: 0 told to stop, 1 failed, 2 could not start."""
    gc.disable()  # nearly all objects made by a start live on, and tracing them takes a tenth of the time
    heap.share_arenas()
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and stops us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    dump_stacks_on_request()
    channel = socket.socket(fileno=lifeline)
    boot = _read_boot(channel)
    report.set_up_logging(boot.config, boot.log_level)
    try:
        loaded = plugins.load(boot.config.plugins)
        engine = make_engine(boot.config, loaded)
    except LsvError as error:
        log.error("%s", error.message)
        channel.sendall(encode_frame(Failed(error.record())))
        return error.exit_code
    try:
        return _serve(EngineLoop(engine, socket.socket(fileno=listener), channel), boot.config, loaded)
    finally:
        engine.close()


def _serve(loop: EngineLoop, config: EngineConfig, loaded: Plugins) -> int:
    try:
        report.log_config(config)
        fit = loop.load()
        gc.freeze()  # from now on only new objects are traced
        gc.enable()
        report.log_fit(config, fit)
        loaded.call("lsv_engine_started", config=config)
        try:
            loop.run()
        finally:
            loaded.call("lsv_engine_stopped", config=config)
    except LsvError as error:
        log.error("%s", error.message)
        loop.fail(error)
        return error.exit_code
    except Exception as cause:
        log.exception("the engine failed")
        loop.fail(EngineDied(f"the engine failed: {type(cause).__name__}: {cause}; its log has the traceback"))
        return 1
    return 0


def make_engine(config: EngineConfig, loaded: Plugins) -> Engine[Any]:
    """An engine with the executor and the policy its configuration names; nothing is loaded yet."""
    catalog = loaded.catalog
    # executors import torch, and some libraries of hardware look at their variables when torch is imported
    export(load_platform(config.platform, catalog, emulate=config.emulate).environment(config.options))
    executor = catalog.load(catalog.find(ExecutorOffer, config.executor))(catalog)
    offer = catalog.find(PolicyOffer, config.policy)
    policy = GuardedPolicy(catalog.load(offer)(), offer.name, catalog.provider(offer))
    return Engine(config, executor, policy, parts=partial(make_parts, catalog))


def _read_boot(channel: socket.socket) -> Boot:
    reader: FrameReader[Boot] = FrameReader(Boot)
    while data := channel.recv(1 << 16):
        for boot in reader.feed(data):
            return boot
    sys.exit(1)  # the parent has gone already


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
