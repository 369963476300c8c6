"""``lsv serve [MODEL]``: an engine process, or one for each replica, and the frontends in front of them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from lsv.cli.context import CommandContext
from lsv.config import EngineConfig
from lsv.engine.client import Service
from lsv.engine.connect import EngineClient, open_client
from lsv.engine.replicas.nodes.member import serve_replicas
from lsv.engine.replicas.nodes.placed import Placed
from lsv.engine.replicas.nodes.reception import Reception
from lsv.engine.replicas.renewal import Renewal
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.stats_log import log_stats
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.offers import ExecutorOffer, FrontendOffer, load_object
from lsv.plugins import Plugins
from lsv.resolve import resolve
from lsv.settings import Settings
from lsv.settings.cluster_key import read_cluster_key
from lsv_base.errors import ConfigError, LsvError, PluginError
from lsv_base.processes import heap
from lsv_base.processes.outlet import unblock_output

log = logging.getLogger(__name__)

RENEW = signal.SIGUSR2
"""Has the replicas of a server replaced."""


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="serve")
    unblock_output()
    signal.signal(RENEW, signal.SIG_IGN)  # which otherwise ends who does not take it, as what this process starts
    settings.hand_on("cluster_key")
    settings.hand_on("host_ip")
    config = resolve(settings, context.plugins)
    if config.nodes is not None and config.nodes.number > 0:
        catalog = context.plugins.catalog
        offer = catalog.find(ExecutorOffer, config.executor)
        load_object(offer.join)(config, catalog, _restarts(config, settings)().delay)
        return 0
    if config.replica_nodes is not None and config.replica_nodes.headless:
        serve_replicas(
            config.local_replicas(), key=read_cluster_key(), log_level=settings["log_level"].upper(),
            restarts=_restarts(config, settings), drain=settings["drain_timeout"],
        )  # fmt: skip
        return 0
    frontends = choose_frontends(settings, context.plugins)
    log_start(config, settings)
    heap.share_arenas()
    heap.return_large_blocks()
    asyncio.run(_serve(config, frontends, settings, context.plugins))
    return 0


def choose_frontends(settings: Settings, plugins: Plugins) -> Sequence[FrontendOffer]:
    """The frontends to run. Raises ``ConfigError`` if there is none, or if one refuses the settings."""
    offered = plugins.catalog.offers(FrontendOffer)
    frontends = [offer for offer in offered if offer.default or (offer.switch and settings[offer.switch])]
    if not any(offer.default for offer in frontends):
        raise ConfigError("no plugin offers a frontend: enable the api plugin, or install another frontend")
    for offer in frontends:
        if offer.check is not None:
            load_object(offer.check)(settings)
    return frontends


def log_start(config: EngineConfig, settings: Settings) -> None:
    """Log the model, the device and the address: the lines that users look for first."""
    log.info("model: %s (%s)", config.served_names[0], config.architecture)
    log.info("device: %s, %s, context of %s tokens", config.platform, config.dtype, f"{config.max_model_len:,}")
    log.info("address: %s (available once the model is loaded)", _address(settings))


def _address(settings: Settings) -> str:
    if settings["uds"]:
        return f"unix socket {settings['uds']}"
    host = f"[{settings['host']}]" if ":" in settings["host"] else settings["host"]
    port = settings["port"] or "a free port"
    return f"{'https' if settings['ssl_certfile'] else 'http'}://{host}:{port}"


async def _serve(
    config: EngineConfig, frontends: Sequence[FrontendOffer], settings: Settings, plugins: Plugins
) -> None:
    """Run until a frontend ends; raises what the engine's start or the frontend failed with."""
    log_level, restarts = settings["log_level"].upper(), _restarts(config, settings)
    supervisors = Supervisors(config.replicas(), log_level=log_level, restarts=restarts)
    supervisors.start()  # before all that this process has to load: the engine needs longer
    try:
        async with _open_door(config, supervisors, settings):
            serves = not all(_runs_elsewhere(offer, settings) for offer in frontends)
            client = open_client(config, supervisors.addresses, settings, plugins, serves=serves)
            await client.start()
            if client.media is not None:
                client.media.warm()
            service = Service(dict.fromkeys(config.served_names, client))
            running = [_run_frontend(offer, service, settings, plugins) for offer in frontends]
            if not settings["disable_log_stats"]:
                running += _log_all_stats(client)
            _renew_when_told(client, supervisors, settings)
            await _run(running, client)
    finally:
        await asyncio.to_thread(supervisors.stop)


def _open_door(
    config: EngineConfig, supervisors: Supervisors, settings: Settings
) -> AbstractAsyncContextManager[Any, None]:
    """Where replicas of other machines join."""
    if config.replica_nodes is None:
        return nullcontext()
    if not config.replica_nodes.placer:
        return Reception(config, supervisors.stand_ins, read_cluster_key(), supervisors.gang)
    return Placed(
        config, supervisors.stand_ins, log_level=settings["log_level"].upper(), restarts=_restarts(config, settings),
        drain=settings["drain_timeout"], gang=supervisors.gang,
    )  # fmt: skip


def _renew_when_told(client: EngineClient, supervisors: Supervisors, settings: Settings) -> None:
    """A signal has the replicas replaced, one after the other; a single engine goes on."""
    if isinstance(client, ReplicaSet):
        renew = Renewal(client.replicas, supervisors, drain=settings["drain_timeout"]).begin
    else:
        renew = partial(log.warning, "the engine is not replaced: there is no other replica to answer meanwhile")
    asyncio.get_running_loop().add_signal_handler(RENEW, renew)


def _restarts(config: EngineConfig, settings: Settings) -> Callable[[], RestartPolicy]:
    """What makes the policy of each engine."""
    return partial(RestartPolicy, _restart_limit(config, settings), settings["restart_window"])


def _restart_limit(config: EngineConfig, settings: Settings) -> int:
    """How often an engine is started again within a window: where nobody says whether, one of several replicas is."""
    asked = settings["restart_engine"]
    restarts = config.topology.data > 1 if asked is None else asked
    return int(settings["restart_limit"]) if restarts else 0


async def _run_frontend(offer: FrontendOffer, service: Service, settings: Settings, plugins: Plugins) -> None:
    """Raises what the frontend raises; what is no error of lsv's is told with the plugin's name."""
    try:
        await plugins.catalog.load(offer)(service, settings)
    except LsvError:
        raise
    except Exception as cause:
        log.exception("frontend %s failed", offer.name)
        owner = plugins.catalog.provider(offer)
        raise PluginError(f"frontend {offer.name} of plugin {owner} failed: {type(cause).__name__}: {cause}") from cause


def _log_all_stats(client: EngineClient) -> list[Coroutine[Any, Any, None]]:
    """A line for each engine."""
    if len(client.replicas) == 1:
        return [log_stats(client)]
    return [log_stats(replica, name=f"replica {number}: ") for number, replica in enumerate(client.replicas)]


def _runs_elsewhere(offer: FrontendOffer, settings: Settings) -> bool:
    """Whether a frontend opens clients in processes of its own."""
    return offer.processes is not None and settings[offer.processes] > 1


async def _run(running: Sequence[Coroutine[Any, Any, None]], client: EngineClient) -> None:
    """Run until one ends; raises what the engine's start failed with, which says more than that the engine is gone."""
    try:
        await _first_to_end(running)
    except LsvError:
        if client.failure is not None:
            raise client.failure from None
        raise
    finally:
        await client.close()


async def _first_to_end(running: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; when one ends, the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in running]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
